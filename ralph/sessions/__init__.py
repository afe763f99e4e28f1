"""Sessions on disk: where they are, their journals, and who holds one."""
