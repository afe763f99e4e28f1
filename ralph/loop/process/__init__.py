"""One iteration as a process: started, followed to its end, told as a value."""
