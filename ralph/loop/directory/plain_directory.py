"""A loop's directory that is not under git. Its files are compared before and after an iteration, less exactly if they cannot
be listed in time or have too many bytes, of which the user is warned once. Commits and pushes are refused.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING

from ralph.git.answer import CheckoutError
from ralph.git.progress import (
    ABSENT,
    MOST_READ_OF_ALL_BYTES,
    Changes,
    FileDigests,
    OwnPaths,
    Snapshot,
    TooMuchToReadError,
    differing,
    of_unread,
)
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
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from subprocess import Popen

    from ralph.machine.own_programs import ProgramSearch
    from ralph.values.ports import Clock, Waiter
    from ralph.values.redaction import LookedCommit

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
