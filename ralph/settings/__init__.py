"""Settings: the table of keys, files and where they are trusted, and what they become."""
