"""Packs the state directory of a job's ralph into bytes for the store, and unpacks them on another machine. The store is
not trusted: links, devices and paths outside the directory are refused, and so is more than the given size.
"""

from __future__ import annotations

import io
import os
import tarfile
import zlib
from typing import TYPE_CHECKING

from ralph.loop.record import LOOPS
from ralph.machine.files.opened_file import open_regular_file

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from pathlib import Path

_CARRIED = frozenset({"sessions", LOOPS})
"""The folders with what a job continues from. The rest is of this machine and this process alone: temporary files of hooks and of
MCP servers, which may hold their keys, the descriptions of this machine's protected files, and what commands had made of them."""
_LEVEL = 6  # zlib's own choice; journals are text and become a fifth
_MOST_ENTRIES = 10_000
_FILE_MODE, _FOLDER_MODE = 0o600, 0o700
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OF_DAMAGE = (tarfile.TarError, ValueError, EOFError, FileExistsError, FileNotFoundError, NotADirectoryError)


class TooLargeError(Exception):
    """The state is larger than a checkpoint may be."""


class BadStateError(Exception):
    """The packed state is damaged, or no ralph has packed it."""


def pack_state(directory: Path, most_bytes: int) -> bytes:
    """Packs the regular files and the folders of the sessions and the loops in a state directory. Links and everything else are
    left out. The same content gives the same bytes: neither times nor owners are packed. A file that grows meanwhile is packed
    as long as it was when it was opened. Raises TooLargeError if the files are larger than `most_bytes` in sum, and OSError.
    """
    packed = io.BytesIO()
    left = most_bytes
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number, (name, path) in enumerate(_entries(directory, "", _CARRIED)):
            if number >= _MOST_ENTRIES:
                raise TooLargeError(f"{directory} has more than {_MOST_ENTRIES:,} files")
            entry = tarfile.TarInfo(name)
            if path is None:
                entry.type, entry.mode = tarfile.DIRTYPE, _FOLDER_MODE
                archive.addfile(entry)
                continue
            content = _content(path, left)
            if content is None:
                continue
            if len(content) > left:
                raise TooLargeError(f"{directory} is larger than {most_bytes:,} bytes")
            left -= len(content)
            entry.mode, entry.size = _FILE_MODE, len(content)
            archive.addfile(entry, io.BytesIO(content))
    return zlib.compress(packed.getvalue(), _LEVEL)


def unpack_state(data: bytes, directory: Path, most_bytes: int) -> None:
    """Unpacks what `pack_state` returned into the new directory `directory`. Files have the mode 0600 and folders
    0700. Raises BadStateError if the data is damaged or hostile, TooLargeError if it would unpack to more than
    `most_bytes`, and OSError.
    """
    # Each entry has a head of 512 bytes and may have a long name; its content is padded.
    most_packed = most_bytes + _MOST_ENTRIES * 4096
    unzip = zlib.decompressobj()
    try:
        packed = unzip.decompress(data, most_packed)
    except zlib.error as error:
        raise BadStateError(f"the packed state is damaged: {error}") from None
    if not unzip.eof:
        if unzip.unconsumed_tail:
            raise TooLargeError(f"the packed state is larger than {most_bytes:,} bytes")
        raise BadStateError("the packed state is cut short")
    if not packed.endswith(bytes(2 * tarfile.BLOCKSIZE)):  # the end of an archive
        raise BadStateError("the packed state is not a complete archive")
    directory.mkdir(mode=_FOLDER_MODE)
    left = most_bytes
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
            for number, entry in enumerate(archive):
                left -= entry.size
                if left < 0 or number >= _MOST_ENTRIES:
                    raise TooLargeError(f"the packed state is larger than {most_bytes:,} bytes")
                _unpack(archive, entry, directory)
    except _OF_DAMAGE as error:
        raise BadStateError(f"the packed state is damaged: {error}") from None


def _entries(
    directory: Path, above: str, only: Container[str] | None = None
) -> Iterator[tuple[str, str | None]]:
    """The relative names below a directory, folders before their content, each with the path of a file, or None for a folder. With
    `only`, the directory has no other entries than these.
    """
    with os.scandir(directory) as listing:
        found = sorted(
            (entry for entry in listing if only is None or entry.name in only), key=lambda entry: entry.name
        )
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield above + entry.name, None
            yield from _entries(directory / entry.name, f"{above}{entry.name}/")
        elif entry.is_file(follow_symlinks=False):
            yield above + entry.name, entry.path


def _content(path: str, most_bytes: int) -> bytes | None:
    """The content of a file, or one byte more than `most_bytes` of it. None if it is gone or no regular file now."""
    try:
        descriptor = open_regular_file(path, os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(min(os.fstat(descriptor).st_size, most_bytes + 1))


def _unpack(archive: tarfile.TarFile, entry: tarfile.TarInfo, directory: Path) -> None:
    parts = entry.name.split("/")
    if not entry.name or "\0" in entry.name or any(part in {"", ".", ".."} for part in parts):
        raise BadStateError(f"the packed state has an entry that no ralph packs: {entry.name!r}")
    path = directory.joinpath(*parts)
    if entry.isdir():
        path.mkdir(mode=_FOLDER_MODE)
        return
    source = archive.extractfile(entry) if entry.type == tarfile.REGTYPE and not entry.issparse() else None
    if source is None:
        raise BadStateError(f"the packed state has an entry that no ralph packs: {entry.name!r}")
    with os.fdopen(os.open(path, _WRITE, _FILE_MODE), "wb") as file:
        content = source.read()
        if len(content) != entry.size:
            raise BadStateError("the packed state is cut short")
        file.write(content)
