"""The command line in typer's terms. The only place that knows typer."""
