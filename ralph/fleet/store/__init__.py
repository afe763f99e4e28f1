"""The store of the fleet: where it is, its tables, who works on which job, and which workers live."""
