"""Answers the completion of a shell: `ralph --complete`. It imports neither typer nor msgspec, because a person waits."""
