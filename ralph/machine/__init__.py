"""Access to the machine: clocks, waits, processes, programs, and the replacement of files."""
