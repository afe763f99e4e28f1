"""A loop's directory that is not under git. Its files are compared before and after an iteration, less exactly if they cannot
be listed in time or have too many bytes, of which the user is warned once. Commits and pushes are refused.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from ralph.git.answer import CheckoutError
from ralph.git.file_digests import (
    ABSENT,
    MOST_READ_OF_ALL_BYTES,
    FileDigests,
    TooMuchToReadError,
    differing,
    of_unread,
)
from ralph.git.own_paths import OwnPaths
from ralph.git.snapshot import Changes, Snapshot
from ralph.loop.directory.listing import Listing, ListingEndedError
from ralph.machine.starting import start_process
from ralph.machine.trusted_programs import PACKAGES_ONLY
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from subprocess import Popen

    from ralph.machine.own_programs import ProgramSearch
    from ralph.values.ports import Clock, Waiter
    from ralph.values.redaction import LookedCommit

MOST_FILES_TOLD_APART = 200_000
"""A snapshot of more files has only one digest of all together."""


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
        self.search = search
        self._plan_file = os.path.normpath(plan_file)
        self._own = OwnPaths(directory, directory, own_paths)
        self._waiter = waiter
        self._clock = clock
        self._warn = warn
        self._start = start
        self._warned: set[str] = set()
        self._is_by_time = False
        self._follows_rules = True

    def snapshot(self) -> Snapshot:
        """Raises CheckoutError, Interrupted and ShortageError."""
        while True:
            try:
                return self._look()
            except TooMuchToReadError:
                self._is_by_time = True  # stays so, because two snapshots must be comparable
                self._warn_once(
                    f"the files of {self.top} hold more than {MOST_READ_OF_ALL_BYTES // 2**30} GB: progress is judged by "
                    "size and time of each, not by content"
                )
            except ListingEndedError:
                if not self._follows_rules:
                    raise CheckoutError(f"the files of {self.top} cannot be listed within bounds") from None
                self._follows_rules = False  # stays so, because two snapshots must be comparable
                self._warn_once(
                    f"the files of {self.top} cannot be listed by its .gitignore files (they are too big, or no files): "
                    "what they name counts as progress too"
                )

    def changes(self, before: Snapshot, after: Snapshot) -> Changes:
        return Changes(files=tuple(sorted(differing(before.files, after.files))))

    def commit(self, message: str, seen: Snapshot | None = None) -> bool:  # noqa: ARG002 - the port has these parameters
        raise CheckoutError(f"cannot commit: {self.top} is in no git checkout")

    def look_through(self, since: str) -> tuple[str, tuple[LookedCommit, ...]]:  # noqa: ARG002 - the port's
        return "", ()

    def commit_aside(self, message: str, **_options: object) -> str | None:
        raise CheckoutError(f"cannot commit {message!r}: {self.top} is in no git checkout")

    def push(self, branch: str | None = None) -> int:  # noqa: ARG002 - the port has this parameter
        raise CheckoutError(f"cannot push: {self.top} is in no git checkout")

    def unpushed(self) -> int | None:
        return None

    def tracks(self, path: Path) -> bool:  # noqa: ARG002 - `GitCheckout.tracks` has this parameter
        return False

    def _look(self) -> Snapshot:
        self._refuse_unreadable()
        hashed = hashlib.sha256()
        files: dict[str, str] = {}

        def add(path: str, digest: str) -> None:
            if digest != ABSENT:
                # In the order of the listing, which is the same for equal directories.
                hashed.update(f"{path}\0{digest}\0\0".encode("utf-8", "surrogateescape"))
                if len(files) <= MOST_FILES_TOLD_APART:
                    files[path] = digest

        digests = FileDigests(
            self._waiter, self._clock, is_by_time=self._is_by_time, most_bytes=MOST_READ_OF_ALL_BYTES
        )
        listing = Listing(
            self._waiter,
            self._clock,
            digests.look_up,
            self.search,
            follows_rules=self._follows_rules,
            start=self._start,
        )
        for path in listing.paths():
            if not self._own.hold(path):
                add(path, digests.of(path))
        for path, error in listing.unlisted:
            if not self._own.hold(path):
                add(path, _of_unlisted(path, error))
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

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)


def _of_unlisted(path: str, error: OSError) -> str:
    try:
        return f"unreadable: {error.errno} {of_unread(os.lstat(path))}"
    except OSError:
        return f"unreadable: {error.errno}"
