"""Opens files of a repository or of the user's folder whose text goes to the model, and decides whether they may be read. The
decision is about the file that was really opened, because a path may contain a symbolic link.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.files.opened_file import opened_path
from ralph.prompt.named_file import FLAGS, why_not_inside
from ralph.prompt.prompt_input import prompt_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

ALL_SOURCES = frozenset({"user", "project", "local"})
"""The sources of files for models: the user's folder, the repository, and the user's own notes in it."""
# Bounds for a folder that somebody filled on purpose.
_MOST_DEPTH = 5
_MOST_FILES = 1000


class Place(Struct, frozen=True):
    """A folder in which files must be, and the rules for reading files in it."""

    top: str
    is_users: bool = False
    denied: Sequence[str] = ()
    """Paths without symbolic links that must not be read."""
    why_not_read: Callable[[str], str | None] | None = None
    """Returns the rule that forbids reading a path without symbolic links, or None. None if there are no rules."""

    @property
    def name(self) -> str:
        return "the user's own folder" if self.is_users else "the repository"


def user_folder(environment: Mapping[str, str], cwd: Path) -> str | None:
    """The folder `~/.claude` with the user's own files for models. None without a home, and if it is inside the working
    directory, where it may belong to the repository.
    """
    home = environment.get("HOME", "")
    if not home.startswith("/"):
        return None
    folder = f"{home.rstrip('/')}/.claude"
    real = os.path.realpath(folder)
    return None if f"{real}/".startswith(f"{str(cwd).rstrip('/')}/") else folder


def path_of_file(name: str, cwd: Path) -> str | None:
    """The absolute path of a file that a text names, or None. The path of a directory ends with a slash."""
    path = os.path.join(cwd, os.path.expanduser(name)).rstrip("/")  # noqa: PTH111, PTH118 - strings throughout
    try:
        return f"{path}/" if stat.S_ISDIR(os.stat(path or "/").st_mode) else path  # noqa: PTH116 - strings throughout
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


def markdown_below(folder: str, place: Place, is_name: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Yields the Markdown files in a folder and below, each as the path below the folder without `.md` and as the whole path.
    Each part of the path passes `is_name`.
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
    """The names in a directory that pass `is_name`. None of a repository's directory that is a link to a place outside."""
    try:
        names = sorted(os.listdir(directory))[:_MOST_FILES]  # noqa: PTH208 - strings throughout
    except OSError:
        return []
    real, top = os.path.realpath(directory), os.path.realpath(place.top)
    if not place.is_users and not f"{real}/".startswith(f"{top.rstrip('/')}/"):
        return []
    return [name for name in names if is_name(name)]


def open_for_model(path: str) -> int | None:
    """Opens a file without waiting, even if it is a FIFO. None if it cannot be opened."""
    try:
        return os.open(path, FLAGS)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


def why_not_for_model(descriptor: int, path: str, place: Place, *, is_named_by_ralph: bool) -> str | None:
    """The reason why an opened file must not be read, or None. If ralph itself looks for a file with this name, only the
    permission rules count for a regular file without links.
    """
    status = os.fstat(descriptor)
    # A file with another name (a hard link) may be a secret.
    is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    real = opened_path(descriptor, path)
    rule = None if place.why_not_read is None or real is None else place.why_not_read(real)
    if rule is not None:
        return f"the rule {rule} forbids it"
    if is_plain and is_named_by_ralph and real == path:
        return None
    # The user may link a file that ralph looks for to a place of their own.
    top = None if place.is_users and is_named_by_ralph else place.top
    return why_not_inside(descriptor, path, top, place.name, place.denied)


def read_for_model(path: str, place: Place, most_bytes: int) -> str:
    """Reads a file whose name ralph itself looks for. Raises ValueError with the reason."""
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
