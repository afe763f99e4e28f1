"""The checks of `ralph doctor`, one module for each subject. A check gives findings and raises nothing."""
