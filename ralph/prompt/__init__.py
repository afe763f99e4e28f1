"""Where the words come from that open a task: prompt, piped data, instruction files."""
