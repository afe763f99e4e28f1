"""The directory of an outer loop outside of git: progress by the content of its files. Refuses to commit and push."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from ralph.core.loop_values import Changes, Snapshot
from ralph.effects.checkout.file_digests import ABSENT, FileDigests, differing
from ralph.effects.checkout.own_paths import OwnPaths
from ralph.effects.tools.ignore_rules import walk
from ralph.loop_ports import CheckoutError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ralph.ports import Clock, Waiter


class PlainDirectory:
    """A `Checkout` of the working directory, which is `directory`: what .gitignore files name does not count."""

    def __init__(
        self,
        directory: Path,
        *,
        plan_file: str,
        waiter: Waiter,
        clock: Clock,
        own_paths: tuple[Path, ...] = (),
    ) -> None:
        """`own_paths`: as `OwnPaths` takes them."""
        self.top = directory
        self._plan_file = os.path.normpath(plan_file)
        self._own = OwnPaths(directory, directory, own_paths)
        self._waiter = waiter
        self._clock = clock

    def snapshot(self) -> Snapshot:
        digests = FileDigests(self._waiter, self._clock)
        files: dict[str, str] = {}
        for path in _walked(self.top, files, self._own):
            files[path] = digests.of(path)
        files[self._plan_file] = digests.of_target(self._plan_file)
        files = {path: digest for path, digest in files.items() if digest != ABSENT}
        said = "\0\0".join(f"{path}\0{digest}" for path, digest in sorted(files.items()))
        return Snapshot(hashlib.sha256(said.encode("utf-8", "surrogateescape")).hexdigest(), files=files)

    def changes(self, before: Snapshot, after: Snapshot) -> Changes:
        return Changes(files=tuple(sorted(differing(before.files, after.files))))

    def commit(self, message: str) -> bool:  # noqa: ARG002 - the port's
        raise CheckoutError(f"cannot commit: {self.top} is in no git checkout")

    def push(self) -> int:
        raise CheckoutError(f"cannot push: {self.top} is in no git checkout")

    def unpushed(self) -> int | None:
        return None

    def tracks(self, path: Path) -> bool:  # noqa: ARG002 - as a `GitCheckout` does
        return False


def _walked(top: Path, unreadable: dict[str, str], own: OwnPaths) -> Iterator[str]:
    """A directory below that cannot be listed is noted as it is; the loop's own must be. Raises CheckoutError."""

    def note(path: str, error: OSError) -> None:
        if path == ".":
            raise error
        name = path.removeprefix("./")
        if not own.hold(name):
            unreadable[name] = f"unreadable: {error.errno}"

    try:
        yield from (path for path in walk(None, note) if not own.hold(path))
    except OSError as error:
        raise CheckoutError(f"the loop's directory {top} cannot be listed: {error.strerror}") from None
