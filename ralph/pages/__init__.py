"""The HTML page of a night: `ralph report`."""
