"""Sessions on disk: where they are stored, their journals, and which process has a journal open."""
