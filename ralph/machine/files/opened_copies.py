"""Copies files, and the objects of a git directory, for a program that reads them while commands may change the tree. Nothing is
opened or linked through a link, so the program reads what was judged: a command can exchange a directory and a link to one that it
may not read at any time, also after the program has looked which of the two is there.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
# Linux says ENOTDIR of a link in the place of a directory, ELOOP of one in the place of a file, and EINVAL of a file in its place.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)
_COPIED_BYTES = 1024 * 1024
"""A larger file gets a second name instead, if the disk has those. Programs that watch a file take that for a change of it."""
_MOST_WAY_BYTES = 8192
_ATTRIBUTES = ".gitattributes"
_WITH_OBJECTS = re.compile("[0-9a-f]{2}|pack")


class ReplacedError(Exception):
    """A link is where a directory or a file must be. The text is the path."""


def copy_files(top: str, paths: Iterable[str], place: str) -> list[str]:
    """Copies files and links below `top`, with the git attributes on the way to them, to the new directory `place`. A repository
    becomes one that leads to its git directory. Returns the paths where there is none of these, or to which a link leads. Raises
    OSError, also if a path was a link and then the directory of another path.
    """
    os.mkdir(place, 0o700)
    gone: list[str] = []
    links: dict[str, str] = {}
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(os.path.dirname(path), []).append(os.path.basename(path))
    for folder in tuple(folders):
        for above in _folders_above(folder):
            folders.setdefault(above, [])
    for folder, names in folders.items():
        with ExitStack() as stack:
            held = opened_folder(top, folder, stack)
            for name in names:
                path = os.path.join(folder, name)
                if held is None or not _is_copied(held, top, path, place, links):
                    gone.append(path)
            if held is not None and _ATTRIBUTES not in names:
                _is_copied(
                    held, top, os.path.join(folder, _ATTRIBUTES), place, {}
                )  # git follows no link to them
    for path, target in links.items():  # the last, so that no copy is made through one
        _make_folder_of(f"{place}/{path}")
        os.symlink(target, f"{place}/{path}")
    return gone


def _folders_above(folder: str) -> Iterator[str]:
    while folder:
        folder = os.path.dirname(folder)
        yield folder


def opened_folder(top: str, folder: str, stack: ExitStack) -> int | None:
    """The descriptor of a folder below `top`, which `stack` closes. None if there is none, or if a link leads to it."""
    held = os.open(top, _DIRECTORY | os.O_CLOEXEC)
    for name in filter(None, folder.split("/")):
        above = held
        try:
            held = os.open(name, _DIRECTORY | os.O_CLOEXEC, dir_fd=above)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        finally:
            os.close(above)
    stack.callback(os.close, held)
    return held


def _is_copied(folder: int, top: str, path: str, place: str, links: dict[str, str]) -> bool:
    """Copies one path, whose folder is open, but puts a link into `links`. Returns False if there is nothing to copy."""
    name, target = os.path.basename(path), f"{place}/{path}"
    try:
        match stat.S_IFMT(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            case stat.S_IFLNK:
                links[path] = os.readlink(name, dir_fd=folder)
                return True
            case stat.S_IFDIR:
                with opened(name, _DIRECTORY, dir_fd=folder) as inner:
                    way = _way_to_git_directory(inner)
                content = f"gitdir: {os.path.join(top, path, way)}\n" if way else None
            case stat.S_IFREG:
                with opened(name, _FILE, dir_fd=folder) as source:
                    return _is_file_copied(source, target)
            case _:
                return False
    except OSError as error:
        if error.errno in _ABSENT:
            return False
        raise
    if content is not None:
        os.makedirs(target, mode=0o700, exist_ok=True)
        with opened(f"{target}/.git", _NEW) as made:
            os.write(made, os.fsencode(content))
    return content is not None


def _way_to_git_directory(inner: int) -> str:
    """The path to which `.git` in an open directory leads, perhaps relative to that. Empty if it is no repository. Raises OSError."""
    kind = stat.S_IFMT(os.stat(".git", dir_fd=inner, follow_symlinks=False).st_mode)
    if kind == stat.S_IFREG:
        with opened(".git", _FILE, dir_fd=inner) as file:
            return os.fsdecode(os.read(file, _MOST_WAY_BYTES).removeprefix(b"gitdir:").strip())
    return ".git" if kind == stat.S_IFDIR else ""


def _make_folder_of(path: str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)


def _is_file_copied(source: int, target: str) -> bool:
    """Copies an open file as long as it is now, with the right to execute it. Returns False if it is no regular file."""
    status = os.fstat(source)
    if not stat.S_ISREG(status.st_mode):
        return False
    _make_folder_of(target)
    if status.st_size > _COPIED_BYTES and _has_second_name(f"/proc/self/fd/{source}", None, target):
        return True
    mode = 0o700 if status.st_mode & stat.S_IXUSR else 0o600
    with opened(target, _NEW, mode) as made:
        left = status.st_size
        while left > 0 and (part := os.read(source, min(left, _COPIED_BYTES))):
            left -= len(part)
            while part:
                part = part[os.write(made, part) :]
    return True


def _has_second_name(source: str, folder: int | None, target: str) -> bool:
    """Gives the file `source` in an open folder, or behind a kernel's link, a second name. False if that is impossible."""
    with opened(
        "/", _DIRECTORY
    ) as root:  # with a descriptor, Python calls linkat(2), which alone follows links
        try:
            from_folder = root if folder is None else folder
            os.link(source, target, src_dir_fd=from_folder, dst_dir_fd=root, follow_symlinks=folder is None)
        except OSError:
            return False
    return True


def copy_objects(git: str, place: str) -> None:
    """Gives the objects and the packs of a git directory second names in the new directory `place`. Raises OSError, and ReplacedError
    if a link is in the place of the git directory, of its objects, or of one of them.
    """
    os.mkdir(place, 0o700)
    objects = f"{git}/objects"
    with ExitStack() as stack:
        held = _opened_folder_of_objects(git, objects, stack)
        for folder in _entries(held, objects):
            if _WITH_OBJECTS.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
                os.mkdir(f"{place}/{folder.name}", 0o700)
                with opened(folder.name, _DIRECTORY, dir_fd=held) as inner:
                    for entry in _entries(inner, f"{objects}/{folder.name}"):
                        _take_object(inner, entry.name, f"{place}/{folder.name}/{entry.name}")


def _opened_folder_of_objects(git: str, objects: str, stack: ExitStack) -> int:
    try:
        directory = stack.enter_context(opened(git, _DIRECTORY))
        return stack.enter_context(opened("objects", _DIRECTORY, dir_fd=directory))
    except OSError as error:
        if error.errno in _ABSENT:
            raise ReplacedError(objects) from None
        raise


def _entries(folder: int, named: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as listing:
        for entry in listing:
            if entry.is_symlink():
                raise ReplacedError(f"{named}/{entry.name}")
            yield entry


def _take_object(folder: int, name: str, target: str) -> None:
    if not _has_second_name(name, folder, target):
        with opened(name, _FILE, dir_fd=folder) as source:
            _is_file_copied(source, target)
    elif not stat.S_ISREG(os.lstat(target).st_mode):  # nobody exchanges the second name
        os.unlink(target)
