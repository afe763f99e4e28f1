"""The sources of the words that open a task: prompt, piped data, instruction files."""
