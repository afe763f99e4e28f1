"""The command line of ralph. This is the only package that imports typer, which reads the line of every command."""
