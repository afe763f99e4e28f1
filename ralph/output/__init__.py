"""Output for users and programs: JSON lines and results on standard output, sentences on standard error."""
