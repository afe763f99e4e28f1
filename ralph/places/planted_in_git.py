"""Finds what commands planted in the git directories of the roots for the user's own git: symbolic links, through which it writes
elsewhere, and entries of an index that it would write outside the working tree or into a git directory. It runs no program.
"""

from __future__ import annotations

import os
import re
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import closed_after, read_regular_file, replace_at
from ralph.machine.files.paths import (
    HELD_DIRECTORY,
    beginning_of,
    common_directory,
    directories_above,
    entries_in,
    is_within_any,
)
from ralph.places.gather import GuardedFiles
from ralph.places.git_places import entries_below, is_ref, links_in, own_entries
from ralph.places.named_paths import first_of, shown_path
from ralph.places.places import IGNORED_CHARACTERS
from ralph.places.table import COMPARED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ralph.places.git_places import GitPlaces

_INDEX = re.compile(r"index|sharedindex\.\w+")
# Git replaces these, or writes into them only what is not there; programs for it link them to save room. A changed `config` is undone.
_NEVER_WRITTEN_IN_PLACE = ("objects/", "lfs/", "annex/", "refs/", "config")
_MOST_INDEX_BYTES = 256 * 1024 * 1024
_HAS_LONG_IDS = re.compile(rb"(?im)^[ \t]*objectformat[ \t]*=[ \t]*\"?sha256")
# gitformat-index(5): the bytes of an entry before the name of its object, and its flags.
_BEFORE_ID = 40
_EXTENSIONS = frozenset((b"TREE", b"REUC", b"link", b"UNTR", b"FSMN", b"EOIE", b"IEOT", b"sdir"))
_EXTENDED, _LENGTH = 0x4000, 0xFFF
_COMPRESSED = 4
_DOT_GIT = re.compile(r"(?:\.git|git~1)[. ]*(?:[\\:]|\Z)")
_TICK_NS = 20_000_000


def planted_in_git(roots: Sequence[str], since_s: float, places: GitPlaces) -> str:
    """Removes the links that were made since a time, in seconds of the epoch, in the git directories `places` of the roots, and
    returns a sentence for people about them and about changed indexes. Empty if nothing was found.
    """
    # One in a root was granted when commands wrote there, whatever they have made of it.
    outer = [one for one in places.claimed if one in places.granted or is_within_any(one, roots)]
    found = [(one, _links_of(one)) for one in GuardedFiles(COMPARED, (), outer).git_directories]
    parts = [(one, _links_among(entries_below(one))) for one in places.parts if not one.endswith("/objects")]
    objects = [(one, links_in(one)) for one in places.parts if one.endswith("/objects")]
    return _planted((*found, *parts, *objects), since_s, ())


def planted_below(directories: Sequence[str], since_s: float, guarded: Sequence[str]) -> str:
    """As `planted_in_git`, for the git directories of repositories below the roots. A link to the same entry of another one,
    or of a `guarded` one, stays, as `repo` and git-new-workdir make them.
    """
    found = GuardedFiles(COMPARED, (), directories).git_directories
    return _planted([(one, _links_of(one)) for one in found], since_s, (*found, *guarded))


def _planted(directories: Iterable[tuple[str, Iterator[str]]], since_s: float, others: Sequence[str]) -> str:
    since_ns = int(since_s * 1e9) - _TICK_NS
    removed, separated, indexes, closed = list[str](), list[str](), list[str](), list[str]()
    for directory, links in directories:
        try:
            for link in links:
                try:
                    told_as = _taken_away(link, directory, since_ns, others)
                except OSError as error:  # of one that stays: the others must not stay with it
                    closed.append(f"{shown_path(link)} ({error.strerror})")
                    continue
                if told_as:
                    (removed if not os.path.lexists(link) else separated).append(told_as)
            for entry in entries_in(directory, lambda one: _INDEX.fullmatch(one.name) is not None):
                if entry.is_file(follow_symlinks=False) and entry.stat().st_ctime_ns >= since_ns:
                    indexes += [f"{shown_path(entry.path)} ({fault})" for fault in _faults_of(entry.path)]
        except OSError as error:
            closed.append(f"{shown_path(error.filename or directory)} ({error.strerror})")
    told = {
        "links made in git directories, through which git writes elsewhere, are removed: {}": removed,
        "files in git directories had further names, through which git writes elsewhere, and are copies now: {}": separated,
        "git would write what it must not because of {}: remove the index, and make it anew by git reset": indexes,
        "git's own directories could not be looked through: {}": closed,
    }
    return "; ".join(text.format(first_of(found)) for text, found in told.items() if found)


def _taken_away(link: str, directory: str, since_ns: int, others: Sequence[str]) -> str:
    """Removes a symbolic link in a git directory, or makes a hard one a copy, if it was made since then. Returns its path for people,
    with the target of a symbolic one, or an empty text if it stays. Raises OSError.
    """
    is_hard = not os.path.islink(link)
    target = "" if is_hard else os.readlink(link)
    is_head = os.path.basename(link) == "HEAD" and is_ref(target)
    # A folder that was moved there brings old links.
    way = (one for one in (link, *directories_above(link)) if one.startswith(f"{directory}/"))
    if is_head or all(os.lstat(one).st_ctime_ns < since_ns for one in way):
        return ""
    if is_hard:
        _separate(link)
        return shown_path(link)
    real, inside = os.path.realpath(link), link[len(directory) :]
    if any(real == f"{one}{inside}" for one in others):
        return ""
    os.unlink(link)
    return f"{shown_path(link)} (to {shown_path(target)})"


def _links_of(directory: str) -> Iterator[str]:
    """The links where git writes in a git directory. What is in `hooks` is guarded elsewhere."""
    return _links_among(own_entries(directory, ("hooks",), with_objects=False), directory)


def _links_among(entries: Iterable[os.DirEntry[str]], directory: str = "") -> Iterator[str]:
    """The symbolic links among entries, and the files with more than one name, into which git may write."""
    unwritten = tuple(f"{directory}/{name}" for name in _NEVER_WRITTEN_IN_PLACE)
    for entry in entries:
        is_file = entry.is_file(follow_symlinks=False)
        may_be_shared = is_file and not (directory and entry.path.startswith(unwritten))
        if entry.is_symlink() or (may_be_shared and entry.stat(follow_symlinks=False).st_nlink > 1):
            yield entry.path


def separate_logs(directories: Iterable[str]) -> None:
    """Gives the files with more than one name in the `logs` of git directories inodes of their own: git appends to them. Raises
    OSError.
    """
    for directory in directories:
        for path in _links_among(entries_below(f"{directory}/logs")):
            if not os.path.islink(path):
                _separate(path)


def _separate(path: str) -> None:
    """Gives a file with more than one name an inode of its own, with the same content. Raises OSError."""
    content = read_regular_file(path, _MOST_INDEX_BYTES, 0)
    held = os.open(os.path.dirname(path), HELD_DIRECTORY | os.O_NOFOLLOW)
    with closed_after(held):
        replace_at(held, os.path.basename(path), content, os.lstat(path))


def _faults_of(index: str) -> Iterator[str]:
    """The first name in an index that git must not write, as text. One that cannot be read is a fault itself."""
    above = os.path.dirname(index)
    with suppress(FileNotFoundError):
        configuration = f"{common_directory(above) or above}/config"
        is_long = _HAS_LONG_IDS.search(beginning_of(configuration)) is not None
        content = read_regular_file(index, _MOST_INDEX_BYTES, 0)
        try:
            names = map(os.fsdecode, names_in_index(content, 32 if is_long else 20))
            # Entries that replace those of a shared index have no names.
            is_split = b"link" in content
            found = next((one for one in names if not (may_be_written(one) or (is_split and not one))), None)
        except (ValueError, IndexError, struct.error):
            found = "it is damaged"
        if found is not None:
            yield shown_path(found)


def names_in_index(content: bytes, id_bytes: int) -> Iterator[bytes]:
    """The names of the entries of an index with versions 2 to 4 (gitformat-index(5)). Raises ValueError, IndexError or
    struct.error if it is not as git writes it.
    """
    version, count = struct.unpack_from(">4xLL", content)
    at, name, starts = 12, b"", set[int]()
    for _ in range(count):
        start, at = at, at + _BEFORE_ID + id_bytes
        starts.add(start)
        (flags,) = struct.unpack_from(">H", content, at)
        at += 4 if flags & _EXTENDED else 2
        kept = b""
        if version == _COMPRESSED:
            left_out = (byte := content[at]) & 127
            at += 1
            while byte & 128:
                byte = content[at]
                left_out = (left_out + 1 << 7) | byte & 127
                at += 1
            kept = name[: max(len(name) - left_out, 0)]
        end = content.index(b"\0", at)
        name = kept + content[at:end]
        if min(len(name), _LENGTH) != flags & _LENGTH:
            raise ValueError("the length of a name is wrong")
        yield name
        at = end + 1 if version == _COMPRESSED else start + (end - start + 8) // 8 * 8
    entries_end = at
    while at < len(content) - id_bytes:
        kind, size = struct.unpack_from(">4sL", content, at)
        data, at = content[at + 8 : at + 8 + size], at + 8 + size
        # From these git takes where entries begin.
        blocks = {begin for begin, _ in struct.iter_unpack(">LL", data[4:])} if kind == b"IEOT" else set()
        ends = struct.unpack_from(">L", data) if kind == b"EOIE" else (entries_end,)
        if kind not in _EXTENSIONS or not blocks <= starts or ends != (entries_end,):
            raise ValueError("an extension is not as git writes it")


def may_be_written(name: str) -> bool:
    """Whether git takes a name into an index: none of its parts is empty, `.`, `..` or `.git`, or a name of the last one on some file
    systems (verify_path in git's read-cache.c, is_ntfs_dotgit in its path.c).
    """
    parts = name.removesuffix("/").translate(IGNORED_CHARACTERS).lower().split("/")
    return {"", ".", ".."}.isdisjoint(parts) and not any(map(_DOT_GIT.match, parts))
