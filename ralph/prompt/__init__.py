"""The sources of a task's first message: the prompt, piped data, and instruction files."""
