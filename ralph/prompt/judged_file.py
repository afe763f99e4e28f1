"""Opens files whose text goes to the model, and decides whether they may be read. The files come from a repository or
from the user's folder.

The decision is about the file that was really opened. A path alone is not enough, because it may contain a symbolic
link.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.prompt.prompt_text import prompt_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

ALL_SOURCES = frozenset({"user", "project", "local"})
"""The possible sources of files for models. "user" is the user's folder, "project" is the repository, and "local" is
the user's own notes in the repository."""
# Bounds for a folder that somebody filled on purpose.
_MOST_DEPTH = 5
_MOST_FILES = 1000
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Place(Struct, frozen=True):
    """A folder in which files must be, and the rules for reading files in it. `denied` are paths that must not be
    read. They contain no symbolic links.
    """

    top: str
    is_users: bool = False
    denied: Sequence[str] = ()
    why_not_read: Callable[[str], str | None] | None = None
    """A function that takes a path without symbolic links. It returns the rule that forbids reading this path, or
    None if no rule forbids it. If there are no rules, the field itself is None."""

    @property
    def name(self) -> str:
        return "the user's own folder" if self.is_users else "the repository"


def user_folder(environment: Mapping[str, str], cwd: Path) -> str | None:
    """The folder `~/.claude`, which contains the user's own files for models. None if there is no home directory.
    Also None if the folder is inside the working directory, because it may then belong to the repository.
    """
    home = environment.get("HOME", "")
    if not home.startswith("/"):
        return None
    folder = f"{home.rstrip('/')}/.claude"
    real = os.path.realpath(folder)
    return None if f"{real}/".startswith(f"{str(cwd).rstrip('/')}/") else folder


def path_of_file(name: str, cwd: Path) -> str | None:
    """The absolute path of a file. `name` is the file's name in a text. None if there is no such file. The path of a
    directory ends with a slash.
    """
    path = os.path.join(cwd, os.path.expanduser(name)).rstrip("/")  # noqa: PTH111, PTH118 - strings throughout
    try:
        return f"{path}/" if stat.S_ISDIR(os.stat(path or "/").st_mode) else path  # noqa: PTH116 - strings throughout
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


def markdown_below(folder: str, place: Place, is_name: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Yields the Markdown files in a folder and in folders inside it. The first value is the path below the folder
    without `.md`, the second the whole path. Each part of the path passes `is_name`.
    """
    pending = [(folder, "", 0)]
    count = 0
    while pending and count < _MOST_FILES:
        directory, prefix, depth = pending.pop()
        for name in entries_for_model(directory, place, is_name):
            count += 1
            path = f"{directory}/{name}"
            if name.endswith(".md"):
                yield prefix + name.removesuffix(".md"), path
            elif depth < _MOST_DEPTH and os.path.isdir(path):  # noqa: PTH112 - strings throughout
                pending.append((path, f"{prefix}{name}/", depth + 1))


def entries_for_model(directory: str, place: Place, is_name: Callable[[str], bool]) -> list[str]:
    """The names in a directory that pass `is_name`. The list is empty if the directory belongs to a repository, and a
    symbolic link leads from it to a place outside the repository.
    """
    try:
        names = sorted(os.listdir(directory))[:_MOST_FILES]  # noqa: PTH208 - strings throughout
    except OSError:
        return []
    real, top = os.path.realpath(directory), os.path.realpath(place.top)
    if not place.is_users and not f"{real}/".startswith(f"{top.rstrip('/')}/"):
        return []
    return [name for name in names if is_name(name)]


def open_for_model(path: str) -> int | None:
    """Opens the file and returns its descriptor, or None if the file cannot be opened. Does not wait, even if the
    file is a FIFO.
    """
    try:
        return os.open(path, _FLAGS)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


def why_not_for_model(descriptor: int, path: str, place: Place, *, is_named_by_ralph: bool) -> str | None:
    """The reason why an opened file must not be read, or None if it may be read.

    `is_named_by_ralph` is True if ralph itself looks for a file with this name. For a regular file without links,
    only the permission rules are then checked.
    """
    from ralph.machine.opened_file import opened_path  # noqa: PLC0415 - most directories have no such file

    status = os.fstat(descriptor)
    # A file with another name (a hard link) may be a secret.
    is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    real = opened_path(descriptor, path)
    rule = None if place.why_not_read is None or real is None else place.why_not_read(real)
    if rule is not None:
        return f"the rule {rule} forbids it"
    if is_plain and is_named_by_ralph and real == path:
        return None
    from ralph.prompt.named_file import why_not_inside  # noqa: PLC0415 - links and imports are rare

    # The user may link a file that ralph looks for to a place of their own.
    top = None if place.is_users and is_named_by_ralph else place.top
    return why_not_inside(descriptor, path, top, place.name, place.denied)


def read_for_model(path: str, place: Place, most_bytes: int) -> str:
    """Reads a file whose name ralph itself looks for. If the file must not or cannot be read, raises ValueError with
    the reason.
    """
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
        return prompt_text(data).replace("\r\n", "\n")
    except ValueError as error:
        raise ValueError(f"it {error}") from None
