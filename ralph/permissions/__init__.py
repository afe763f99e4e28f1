"""Decides by permission rules whether a tool call may run. It runs nothing and reads no file."""
