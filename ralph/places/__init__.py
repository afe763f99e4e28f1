"""Which places are protected from writing, hidden from reading, readable and writable: one table."""
