"""Writes the files of a typical loop, such as prompts, if they do not exist, and finds what nobody has filled in. It never
changes or replaces an existing file, and never follows an existing link, even a dangling one.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import read_regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("PROMPT_plan.md", "PROMPT_build.md", "AGENTS.md", "specs/README.md", "loop.sh")

_TEXTS = Path(__file__).parent
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_INSTRUCTIONS = "AGENTS.md"
_MOST_BYTES = 1_000_000
_PLACEHOLDER = re.compile(rb"^[-*] ([^:\n]+): (?:\.\.\.|`\.\.\.`)[ \t\r]*$", re.MULTILINE)


def write_starters(directory: Path) -> Iterator[tuple[str, str | None]]:
    """Writes the files one after the other. Yields the name of each, and why it was not written, or None if it was. Raises
    OSError with the name of the file.
    """
    for name in NAMES:
        try:
            kept_because = _write_new(directory, name, (_TEXTS / name).read_bytes())
        except OSError as error:
            raise OSError(error.errno, error.strerror, name) from error
        yield name, kept_because


def placeholders_left(directory: Path) -> str | None:
    """A warning about lines of AGENTS.md that nobody has filled in, or None. Each iteration would read them."""
    try:
        text = read_regular_file(directory / _INSTRUCTIONS, _MOST_BYTES, os.O_RDONLY)
    except OSError:  # most directories have none, and the run says what it cannot read
        return None
    names = ", ".join(name.decode("utf-8", "replace") for name in _PLACEHOLDER.findall(text))
    return (
        f"{_INSTRUCTIONS} has unfilled placeholders: {names}; fill them in, or remove those lines"
        if names
        else None
    )


def _write_new(directory: Path, name: str, text: bytes) -> str | None:
    """Writes a new file. Returns None, or the reason why the file was not written."""
    path = directory / name
    if path.parent != directory:
        if path.parent.is_symlink():  # its target is outside this directory
            return f"{path.parent.name} is a link"
        with suppress(FileExistsError):
            path.parent.mkdir()
    try:
        fd = os.open(path, _NEW_FILE, 0o777 if path.suffix == ".sh" else 0o666)
    except FileExistsError:
        return "it is there already"
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(text)
    except OSError:
        with suppress(OSError):  # a full disk: half a file would be kept the next time
            path.unlink()
        raise
    return None
