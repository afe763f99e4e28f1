"""Decides which tool calls the permission rules let through. It runs nothing and reads no file."""
