"""Finds the large files of Git LFS that a push must bring too: a commit has only a pointer to each. `git push` would upload
them in a hook, and ralph runs no hooks. `ralph.git.remote.upload` uploads them. Nothing here contacts a remote.
"""

from __future__ import annotations

import os
import re
import tempfile
from typing import TYPE_CHECKING

from ralph.git.answer import CheckoutError, shown
from ralph.git.filters import filters_of
from ralph.places.git_config import LFS_STORAGE, settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from ralph.git.runner import Git

FILTER = "lfs"
# A pointer is shorter than this (Git LFS specification, docs/spec.md).
_MOST_POINTER_BYTES = 1024
_POINTER = re.compile(
    rb"version https?://(?:git-lfs\.github\.com|hawser\.github\.com|git-media\.io)/[^\n]*\n(?:[^\n]*\n)*?"
    rb"oid sha256:(?P<id>[0-9a-f]{64})\n"
)
_SMALL_FILES = (
    *("rev-list", "--objects", "--ignore-missing", "--missing=allow-any", "--filter-provided-objects"),
    f"--filter=combine:object:type=blob+blob:limit={_MOST_POINTER_BYTES}",
    "--stdin",
)
_CONFIGURATION = ".lfsconfig"


def has_tracked(git: Git, values: Mapping[str, str], storage: Path) -> bool:
    """Whether git tracks a file of git-lfs, by the settings `values` or `storage`. Raises CheckoutError and Interrupted."""
    is_set = any(values.get(f"filter.{FILTER}.{key}") for key in ("clean", "process"))
    tracked = ("ls-files", "-z", "--", f":(top,attr:filter={FILTER})")
    return (is_set or storage.is_dir()) and bool(git.read(*tracked))


def is_elsewhere(values: Mapping[str, str]) -> bool:
    """Whether git settings have git-lfs keep its files in another place than `LFS_STORAGE`."""
    return values.get(*LFS_STORAGE) != LFS_STORAGE[1]


def path_in(storage: Path, identifier: str) -> Path:
    """Where git-lfs keeps the large file with this id, 64 hexadecimal digits."""
    return storage / "objects" / identifier[:2] / identifier[2:4] / identifier


def large_files(git: Git, commit: str, known: Iterable[str]) -> dict[str, str]:
    """The ids of the large files whose pointers the history of `commit` has, and that of the commits `known` has not, each with
    a path. Of `known`, the repository may lack some. Raises CheckoutError and Interrupted.
    """
    revisions = "".join((f"{commit}\n", *(f"^{one}\n" for one in known))).encode()
    found: dict[str, str] = {}
    with tempfile.TemporaryFile() as listed, tempfile.TemporaryFile() as contents:
        git.read(*_SMALL_FILES, given=revisions, output_to=listed.fileno())
        listed.seek(0)
        batch = ("cat-file", "--batch=%(objectsize) %(rest)")
        git.read(*batch, input_from=listed.fileno(), output_to=contents.fileno())
        contents.seek(0)
        for path, content in _contents(contents):
            if identifier := pointer_in(content):
                found.setdefault(identifier, path)
    return found


def pointer_in(content: bytes) -> str | None:
    """The id of the large file for which a file with this content stands, or None if it is no pointer."""
    found = _POINTER.match(content) if len(content) < _MOST_POINTER_BYTES else None
    return found["id"].decode() if found else None


def _contents(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Yields the path and the content of each file in the output of `git cat-file --batch`."""
    while line := file.readline():
        size, _, path = line.removesuffix(b"\n").partition(b" ")
        if size.isdigit():  # otherwise a partial clone lacks the file
            yield os.fsdecode(path), file.read(int(size) + 1)


def refuse_missing(git: Git, commit: str, found: Mapping[str, str], storage: Path) -> list[str]:
    """The ids of those of the large files that are in `storage`. Raises CheckoutError if another one belongs to git-lfs by the
    attributes in the commit, and is not text that only looks like a pointer. Raises Interrupted.
    """
    missing = {one: path for one, path in found.items() if not path_in(storage, one).is_file()}
    lost = []
    if missing:
        index = {"GIT_INDEX_FILE": f"{git.environment['GIT_DIR']}/attributes"}
        git.change("read-tree", commit, variables=index)
        filters = filters_of(git, missing.values(), "--cached", variables=index)
        lost = [path for path, name in filters.items() if name == FILTER]
    if lost:
        raise CheckoutError(
            f"what the pointers of git-lfs at {shown(lost)} stand for is not in {storage}, so that no clone could check it "
            "out; git lfs fetch --all gets it, if a remote has it"
        )
    return [one for one in found if one not in missing]


def refuse_own_address(git: Git, commit: str, remote: str, values: Mapping[str, str]) -> None:
    """Raises CheckoutError if a commit's `.lfsconfig` says where large files go and git's configuration `values` do not:
    git-lfs would send them, and the user's password, where a file of the repository says. Raises Interrupted.
    """
    answer = git.answer("cat-file", "blob", f"{commit}:{_CONFIGURATION}")
    named = dict(settings(answer.output)) if not answer.status else {}
    for name in address_names(remote):
        if name in named and name not in values:
            raise CheckoutError(
                f"{_CONFIGURATION} says where large files go ({name}), and no file of the repository decides that for ralph; "
                f"if you trust it, say it yourself: git config {name} URL"
            )


def address_names(remote: str) -> tuple[str, ...]:
    """The settings that name the server of large files, in the order in which git-lfs takes them for an upload."""
    return "lfs.pushurl", "lfs.url", f"remote.{remote}.lfspushurl", f"remote.{remote}.lfsurl"
