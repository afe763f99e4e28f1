"""Searches the objects of commits for credentials that this process knows. It reads whole objects and no diffs, because git's
attributes, a NUL byte or a merge would hide a part of these.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.git.answer import CheckoutError, shown
from ralph.git.large_files import path_in, pointer_in
from ralph.git.runner import MOST_OUTPUT_BYTES, nul_ended
from ralph.machine.files.opened_file import open_regular_file
from ralph.values.screen_text import bare

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from ralph.git.runner import Git
    from ralph.values.redaction import Redactor

# A commit that somebody replaces or cuts off by a graft is sent as it is.
FOR_ALL = ("--no-replace-objects",)
_NO_GRAFTS = {"GIT_GRAFT_FILE": os.devnull}
CHANGES = ("-r", "--root", "--no-renames", "--ignore-submodules=dirty", "--raw", "--no-abbrev", "-z")
# The ids of commits of submodules, and of nothing, are no objects of the repository.
_CHANGE = re.compile(
    rb":(?:160000|(?P<has_old>\d+)) (?:160000|(?P<has_new>\d+)) (?:0+|(?P<old>[0-9a-f]+)) (?:0+|(?P<new>[0-9a-f]+)) [A-Z]\d*"
)
_BATCH_BYTES = 16 * 1024 * 1024
"""So much is read from git at once, unless one object is larger."""
# Signals are heard after each piece. A credential that begins in one piece is whole in the next.
_PIECE_BYTES = 1024 * 1024
_OVERLAP_BYTES = 64 * 1024


class ChangedPath(Struct, frozen=True):
    """A path at which a commit or a tree has another object. An id is empty if nothing or a submodule is there."""

    commit: str
    path: str
    old: str
    new: str

    @property
    def objects(self) -> tuple[str, ...]:
        """The ids of the contents before and after."""
        return tuple(filter(None, (self.old, self.new)))


def paths_with_new_credentials(
    git: Git, before: str, after: str, redactor: Redactor, storage: Path
) -> list[str]:
    """The files of the tree `after` that hold a secret which `redactor` knows, in their content or name, where the tree `before` does
    not. git-lfs keeps large files in `storage`. Raises CheckoutError, Interrupted and OSError.
    """
    changes = changes_in(_whole(git, "diff-tree", *CHANGES, before, after))
    return [change.path for change in _with_new_secrets(git, changes, redactor, storage)]


def take_changes_out(
    index: Git, repository: Git, head: str, paths: Sequence[str], variables: Mapping[str, str] | None = None
) -> None:
    """Gives the index what the commit `head` has at the paths: nothing for a new file. `head` is empty before the first commit.
    `variables` choose the index. Raises CheckoutError and Interrupted.
    """
    index.change(
        *("update-index", "--force-remove", "-z", "--stdin"), given=nul_ended(paths), variables=variables
    )
    if head:
        lines = repository.read("ls-tree", "-r", "-z", "--full-tree", head, "--", *paths)
        index.change("update-index", "-z", "--index-info", given=lines, variables=variables)


def why_not_pushed(
    git: Git, head: str, known: Iterable[str], redactor: Redactor, storage: Path
) -> str | None:
    """Why a push must not bring the commits of `head` without `known`: one of them brings a secret which `redactor` knows. None if
    none does. `storage` is as above. Raises CheckoutError, Interrupted and OSError.
    """
    given = "".join((f"{head}\n", *(f"^{one}\n" for one in known))).encode()
    listed = ("rev-list", "--ignore-missing", "--reverse", "--stdin")
    commits = _whole(git, *listed, given=given, variables=_NO_GRAFTS)
    objects = ("--objects", "--no-object-names", "--missing=allow-any")
    brought = set(_whole(git, *listed, *objects, given=given, variables=_NO_GRAFTS).decode().split())
    # A merge differs from one of its parents by what the other one brought.
    told = _whole(git, "diff-tree", "--stdin", "-m", *CHANGES, given=commits, variables=_NO_GRAFTS)
    changes = [one for one in changes_in(told) if one.new in brought or redactor.spans(one.path)]
    with_secrets = [*_with_new_secrets(git, changes, redactor, storage)]
    messages = secrets_of(git, commits.decode().split(), redactor)
    for commit in commits.decode().split():
        paths = {redactor.redact(one.path) for one in with_secrets if one.commit == commit}
        if paths or commit in messages:
            place = shown(sorted(paths)) or "its message"
            return (
                f"commit {commit[:12]} holds a credential that ralph knows ({place}) and is not pushed: take it out of the "
                "history, or push it yourself"
            )
    return None


def _whole(git: Git, *arguments: str, **options: Any) -> bytes:
    """The output of git. Raises CheckoutError if it is so long that it is cut off: what is not searched is not published."""
    output = git.change(*arguments, **options)
    if len(output) >= MOST_OUTPUT_BYTES:
        raise CheckoutError(f"git {arguments[0]} lists more than can be searched for credentials")
    return output


def changes_in(output: bytes) -> list[ChangedPath]:
    """The changed files in the output of `git diff-tree --raw -z`. With `--stdin`, a line with its id precedes those of a commit."""
    found: list[ChangedPath] = []
    commit = ""
    parts = iter(output.split(b"\0"))
    for part in parts:
        if (change := _CHANGE.fullmatch(part)) is None:
            commit = part.decode()
            continue
        old, new = (change[one] if change[f"has_{one}"] else None for one in ("old", "new"))
        found.append(
            ChangedPath(commit, os.fsdecode(next(parts, b"")), (old or b"").decode(), (new or b"").decode())
        )
    return found


def _with_new_secrets(
    git: Git, changes: Collection[ChangedPath], redactor: Redactor, storage: Path
) -> Iterator[ChangedPath]:
    """Yields the changes that bring a secret to a file or to a name."""
    found = secrets_of(git, {one.new for one in changes}, redactor, storage)
    replaced = secrets_of(git, {one.old for one in changes if one.new in found}, redactor, storage)
    for one in changes:
        is_named = bool(not one.old and redactor.spans(one.path))
        if is_named or found.get(one.new, frozenset()) - replaced.get(one.old, frozenset()):
            yield one


def secrets_of(
    git: Git, identifiers: Iterable[str], redactor: Redactor, storage: Path | None = None
) -> dict[str, frozenset[str]]:
    """The secrets in each of these objects that has any, or in the large file of git-lfs in `storage` for which one stands. Raises
    CheckoutError, Interrupted and OSError.
    """
    found: dict[str, frozenset[str]] = {}
    for identifier, piece in _pieces(git, identifiers):
        secrets = _secrets_in(git, piece, redactor)
        if storage is not None and (large := pointer_in(piece)):
            secrets = secrets.union(
                *(_secrets_in(git, one, redactor) for one in _large_file(path_in(storage, large)))
            )
        if secrets:
            found[identifier] = secrets | found.get(identifier, frozenset())
    return found


def _pieces(git: Git, identifiers: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yields the contents of objects, longer ones in several pieces. A partial clone lacks some: these are not the work's."""
    batch: list[str] = []
    size = 0
    for identifier, its_size in sizes_of(git, identifiers).items():
        if batch and size + its_size > _BATCH_BYTES:
            yield from _contents(git, batch)
            batch, size = [], 0
        batch.append(identifier)
        size += its_size
    if batch:
        yield from _contents(git, batch)


def sizes_of(git: Git, identifiers: Iterable[str]) -> dict[str, int]:
    """The sizes of objects in bytes, without those that the repository lacks. Raises CheckoutError and Interrupted."""
    given = "".join(f"{one}\n" for one in identifiers if one).encode()
    lines = (
        git.read("cat-file", "--batch-check=%(objectname) %(objectsize)", given=given).decode().split("\n")
    )
    both = [line.split(" ") for line in lines if line]
    return {identifier: int(size) for identifier, size in both if size.isdigit()}


def _contents(git: Git, identifiers: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    given = "".join(f"{one}\n" for one in identifiers).encode()
    with tempfile.TemporaryFile() as contents:
        git.read("cat-file", "--batch", given=given, output_to=contents.fileno())
        contents.seek(0)
        while line := contents.readline():
            identifier, _, size = line.decode().split(" ")
            for piece in _pieces_of(contents, int(size)):
                yield identifier, piece
            contents.read(1)


def _large_file(path: Path) -> Iterator[bytes]:
    with suppress(OSError):  # git-lfs uploads no such file
        descriptor = open_regular_file(path, os.O_RDONLY | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            yield from _pieces_of(file, os.fstat(descriptor).st_size)


def _pieces_of(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yields a file's content in pieces that overlap, so that a credential across a border is whole in one of them, also if it is
    long because of characters that hide it.
    """
    kept = b""
    while size > 0 and (piece := file.read(min(size, _PIECE_BYTES))):
        size -= len(piece)
        yield (whole := kept + piece)
        if size > 0:
            before = bare(whole[:-_OVERLAP_BYTES].decode("utf-8", "replace"))
            kept = before[-_OVERLAP_BYTES:].encode("utf-8", "replace") + whole[-_OVERLAP_BYTES:]


def _secrets_in(git: Git, content: bytes, redactor: Redactor) -> frozenset[str]:
    waiter = git.seams.waiter
    waiter.sleep(0, waiting_for="the search for credentials")
    if waiter.stop_left_s() <= 0:
        raise CheckoutError("there is no time left to search for credentials")
    return redactor.secrets_in(content.decode("utf-8", "replace"))
