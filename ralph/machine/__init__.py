"""The machine: clock, waiter, processes, files as they are replaced, programs."""
