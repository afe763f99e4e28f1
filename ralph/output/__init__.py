"""Output for users and programs: JSON lines on standard output, sentences on standard error, the result."""
