"""Starts and calls MCP servers, and names their tools."""
