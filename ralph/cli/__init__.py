"""The command line. No other package of ralph imports typer. A run, a loop and `ralph doctor` do not need it."""
