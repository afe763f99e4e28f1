"""The tools that a model can call: Read, Write, Edit, Bash, Glob and Grep. `docs/tools.md` describes each tool."""
