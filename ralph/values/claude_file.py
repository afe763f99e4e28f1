"""A settings file that was made for Claude Code, as ralph reads it and hands it on."""

from __future__ import annotations

from msgspec import Struct


class ClaudeFile(Struct, frozen=True):
    """A settings file for Claude Code, or the value of `--settings`."""

    name: str
    """The path of the file, or the name of the option."""
    kind: str
    """`user`, `project`, `local` or `flag`. A user's file that is inside the working directory is a `project` file,
    because somebody else may have written it."""
    root: str
    """The directory to which relative paths in the file are relative. Empty means the working directory."""
    text: str

    @property
    def is_trusted(self) -> bool:
        """Whether the user wrote the file. A hook is a program, so ralph runs a hook only if its file is trusted."""
        return self.kind in ("user", "flag")
