"""Opens files whose text goes to the model, and decides whether they may be read. The decision is about the file that was really
opened, because a path may contain a symbolic link. A secret file behind a link is recognised by its place, its name, and for a
hard link by its identity.

The user may name a regular file or a pipe in any place, but no file that the kernel generates, because /proc/self/environ
contains the API key, and none to which a link in a repository leads from outside, because somebody else may have written the
repository.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.files.opened_file import closed_after, is_made_by_kernel, opened_path
from ralph.machine.files.paths import is_within_any, link_inside
from ralph.places.places import is_named
from ralph.places.table import UNQUOTED, named_with
from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


# --- Files that the user names

FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK_BYTES = 65_536
# A command whose output is read through a pipe has written something after this time, or is stuck.
_SILENT_S = 30.0


def open_named_file(path: str, directories: Sequence[str | Path]) -> int:
    """Opens a file by its absolute path for reading, without waiting. `directories` are those where ralph was started and those
    where commands may write: links in the repositories around them are not trusted. Raises OSError.
    """
    descriptor = os.open(path, FLAGS)
    try:
        refuse_kernel_file(descriptor, path)
        _refuse_link(descriptor, path, directories)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def refuse_planted(paths: Iterable[str], directories: Sequence[str | Path]) -> None:
    """Raises UsageError if `open_named_file` refuses one of these files, which were read before all `directories` were known."""
    for path in paths:
        try:
            os.close(open_named_file(path, directories))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error


def read_named_file(
    path: str, directories: Sequence[str | Path], most_bytes: int, *, takes_pipe: bool = True
) -> bytes:
    """The whole content of a file. `path` and `directories` are as in `open_named_file`. A pipe must have a process at its other
    end, as that of `<(command)` has: nobody may ever write to one that has a name. Raises OSError: EINVAL for another kind of
    file, or any pipe without `takes_pipe`, EFBIG beyond `most_bytes`, and ETIMEDOUT if a pipe sends nothing for 30 s.
    """
    with closed_after(open_named_file(path, directories)) as descriptor:
        mode = os.fstat(descriptor).st_mode
        if takes_pipe and stat.S_ISFIFO(mode):
            if _has_name(descriptor, path):
                raise OSError(errno.EINVAL, "it is a named pipe, which may never have a writer", path)
        elif not stat.S_ISREG(mode):
            raise OSError(
                errno.EINVAL, "it is not a regular file" + (" and no pipe" if takes_pipe else ""), path
            )
        return _read_to_end(descriptor, path, most_bytes)


def refuse_kernel_file(descriptor: int, path: str) -> None:
    """Raises OSError if the descriptor belongs to a regular file that the kernel generates."""
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and is_made_by_kernel(opened_path(descriptor, path) or path, status):
        raise OSError(errno.EPERM, "it is a kernel file (/proc, /sys), which could hold credentials", path)


def why_not_inside(
    descriptor: int, path: str, top: str | None, top_name: str, denied: Sequence[str] = ()
) -> str | None:
    """The reason why an opened file must not be read, or None. It must be a regular file inside `top`, which messages call
    `top_name`, or anywhere if that is None, and no secret file by another name (a hard link). `denied` are further paths
    without symbolic links that must not be read.
    """
    status = os.fstat(descriptor)
    real = opened_path(descriptor, path)
    if not stat.S_ISREG(status.st_mode) or real is None:
        return "it is not a regular file"
    where = "it" if real == path else f"it is {real}, which"
    if is_made_by_kernel(real, status):
        return f"{where} is made up by the kernel"
    real_top = os.path.dirname(real) if top is None else os.path.realpath(top)  # noqa: PTH120 - it is a str
    if not is_within_any(real, (real_top,)):
        return f"{where} is outside {top_name}"
    return why_secret(real, real_top, denied, status)


def _refuse_link(descriptor: int, path: str, directories: Sequence[str | Path]) -> None:
    inside = link_inside(descriptor, path, directories)
    if inside is None:
        return
    link, real, around = inside
    if why := why_secret(real, around):
        raise OSError(errno.EPERM, f"{link} is a link, and {why}", path)


def _has_name(pipe: int, path: str) -> bool:
    try:
        return opened_path(pipe, path) is not None
    except OSError:  # macOS reports no path then
        return False


def _read_to_end(descriptor: int, path: str, most_bytes: int) -> bytes:
    data = bytearray()
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    until_s = time.monotonic() + _SILENT_S
    while True:
        # If a pipe has no writer yet, poll reports nothing. If its writer has closed it, poll reports its end.
        if not poller.poll(max(until_s - time.monotonic(), 0) * 1000):
            raise OSError(errno.ETIMEDOUT, f"it stayed silent for {_SILENT_S:g} s", path)
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return bytes(data)
        data += chunk
        until_s = time.monotonic() + _SILENT_S
        if len(data) > most_bytes:
            raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", path)


# Browsers keep some thousands of files. Comparing so many takes a quarter of a second.
_MOST_COMPARED = 20_000


def why_secret(
    real: str, top: str, denied: Sequence[str] = (), status: os.stat_result | None = None
) -> str | None:
    """The reason why a file in the repository `top` is secret, or None. A repository may be a home directory with the user's
    keys, and `.git` may contain a token in an address. By `status`, a secret file is known under another name too.
    """
    from ralph.places.gather import files_in, gather_places  # noqa: PLC0415 - few files are links, and it takes 10 ms

    places = gather_places((top,), os.environ, denied=denied)
    place = places.why_not_read(real)
    if place is not None:
        return f"it leads to {real}: {place.path} {place.row.why}"
    if status is not None and status.st_nlink > 1:
        other = _hard_link_in(chain.from_iterable(map(files_in, places.unread)), status)
        if other is not None:
            return f"it is a hard link, and the same file {other}"
    why = next((why for name, why in named_with(UNQUOTED) if is_named(real, name)), None)
    return None if why is None else f"it leads to {real}, which {why}"


def _hard_link_in(paths: Iterable[str], status: os.stat_result) -> str | None:
    """A text that says where among `paths` the file with this status is, or could be if there are too many, otherwise None."""
    for compared, path in enumerate(paths):
        if compared >= _MOST_COMPARED:
            return "could lie in a secret place: too many files to compare"
        with suppress(OSError):
            if os.path.samestat(os.lstat(path), status):
                return f"as {path}, which must not be read"
    return None


# --- Text

_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_UTF_16 = "this looks like UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`"
_BINARY = "this looks like binary data; name the file in the prompt instead"
_OTHER = "if it is Latin-1, convert it with `iconv -f LATIN1 -t UTF-8`"


def prompt_text(data: bytes) -> str:
    """The bytes as text, without a byte order mark. Raises ValueError, before whose text the caller puts the source's name."""
    refuse_binary(data)
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(_refusal(data, error.start, _OTHER)) from None


def refuse_binary(data: bytes) -> None:
    """Raises the error of `prompt_text` if the bytes are UTF-16 or contain NUL, so that no part of them is text."""
    if data.startswith(_UTF_16_MARKS):
        raise ValueError(_refusal(data, 0, _UTF_16))
    first_nul = data.find(b"\0")
    if first_nul >= 0:
        raise ValueError(_refusal(data, first_nul, _BINARY))


def argument_text(argument: str) -> str:
    """The prompt in a command-line argument. Raises the errors of `prompt_text`."""
    # Python decodes bytes of an argument that are not UTF-8 as lone surrogates.
    return prompt_text(argument.encode("utf-8", "surrogateescape"))


def _refusal(data: bytes, index: int, advice: str) -> str:
    line = data.count(b"\n", 0, index) + 1
    return f"is not UTF-8 text: byte {index + 1:,} (0x{data[index]:02x}, in line {line:,}); {advice}"
