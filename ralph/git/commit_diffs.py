"""Asks git for the files and diffs of commits, and looks in them for secrets that this process knows, so that a page that is
made later can leave out what holds them.
"""

from __future__ import annotations

import os
import re
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from ralph.git.answer import CheckoutError, shown
from ralph.git.runner import CheckoutGit, GitSeams
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.files.repository import repository_top
from ralph.machine.own_programs import search_outside, without_unsafe_loads
from ralph.values.ports import Interrupted
from ralph.values.redaction import LookedCommit
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ralph.git.runner import Git
    from ralph.values.ports import Clock, Waiter
    from ralph.values.redaction import Redactor

MOST_COMMITS = 300
"""The maximum number of commits on a page. No more are looked through at once. If there are more, these are the last ones."""
_MOST_LOOKED_BYTES = 16 * 1024 * 1024
_LOOK_LIMIT_S = 20.0

_ID_LINE = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_ANY_ID = b"0" * 40
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
    that `redactor` knows. `git` has the options `FOR_ALL`. Commits behind a limit of number, bytes or time are not in the
    result. Raises CheckoutError and Interrupted.
    """
    messages = _messages(git, *revisions)
    if not messages:
        return ()
    given = "".join(f"{one}\n" for one in messages).encode()
    output = _bounded(git, *DIFF_OF_EACH, "-p", given=given)
    diffs = diffs_in(output)
    whole = [*messages]
    if len(output) >= _MOST_LOOKED_BYTES:
        # The last diff may be incomplete. Merges have none, so nobody knows whether commits before it had their turn.
        whole = [*diffs][:-1]
    return tuple(_looked(one, messages[one], diffs.get(one, {}), redactor) for one in whole)


def _messages(git: Git, *revisions: str, given: bytes | None = None) -> dict[str, bytes]:
    """The message of each commit, the oldest first."""
    options = ("--reverse", "--topo-order", f"--max-count={MOST_COMMITS}", "--ignore-missing")
    output = _bounded(git, "rev-list", *options, "--format=%B%x00", *revisions, given=given)
    parts = [part.removeprefix(b"commit ").partition(b"\n") for part in output.split(b"\0\n")[:-1]]
    return {identifier.decode(): message for identifier, _, message in parts}


def paths_with_new_credentials(git: Git, before: str, after: str, redactor: Redactor) -> list[str]:
    """The files of the tree `after` that hold a secret which `redactor` knows, in a line or a name that the tree `before` lacks. `git`
    is as in `look_through`, with the same limits. Raises CheckoutError and Interrupted.
    """
    words = ("-r", *PLAINLY, "--diff-filter=d", "-p", before, after)
    diffs = diffs_in(b"".join((_ANY_ID, b"\n", _bounded(git, "diff-tree", *words)))).values()
    return [path for files in diffs for path, diff in files.items() if _adds_secret(path, diff, redactor)]


def why_not_pushed(git: Git, head: str, known: Sequence[str], redactor: Redactor) -> str | None:
    """Why a push must not bring the commits of `head` without `known`: one of them brings a secret which `redactor` knows. None if
    none does. `git` and the limits are as in `look_through`. Raises CheckoutError and Interrupted.
    """
    given = "".join((f"{head}\n", *(f"^{one}\n" for one in known))).encode()
    messages = _messages(git, "--stdin", given=given)
    commits = "".join(f"{one}\n" for one in messages).encode()
    output = _bounded(git, *DIFF_OF_EACH, "--diff-filter=d", "-p", given=commits) if messages else b""
    diffs = diffs_in(output)
    for one, message in messages.items():
        found = [path for path, diff in diffs.get(one, {}).items() if _adds_secret(path, diff, redactor)]
        if found or _holds_secret(message, redactor):
            place = shown(sorted(map(redactor.redact, found))) or "its message"
            return (
                f"commit {one[:12]} holds a credential that ralph knows ({place}) and is not pushed: take it out of the "
                "history, or push it yourself"
            )
    return None


def _adds_secret(path: str, diff: bytes, redactor: Redactor) -> bool:
    added = b"\n".join(line[1:] for line in diff.split(b"\n") if line.startswith(b"+"))
    return any(redactor.spans(text) for text in (path, added.decode("utf-8", "replace")))


def _looked(identifier: str, message: bytes, diffs: Mapping[str, bytes], redactor: Redactor) -> LookedCommit:
    # The paths are recorded, so even what only looks like a key must not be in them.
    has_names = any(redactor.redact_all(path) != path for path in diffs)
    files = [path for path, diff in diffs.items() if not has_names and _holds_secret(diff, redactor)]
    return LookedCommit(identifier, tuple(files), _holds_secret(message, redactor), has_names)


def _bounded(git: Git, *arguments: str, given: bytes | None = None) -> bytes:
    return git.read(*arguments, given=given, most_bytes=_MOST_LOOKED_BYTES, limit_s=_LOOK_LIMIT_S)


def _holds_secret(content: bytes, redactor: Redactor) -> bool:
    """Whether a message or a file's diff holds a secret. A line of a diff begins with a sign, maybe in the middle of a secret."""
    text = content.decode("utf-8", "replace")
    return bool(redactor.spans(text) or redactor.spans("\n".join(line[1:] for line in text.split("\n"))))


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
