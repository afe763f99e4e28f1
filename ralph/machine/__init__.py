"""Gives access to the machine: clocks, waiting, processes, programs, and the atomic replacement of files."""
