"""Runs that another program, a driver, steers over standard input and output."""
