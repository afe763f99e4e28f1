"""MCP servers: which ones are configured, how they are started and asked, and what their tools are called."""
