"""Asks git for the files and diffs of commits, and looks in them for secrets that this process knows, so that a page that is
made later can leave out what holds them.
"""

from __future__ import annotations

import os
import re
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from ralph.git.answer import CheckoutError
from ralph.git.credentials import CHANGES, changes_in, secrets_of, sizes_of
from ralph.git.runner import CheckoutGit, GitSeams
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.files.paths import repository_top
from ralph.machine.own_programs import search_outside, without_unsafe_loads
from ralph.values.outcome import ShortageError
from ralph.values.ports import Interrupted
from ralph.values.redaction import LookedCommit

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ralph.git.credentials import ChangedPath
    from ralph.git.runner import Git
    from ralph.values.ports import Clock, Waiter
    from ralph.values.redaction import Redactor

MOST_COMMITS = 300
"""The maximum number of commits on a page. No more are looked through at once. If there are more, these are the last ones."""
_MOST_SEARCHED_BYTES = 128 * 1024 * 1024
_LIMITS = {"most_bytes": 16 * 1024 * 1024, "limit_s": 20.0}
AS_STORED = {"variables": {"GIT_GRAFT_FILE": os.devnull}}
"""Git compares commits with no other parents than those that they name themselves."""

_ID_LINE = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_DIFF = b"diff --git "
# The first four options keep git from running programs of the repository. The others undo settings that change the
# form of a diff.
PLAINLY = (
    *("--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty", "--submodule=short"),
    *("--no-renames", "--no-color", "--src-prefix=a/", "--dst-prefix=b/"),
)
# A push sends the commits themselves, whatever `git replace` shows in their place. Larger files are compared as binary
# files, because git needs three times their size for a text.
FOR_ALL = ("--no-replace-objects", "-c", "core.bigFileThreshold=16m")
DIFF_OF_EACH = ("diff-tree", "--stdin", "-r", "--root", *PLAINLY)

NumberedFile = tuple[str, int | None, int | None]
"""The path of a file, and its added and removed lines. The numbers are None for a binary file."""


def look_through(git: Git, revisions: Sequence[str], redactor: Redactor) -> tuple[LookedCommit, ...]:
    """Looks through the commits that git-rev-list(1) finds for `revisions`, the oldest first, and says where secrets are
    that `redactor` knows. Git's attributes decide what a later diff shows, so a file counts with its whole content. Commits behind a
    limit of number, bytes or time, or with files that a partial clone lacks, are not in the result. Raises CheckoutError, Interrupted
    and OSError.
    """
    options = ("--reverse", "--topo-order", f"--max-count={MOST_COMMITS}", "--ignore-missing")
    contents = contents_of(
        git, git.read("rev-list", *options, *revisions, **_LIMITS).decode().split(), **_LIMITS
    )
    if not contents:
        return ()
    listed = with_parents(git, contents)
    output = git.change("diff-tree", "--stdin", *CHANGES, given=listed, **_LIMITS, **AS_STORED)
    found = changes_in(output)
    commits = [line.split()[0] for line in listed.decode().splitlines()]
    if (
        len(output) >= _LIMITS["most_bytes"]
    ):  # the last one may be incomplete, and those behind it had no turn
        commits = commits[: commits.index(found[-1].commit)] if found else []
    changes: dict[str, list[ChangedPath]] = {one: [] for one in commits}
    for change in found:
        if change.commit in changes:
            changes[change.commit].append(change)
    sizes = sizes_of(git, {one for its in changes.values() for change in its for one in change.objects})
    whole = [*_within(changes, sizes)]
    holding = secrets_of(
        git, {one for each in whole for change in changes[each] for one in change.objects}, redactor
    )
    return tuple(
        _looked(one, contents[one].partition(b"\n\n")[2], changes[one], holding.keys(), redactor)
        for one in whole
    )


def _within(changes: Mapping[str, Sequence[ChangedPath]], sizes: Mapping[str, int]) -> Iterator[str]:
    """Yields commits until the limit of bytes, or until one whose files are not all there."""
    seen: set[str] = set()
    for commit, its in changes.items():
        seen.update(one for change in its for one in change.objects)
        if not seen <= sizes.keys() or sum(map(sizes.__getitem__, seen)) > _MOST_SEARCHED_BYTES:
            return
        yield commit


def _looked(
    identifier: str, message: bytes, changes: Sequence[ChangedPath], found: Container[str], redactor: Redactor
) -> LookedCommit:
    # The paths are recorded, so even what only looks like a key must not be in them.
    has_names = any(redactor.redact_all(change.path) != change.path for change in changes)
    files = [] if has_names else [one.path for one in changes if any(each in found for each in one.objects)]
    is_secret = bool(redactor.spans(message.decode("utf-8", "replace")))
    return LookedCommit(identifier, tuple(files), is_secret, has_names)


def contents_of(git: Git, commits: Iterable[str], **limits: Any) -> dict[str, bytes]:
    """The stored content of each of these commits, without those that the repository lacks. `limits` are as in `Git.call`. Raises
    CheckoutError and Interrupted.
    """
    output = git.read("cat-file", "--batch", given="".join(f"{one}\n" for one in commits).encode(), **limits)
    found: dict[str, bytes] = {}
    at = 0
    while (end := output.find(b"\n", at)) >= 0:
        fields = output[at:end].split(b" ")
        if len(fields) != 3 or not fields[2].isdigit():  # it is missing
            at = end + 1
            continue
        size = int(fields[2])
        if end + 1 + size > len(output):  # it is cut off
            break
        found[fields[0].decode()] = output[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return found


def with_parents(git: Git, contents: Mapping[str, bytes]) -> bytes:
    """The commits as `git diff-tree --stdin` takes them, each with the parents that are stored in it: a fetch, or a command, may
    have changed what git takes for its parents. Without commits whose parents are missing. Raises CheckoutError and Interrupted.
    """
    parents = {
        commit: [
            line[7:].decode()
            for line in content.partition(b"\n\n")[0].split(b"\n")
            if line.startswith(b"parent ")
        ]
        for commit, content in contents.items()
    }
    known = sizes_of(git, {one for its in parents.values() for one in its})
    lines = (" ".join((commit, *its)) + "\n" for commit, its in parents.items() if known.keys() >= {*its})
    return "".join(lines).encode()


def files_in(output: bytes) -> dict[str, list[NumberedFile]]:
    """The files of each commit in the output of `git diff-tree --stdin --numstat -z`. Names may have line breaks."""
    found: dict[str, list[NumberedFile]] = {}
    current: list[NumberedFile] = []
    for part in output.split(b"\0"):
        if _ID_LINE.fullmatch(part):
            current = found.setdefault(part.decode(), [])
        elif part:
            current += numbers_in(part)
    return found


def numbers_in(output: bytes) -> list[NumberedFile]:
    """The path, the added lines and the removed lines of each file in the output of `--numstat -z`."""
    found = []
    for part in output.split(b"\0"):
        added, tab, rest = part.partition(b"\t")
        removed, other_tab, path = rest.partition(b"\t")
        if tab and other_tab:
            found.append((os.fsdecode(path), _number(added), _number(removed)))
    return found


def _number(text: bytes) -> int | None:
    return int(text) if text.isdigit() else None


def diffs_in(output: bytes) -> dict[str, dict[str, bytes]]:
    """The diff of each file of each commit in the output of `git diff-tree --stdin -p`, without headers. The two diffs of a file
    whose type has changed are joined. No line of a file looks like a header, as it begins with a space, a sign or a
    backslash, and no name does, as git quotes those with line breaks.
    """
    found: dict[str, dict[str, list[bytes]]] = {}
    files: dict[str, list[bytes]] = {}
    lines: list[bytes] = []
    is_header = True
    for line in output.split(b"\n"):
        if _ID_LINE.fullmatch(line):
            files, lines = found.setdefault(line.decode(), {}), []
        elif line.startswith(_DIFF):
            lines, is_header = files.setdefault(_path_in(line), []), True
        elif not is_header or line.startswith(b"@@"):
            is_header = False
            lines.append(line)
    return {
        identifier: {path: b"\n".join(its) for path, its in each.items()}
        for identifier, each in found.items()
    }


def _path_in(header: bytes) -> str:
    """The path in a line `diff --git a/PATH b/PATH`. Both are the same, because nothing is taken for a renamed file."""
    both = header.removeprefix(_DIFF)
    name = both[: len(both) // 2]
    if name.startswith(b'"'):
        name = name[1:-1].decode("unicode_escape", "replace").encode("latin-1", "replace")
    return os.fsdecode(name.removeprefix(b"a/"))


def look_through_since(
    cwd: Path,
    since_s: float,
    environment: Mapping[str, str],
    redactor: Redactor,
    *,
    waiter: Waiter,
    clock: Clock,
    writable: tuple[str, ...] = (),
) -> tuple[LookedCommit, ...]:
    """Looks through the commits of the current branch since `since_s`, in seconds of the epoch. `environment` is that of
    commands, without credentials. No git is used from `writable`, the places that commands may write.
    """
    # A page leaves out the commits that could not be looked through, and says so.
    with suppress(CheckoutError, ShortageError, OSError, Interrupted):
        top = repository_top(cwd)
        if top is None:
            return ()
        safe = without_unsafe_loads(environment, search_outside(environment, (top, *writable)))
        with closing(CommandSupervisor(safe, most_processes=0)) as supervisor:
            seams = GitSeams(environment, supervisor, waiter, clock, writable=writable)
            git = CheckoutGit(top, seams, FOR_ALL)
            if git.resolved("HEAD") is not None:
                return look_through(git, [f"--since=@{int(since_s)}", "HEAD"], redactor)
    return ()
