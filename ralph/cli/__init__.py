"""The command line. No other package of ralph imports typer, and a run, a loop and `ralph doctor` do without it."""
