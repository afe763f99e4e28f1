"""Opens files from a repository or the user's folder whose text goes to the model, and decides whether they may be
read. The decision is about the file that was opened, not about the path that was given.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

ALL_SOURCES = frozenset({"user", "project", "local"})
"""The possible sources of files for models: the user's folder, the repository, and the user's notes in the
repository."""
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Place(Struct, frozen=True):
    """A folder in which files must be, and rules for the paths in it. `denied` are paths without symbolic links that
    must not be read.
    """

    top: str
    is_users: bool = False
    denied: Sequence[str] = ()
    why_not_read: Callable[[str], str | None] | None = None
    """Returns the rule that forbids reading a path without symbolic links, or None. It is None if there are no rules."""

    @property
    def name(self) -> str:
        return "the user's own folder" if self.is_users else "the repository"


def user_folder(environment: Mapping[str, str], cwd: Path) -> str | None:
    """The folder `~/.claude`, which holds the user's own files for models. None if there is no home directory, or if
    the folder is inside the working directory: it may then belong to the repository.
    """
    home = environment.get("HOME", "")
    if not home.startswith("/"):
        return None
    folder = f"{home.rstrip('/')}/.claude"
    real = os.path.realpath(folder)
    return None if f"{real}/".startswith(f"{str(cwd).rstrip('/')}/") else folder


def path_of_file(name: str, cwd: Path) -> str | None:
    """The absolute path of a file that a text names, or None if the path does not exist or is a directory."""
    path = os.path.join(cwd, os.path.expanduser(name))  # noqa: PTH111, PTH118 - strings throughout
    try:
        return None if stat.S_ISDIR(os.stat(path).st_mode) else path  # noqa: PTH116 - strings throughout
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


def open_for_model(path: str) -> int | None:
    """Opens the file and returns its descriptor, or None if it cannot be opened. A FIFO does not block."""
    try:
        return os.open(path, _FLAGS)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


def why_not_for_model(descriptor: int, path: str, place: Place, *, is_named_by_ralph: bool) -> str | None:
    """The reason why an opened file must not be read, or None if it may be read.

    `is_named_by_ralph` is True if ralph itself looks for this name. Then only the permission rules are checked,
    unless there was a symbolic link in the path or the file is not a regular one.
    """
    from ralph.machine.opened_file import opened_path  # noqa: PLC0415 - most directories have no such file

    is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    real = opened_path(descriptor, path)
    rule = None if place.why_not_read is None or real is None else place.why_not_read(real)
    if rule is not None:
        return f"the rule {rule} forbids it"
    if is_regular and is_named_by_ralph and real == path:
        return None
    from ralph.prompt.named_file import why_not_inside  # noqa: PLC0415 - links and imports are rare

    # The user may link a file that ralph looks for to a place of their own.
    top = None if place.is_users and is_named_by_ralph else place.top
    return why_not_inside(descriptor, path, top, place.name, place.denied)


def read_for_model(path: str, place: Place, most_bytes: int) -> str:
    """Reads a file whose name ralph looks for. Raises ValueError with the reason if it must not be read."""
    descriptor = open_for_model(path)
    if descriptor is None:
        raise ValueError("it cannot be opened")
    try:
        why = why_not_for_model(descriptor, path, place, is_named_by_ralph=True)
        if why is not None:
            raise ValueError(why)
        data = os.read(descriptor, most_bytes + 1)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(data) > most_bytes:
        raise ValueError(f"it has more than {most_bytes:,} bytes")
    try:
        return data.decode().removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
