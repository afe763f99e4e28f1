"""Many jobs on many machines: the store, the workers, and one attempt at a job."""
