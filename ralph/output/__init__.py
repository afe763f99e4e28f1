"""What users and programs read: JSON lines on standard output, sentences on standard error, the result."""
