"""Works on git repositories for ralph. `runner.py` is the only way in which ralph runs git."""
