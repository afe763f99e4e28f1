"""Starts MCP servers, calls their tools, and makes the names of these tools for the model."""
