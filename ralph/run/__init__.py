"""One process of `ralph run`, text or driven: from options to exit code."""
