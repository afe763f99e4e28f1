"""The sources of a task's opening message: prompt, piped data, instruction files."""
