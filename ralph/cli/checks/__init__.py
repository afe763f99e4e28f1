"""The checks of `ralph doctor`, one module per subject. A check returns findings and raises no exception."""
