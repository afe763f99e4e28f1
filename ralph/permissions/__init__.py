"""Decides by the rules that people wrote whether a tool call may run. Runs nothing and reads no file."""
