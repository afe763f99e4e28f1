"""What `ralph doctor` looks at, one module for each kind of thing. Each look gives findings and raises nothing."""
