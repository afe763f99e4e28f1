"""Finds the checkout that a loop works on, checks before any money is spent whether commits and pushes can work there, and makes
sure that only one loop works on it. A loop locks a file, and writes its process id and directory into it. The system releases
the lock when the last process with the open file ends. A link is not a lock file, nor a file with a second name.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import struct
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct, convert, to_builtins

from ralph.git.answer import CheckoutError, shown
from ralph.git.checkout import IDENTITY_ADVICE, GitCheckout, committer
from ralph.git.large_files import about_unnamed
from ralph.git.look import (
    ABSENT,
    MOST_READ_OF_ALL_BYTES,
    Changes,
    FileDigests,
    OwnPaths,
    Snapshot,
    TooMuchToReadError,
    differing,
    of_unread,
    status_of,
)
from ralph.git.runner import git_directory_of
from ralph.machine.files.opened_file import opened
from ralph.machine.files.paths import repository_top
from ralph.machine.ripgrep import (
    FILES_AS_GIT_SEES_THEM,
    OUTSIDE_OF_REPOSITORIES,
    REINSTALL,
    SORTED,
    Ripgrep,
    RipgrepError,
    ripgrep_path,
)
from ralph.machine.starting import patiently, start_process
from ralph.machine.trusted_programs import PACKAGES_ONLY
from ralph.values.outcome import Outcome, shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime
    from pathlib import Path
    from subprocess import Popen

    from ralph.git.checkout import UnpublishedIn
    from ralph.git.push import Push
    from ralph.git.runner import CheckoutGit, GitSeams
    from ralph.machine.own_programs import ProgramSearch
    from ralph.values.ports import Clock, Waiter
    from ralph.values.redaction import LookedCommit, Redactor

_TRUE = frozenset({"true", "yes", "on", "1"})


def open_checkout(
    directory: Path,
    plan_file: str,
    seams: GitSeams,
    *,
    own_paths: tuple[Path, ...] = (),
    writable: tuple[Path, ...] = (),
    search: ProgramSearch = PACKAGES_ONLY,
    warn: Callable[[str], None] = lambda _text: None,
    start: Callable[..., Popen[bytes]] = start_process,
    redactor: Redactor | None = None,
    unpublished_in: UnpublishedIn = lambda _top: lambda _path, _is_in_head: False,
) -> GitCheckout | PlainDirectory:
    """Finds the checkout that contains `directory`, which must be the working directory. Runs no git. The parameters are those
    of `PlainDirectory` and `GitCheckout`.
    """
    top = repository_top(directory)
    if top is None:
        return PlainDirectory(
            directory,
            plan_file=plan_file,
            waiter=seams.waiter,
            clock=seams.clock,
            search=search,
            own_paths=own_paths,
            warn=warn,
            start=start,
        )
    return GitCheckout(
        *(top, directory),
        plan_file=plan_file,
        seams=seams,
        own_paths=own_paths,
        writable=writable,
        warn=warn,
        redactor=redactor,
        unpublished_in=unpublished_in,
    )


def check_checkout(
    checkout: GitCheckout | PlainDirectory, *, commits: bool, pushes: bool, waiter: Waiter | None = None
) -> list[str]:
    """Checks that the loop's commits and pushes will work, and returns notices for the user. Git is waited for by `waiter`.
    Under git, no merge or rebase may be unfinished, and HEAD must be on a branch; without git, ripgrep must be installed.
    Raises Interrupted, and CheckoutError with advice.
    """
    if isinstance(checkout, PlainDirectory):
        if commits or pushes:
            option = "--commit" if commits else "--push"
            raise CheckoutError(
                f"{checkout.top} is not in a git checkout; run git init there, or leave out {option}"
            )
        checkout.refuse_without_ripgrep()
        return []
    if commits or pushes:
        checkout.refuse_foreign()
    git = checkout.git(waiter)
    status = status_of(git)
    checkout.refuse_unfinished(status)
    checkout.refuse_detached(status)
    if commits:
        checkout.refuse_locked(status)
    notices = [*_about_identity(git, commits=commits), *(_about_settings(git) if commits or pushes else [])]
    notices += _about_commits(checkout, git) if commits else []
    if pushes:
        _refuse_useless_remote(checkout.push_of(git, status), _about_settings(git))
    uncommitted = [entry.path for entry in checkout.uncommitted(status)] if commits else []
    if uncommitted:
        verb, them = ("is", "it") if len(uncommitted) == 1 else ("are", "them")
        notices.append(
            f"{shown(uncommitted)} {verb} uncommitted already: the loop's first commit will include {them}"
        )
    return notices


def _about_identity(git: CheckoutGit, *, commits: bool) -> list[str]:
    if committer(git) is not None:
        return []
    if commits:
        raise CheckoutError(f"git does not know who commits here: {IDENTITY_ADVICE}, or leave out --commit")
    return [f"git does not know who commits here, so commits of the agent would fail: {IDENTITY_ADVICE}"]


def _about_commits(checkout: GitCheckout, git: CheckoutGit) -> list[str]:
    notices = []
    if (git.settings.configured("commit.gpgsign") or "").lower() in _TRUE:
        notices.append(
            "the loop's commits are not signed, although commit.gpgsign is set: sign them afterwards"
        )
    if hooks := checkout.commit_hooks(git):
        notices.append(
            f"--commit runs no hooks of git, so {', '.join(hooks)} {'does' if len(hooks) == 1 else 'do'} not run: have the "
            "checks of the loop do what they do"
        )
    return [*notices, *about_unnamed(git, git.settings)]


def _about_settings(git: CheckoutGit) -> list[str]:
    if not git.settings.left_out:
        return []
    names = ", ".join(git.settings.left_out)
    sentence = (
        f"ralph's own git calls do not follow {names}: an agent can write it, or what it names; where it is "
        f"needed, {git.settings.advice}, and keep what it names where commands may not write"
    )
    return [sentence]


def _refuse_useless_remote(push: Push, notices: Iterable[str]) -> None:
    try:
        push.try_out()
    except CheckoutError as error:
        target = push.target
        problem = f"remote {target.remote} does not take branch {target.branch}: {error}; {target.advice}"
        problem = "; ".join((problem, *notices))
        raise CheckoutError(problem, error.outcome) from None


# --- The lock

_NAME_IN_GIT = "ralph-loop.lock"
_NAME_OF_OURS = "lock"
_MOST_BYTES = 16_384
_AFTER_KILL_S = 3.0
_PAUSE_S = 0.02
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Errors of flock(2), and those of network file systems.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
# `struct flock` of fcntl(2): type, whence, start, length, pid; macOS has another order.
_RECORD, _TYPE_AT = ("qqihh", 3) if sys.platform == "darwin" else ("hhqqi", 0)


class Holder(Struct, frozen=True):
    """The loop that holds the lock, as read from the lock file."""

    pid: int
    directory: str
    started_at: str
    """In local time, for messages to the user."""


class CheckoutLock:
    """Holds the lock until all processes that have its descriptor have closed it. If a loop is killed, its iteration
    still holds the lock. A second lock on the same file belongs to the loop's process alone, for `holder_of`.
    """

    def __init__(
        self, checkout: GitCheckout | PlainDirectory, directory: Path, started_at: datetime, *, place: Path
    ) -> None:
        """`place` is one of the user's own directories, for a checkout that is not under git. Raises CheckoutError if the
        file cannot be used, or with the name of the loop that holds the lock.
        """
        self.notice: str | None = None
        """A warning if the file system does not support locks."""
        self.path, self.descriptor = _opened(checkout, place)
        """The lock file. A child process with its descriptor holds the lock too."""
        try:
            self._take()
            holder = Holder(os.getpid(), str(directory), f"{started_at.astimezone():%Y-%m-%d %H:%M:%S}")
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, json.dumps(to_builtins(holder)).encode() + b"\n", 0)
        except OSError as error:
            self.close()
            problem = f"the loop's lock {self.path} cannot be written: {error.strerror}"
            raise CheckoutError(problem, Outcome.IO_ERROR) from None
        except CheckoutError:
            self.close()
            raise

    def close(self) -> None:
        """Releases the lock. The file stays: if it were removed, two loops could run at once."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _take(self) -> None:
        """If the loop that had the lock was killed, its iteration is ending: waits for a moment until it has."""
        until_s = time.monotonic() + _AFTER_KILL_S
        try:
            while not _locked(self.descriptor):
                holder = _holder(self.descriptor)
                if holder is None or _is_there(holder.pid) or time.monotonic() > until_s:
                    raise CheckoutError(_refusal(holder, self.path))
                time.sleep(_PAUSE_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            self.notice = (
                f"the file system of {self.path} does not support locks: a second loop could start here"
            )
        with suppress(OSError):  # only `--status` needs this second lock
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder_of(directory: Path, place: Path) -> int | None:
    """The id of the process of the loop that works on the checkout of `directory`, or None. `place` is as in `CheckoutLock`.

    Takes no lock, not even for a moment, so it cannot refuse a loop that starts now: it asks the system about the loop's
    second lock, which an iteration that outlives its loop does not hold (F_GETLK of fcntl(2)).
    """
    top = repository_top(directory)
    paths = [place / _NAME_OF_OURS]
    if top is not None:
        with suppress(CheckoutError):
            paths.append(git_directory_of(top) / _NAME_IN_GIT)
    return next((pid for path in paths if (pid := _pid_in(path)) is not None), None)


def _pid_in(path: Path) -> int | None:
    try:
        with opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as descriptor:
            holder = _holder(descriptor) if _has_record_lock(descriptor) else None
    except OSError as error:
        if shortage_of(error) is not None:
            raise
        return None  # there was never a loop
    return holder.pid if holder is not None else None


def _has_record_lock(descriptor: int) -> bool:
    fields = [0] * 5
    fields[_TYPE_AT] = fcntl.F_RDLCK
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_RECORD, *fields))
    except OSError:
        return False
    return bool(struct.unpack(_RECORD, answer)[_TYPE_AT] != fcntl.F_UNLCK)


def _opened(checkout: GitCheckout | PlainDirectory, place: Path) -> tuple[Path, int]:
    """Opens the lock file, in the git directory of the working tree, or in `place` if that is not its own."""
    name = _NAME_OF_OURS
    if isinstance(checkout, GitCheckout):
        git_directory = checkout.git_directory
        with suppress(CheckoutError):
            checkout.refuse_foreign()
            place, name = git_directory, _NAME_IN_GIT
    try:
        with opened(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as held:
            descriptor = os.open(name, _FLAGS, 0o600, dir_fd=held)
    except OSError as error:
        is_link = error.errno in {errno.ELOOP, errno.ENOTDIR}
        why = "it is a link, or its directory does not exist; remove it" if is_link else error.strerror
        outcome = Outcome.CONFIG if is_link else Outcome.IO_ERROR
        raise CheckoutError(f"the loop's lock {place / name} cannot be opened: {why}", outcome) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise CheckoutError(f"the loop's lock {place / name} is not a file of its own; remove it")
    return place / name, descriptor


def _holder(descriptor: int) -> Holder | None:
    """None if the file does not name its holder, who may not have written to it yet."""
    try:
        return convert(json.loads(os.pread(descriptor, _MOST_BYTES, 0)), Holder)
    except (OSError, ValueError, RecursionError):
        return None


def _refusal(holder: Holder | None, path: Path) -> str:
    if holder is None:
        return f"another loop works on this checkout (it holds {path}); wait for it, or stop it"
    since = f"since {holder.started_at} in {holder.directory}"
    if _is_there(holder.pid):
        return f"another loop works on this checkout: process {holder.pid}, {since}; wait for it, or stop it"
    return (
        f"the loop of process {holder.pid}, {since}, has ended, but a process that it started still works on this "
        f"checkout and holds {path}; wait for it, or stop it"
    )


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


# --- A directory that is not under git. Its files are compared before and after an iteration, less exactly if they cannot
# be listed in time or have too many bytes, of which the user is warned once. Commits and pushes are refused.

MOST_FILES_TOLD_APART = 200_000
"""A snapshot of more files has only one digest of all together."""


SILENCE_S = 20.0
"""After so long without output, a listing by .gitignore files fails: one may be a named pipe, or a very long list."""

# `./closed: IO error for operation on ./closed: Permission denied (os error 13)`
_UNLISTED = re.compile(rb"\./(.*?): (?:IO error for operation on .*: )?(.*) \(os error (\d+)\)", re.DOTALL)


class ListingEndedError(Exception):
    """The listing is incomplete: ripgrep printed nothing for too long, was cut short, or was killed."""


class PlainDirectory:
    """Implements `Checkout` for a working directory that is not under git, without the files that .gitignore excludes."""

    def __init__(
        self,
        directory: Path,
        *,
        plan_file: str,
        waiter: Waiter,
        clock: Clock,
        search: ProgramSearch = PACKAGES_ONLY,
        own_paths: tuple[Path, ...] = (),
        warn: Callable[[str], None] = lambda _text: None,
        start: Callable[..., Popen[bytes]] = start_process,
    ) -> None:
        """`directory` must be the working directory. `search` says where ripgrep may lie. `own_paths` are as in `OwnPaths`.
        `start` starts ripgrep, as `start_process` or in a sandbox.
        """
        self.top = directory
        self._search = search
        self._plan_file = os.path.normpath(plan_file)
        self._own = OwnPaths(directory, directory, own_paths)
        self._waiter = waiter
        self._clock = clock
        self._warn = warn
        self._start = start
        # Both stay so, because two snapshots must be comparable.
        self._is_by_time = False
        self._follows_rules = True

    def refuse_without_ripgrep(self) -> None:
        """Raises CheckoutError with advice if there is no ripgrep that can be used."""
        try:
            ripgrep_path(self._search)
        except RipgrepError as error:
            raise _cannot_list(error) from None

    def snapshot(self) -> Snapshot:
        """Raises CheckoutError, Interrupted and ShortageError."""
        while True:
            try:
                return self._look()
            except TooMuchToReadError:
                self._is_by_time = True
                self._warn(
                    f"the files of {self.top} hold more than {MOST_READ_OF_ALL_BYTES // 2**30} GB: progress is judged by "
                    "size and time of each, not by content"
                )
            except ListingEndedError:
                if not self._follows_rules:
                    raise CheckoutError(f"the files of {self.top} cannot be listed within bounds") from None
                self._follows_rules = False
                self._warn(
                    f"the files of {self.top} cannot be listed by its .gitignore files (they are too big, or no files): "
                    "what they name counts as progress too"
                )

    def changes(self, before: Snapshot, after: Snapshot) -> Changes:
        return Changes(files=tuple(sorted(differing(before.files, after.files))))

    def commit(self, message: str, seen: Snapshot | None = None) -> bool:  # noqa: ARG002 - the port has these parameters
        raise CheckoutError(f"cannot commit: {self.top} is not in a git checkout")

    def look_through(self, since: str) -> tuple[str, tuple[LookedCommit, ...]]:  # noqa: ARG002 - the port's
        return "", ()

    def commit_aside(self, message: str, **_options: object) -> str | None:
        raise CheckoutError(f"cannot commit {message!r}: {self.top} is not in a git checkout")

    def push(self, branch: str | None = None) -> int:  # noqa: ARG002 - the port has this parameter
        raise CheckoutError(f"cannot push: {self.top} is not in a git checkout")

    def unpushed(self) -> int | None:
        return None

    def tracks(self, path: Path) -> bool:  # noqa: ARG002 - `GitCheckout.tracks` has this parameter
        return False

    def _look(self) -> Snapshot:
        self._refuse_unreadable()
        hashed = hashlib.sha256()
        files: dict[str, str] = {}
        digests = FileDigests(
            self._waiter, self._clock, is_by_time=self._is_by_time, most_bytes=MOST_READ_OF_ALL_BYTES
        )

        def add(path: str, digest: str) -> None:
            if digest != ABSENT:
                # In the order of the listing, which is the same for equal directories.
                hashed.update(f"{path}\0{digest}\0\0".encode("utf-8", "surrogateescape"))
                if len(files) <= MOST_FILES_TOLD_APART:
                    files[path] = digest

        for path, error in self._listed(digests.look_up):
            if not self._own.hold(path):
                add(path, digests.of(path) if error is None else _of_unlisted(path, error))
        add(self._plan_file, digests.of_target(self._plan_file))
        return Snapshot(hashed.hexdigest(), files=files if len(files) <= MOST_FILES_TOLD_APART else None)

    def _refuse_unreadable(self) -> None:
        """Raises CheckoutError for a missing directory, for which ripgrep reports no error."""
        try:
            os.getcwd()  # noqa: PTH109 - its error is what is asked for
            os.scandir().close()
        except OSError as error:
            problem = f"the loop's directory {self.top} cannot be listed: {error.strerror}"
            raise CheckoutError(problem, Outcome.IO_ERROR) from None

    def _listed(self, look_up: Callable[[], None]) -> Iterator[tuple[str, OSError | None]]:
        """The relative paths of regular files, sorted, and then the directories that could not be listed, with their errors.
        `look_up` is called again and again while ripgrep runs, and may raise an exception. Raises CheckoutError,
        ListingEndedError and ShortageError.
        """
        heard_at_s = self._clock.now_s()
        rules = OUTSIDE_OF_REPOSITORIES if self._follows_rules else ("--no-ignore",)
        command = [*FILES_AS_GIT_SEES_THEM, *SORTED, *rules, "--files", "--null", "--", "./"]

        def is_over() -> bool:
            look_up()
            return self._follows_rules and self._clock.now_s() >= heard_at_s + SILENCE_S

        def start() -> Ripgrep:
            try:
                program = ripgrep_path(self._search)
                return Ripgrep(program, command, cwd=None, is_over=is_over, start=self._start)
            except RipgrepError as error:
                raise _cannot_list(error) from None

        with patiently(start, self._waiter, self._clock) as walk:
            heard_at_s = self._clock.now_s()
            for record, _size in walk.records(b"\0"):
                heard_at_s = self._clock.now_s()
                yield os.fsdecode(record).removeprefix("./"), None
            if walk.is_cut_short or walk.ending_signal():
                raise ListingEndedError
            yield from _unlisted(walk.complaints())


def _of_unlisted(path: str, error: OSError) -> str:
    try:
        return f"unreadable: {error.errno} {of_unread(os.lstat(path))}"
    except OSError:
        return f"unreadable: {error.errno}"


def _cannot_list(error: RipgrepError) -> CheckoutError:
    return CheckoutError(
        f"{error}, and without it the files of a directory outside git are not known; {REINSTALL}, or run git init here"
    )


def _unlisted(complaints: list[bytes]) -> Iterator[tuple[str, OSError]]:
    for complaint in complaints:
        if match := _UNLISTED.fullmatch(complaint):
            yield os.fsdecode(match[1]), OSError(int(match[3]), os.strerror(int(match[3])))
