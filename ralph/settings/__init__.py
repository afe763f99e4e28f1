"""The settings of ralph: the tables that declare them, the files and environment variables that set them, and the
merged values.
"""
