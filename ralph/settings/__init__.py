"""The tables of settings, the files and environment variables that they are read from, and the merged values."""
