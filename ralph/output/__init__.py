"""Output for users and programs: JSON lines and results on standard output, lines for people on standard error."""
