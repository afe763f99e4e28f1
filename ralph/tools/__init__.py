"""The tools a model can call: Read, Write, Edit, Bash, Glob, Grep. `docs/tools.md` says what each promises."""
