"""Reads the sources of a task's first message: the prompt, piped data, memory files, commands and skills."""
