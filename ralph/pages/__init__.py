"""The HTML pages of `ralph report` and `ralph fleet report`."""
