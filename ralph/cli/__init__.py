"""The command line. No other package of ralph imports typer."""
