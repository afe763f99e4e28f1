"""Lets commands reach only the hosts that the user lists."""
