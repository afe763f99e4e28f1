"""One process of `ralph run`."""
