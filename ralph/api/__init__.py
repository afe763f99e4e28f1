"""A client of the Messages API over HTTP. One request leads to one complete answer or to one of five errors."""
