"""The command line of ralph. This is the only package that imports typer. `ralph run`, `ralph loop` and `ralph
doctor` do not need typer.
"""
