"""Lays the user's own caches under those of a checkout: what they hold appears there as links, which commands can read and not
change. Follows no link in the caches of the checkout, because commands write there.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack, suppress
from itertools import islice
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import opened
from ralph.places.table import EMPTY_FILES, LAYERS, expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from ralph.places.table import Bases

_MOST_ENTRIES = 2000
"""The maximum number of entries of one directory. Caches of models and browsers have tens."""
_MOST_COPIED_BYTES = 64 * 1024
"""The maximum size of a file that is copied. A tool may write such a file again in its place, as Hugging Face's hub does with the name of a revision."""
_HELD = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def lay_caches(
    packages: str,
    bases: Bases,
    environment: Mapping[str, str],
    is_readable: Callable[[str], bool],
    may_copy: Callable[[str], bool] = lambda _: True,
) -> None:
    """Adds empty files and what is new in the user's caches, as the table says, and removes links whose target is gone. `packages` is the
    directory of the checkout's caches, without links. `is_readable`: commands may read a path, and not write it. `may_copy`: a file
    holds no credentials by its place. One that may is linked, because commands see it without them, and a copy is removed. What
    cannot be laid out stays.
    """
    for directory, name in EMPTY_FILES:
        with suppress(OSError), opened(packages, _HELD) as top, _made(directory, top) as into:
            os.close(os.open(name, _NEW, 0o600, dir_fd=into))
    for place, depth, sources in LAYERS:
        for template in sources:
            for path in expanded(template, bases, environment):
                source = os.path.realpath(path)
                if is_readable(source) and os.path.isdir(source):
                    with suppress(OSError), ExitStack() as held:
                        into = held.enter_context(opened(packages, _HELD))
                        for part in place.split("/"):
                            into = held.enter_context(_made(part, into))
                        _lay_entries(source, into, depth, is_readable, may_copy)


def _made(name: str, directory: int) -> AbstractContextManager[int]:
    """Opens a directory in an open one, and makes it if it is missing. Raises OSError if it is anything else."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=directory)
    return opened(name, _HELD, dir_fd=directory)


def _lay_entries(
    source: str, into: int, depth: int, is_readable: Callable[[str], bool], may_copy: Callable[[str], bool]
) -> None:
    names = os.listdir(source)
    there = {*os.listdir(into)}
    for name in there.difference(names):
        with suppress(OSError):  # it is not a link
            if os.readlink(name, dir_fd=into) == f"{source}/{name}":
                os.unlink(name, dir_fd=into)
    for name in islice(names, _MOST_ENTRIES):
        path = f"{source}/{name}"
        status = os.lstat(path)
        if name in there and not may_copy(path) and _is_file(name, into):
            os.unlink(name, dir_fd=into)
            there.remove(name)
        if depth > 1 and stat.S_ISDIR(status.st_mode):
            with _made(name, into) as below:
                _lay_entries(path, below, depth - 1, is_readable, may_copy)
        elif name in there or not is_readable(path):
            continue
        elif stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_COPIED_BYTES and may_copy(path):
            with opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as read:
                content = os.read(read, _MOST_COPIED_BYTES)
            with opened(name, _NEW, dir_fd=into) as written:
                os.write(written, content)
        else:
            os.symlink(path, name, dir_fd=into)


def _is_file(name: str, directory: int) -> bool:
    return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
