"""Reading and writing files beneath the roots, and nowhere else."""
