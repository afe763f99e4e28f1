"""The Messages API over HTTP: one request, one whole answer or one of five errors."""
