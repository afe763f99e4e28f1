"""Sessions on disk: their places, their journals, and the process that has a journal open."""
