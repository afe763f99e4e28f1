"""Keeps the file tools away from protected paths. Checks a path before the file is opened, and checks the opened file
again. Compares device and inode numbers too. So a protected file is recognised even if its path looks different,
because of a bind mount, a hard link, or upper and lower case (macOS).
"""

from __future__ import annotations

import os
import stat
from codecs import getincrementaldecoder
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import closed_after, is_made_by_kernel, opened_path
from ralph.machine.files.paths import is_within, is_within_any, status_of
from ralph.places.gather import files_in, gather_places
from ralph.places.home import holds_credentials
from ralph.places.places import GuardedPlace, GuardedPlaces, is_named
from ralph.places.table import PRIVATE, named_with
from ralph.tools.content import MAX_SCANNED_BYTES, SNIFFED_BYTES, marked_encoding
from ralph.values.answer import ToolError
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.tools.tool_context import ToolContext
    from ralph.values.ports import PathRules

Identity = tuple[int, int]

# The most protected files to compare, in order to find hard links to them. People have fewer, except for the files
# of browsers.
_MOST_FILES_COMPARED = 2000
_CHUNK_BYTES = 1 << 20
_ASK_WITHOUT = "Whoever starts ralph can make a copy without it in the working directory"


class PathGuard:
    """Checks paths against the table of places, which is made at the first check: many runs use no file tools."""

    def __init__(
        self,
        gather: Callable[[], GuardedPlaces],
        own_files: Callable[[], Path | None],
        rules: PathRules | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        """`gather` makes the table. `own_files` returns the directory with this run's long outputs, which may be read, or None.
        `rules` are the permission rules about paths. `redactor` finds known credentials.
        """
        self._redactor = redactor or Redactor()
        self._rules = rules
        self._gather = gather
        self._own_files = own_files

    @cached_property
    def places(self) -> GuardedPlaces:
        return self._gather()

    def refuse_read(self, path: Path, shown: str) -> str:
        """Returns the path without links. Raises ToolError if the file there, which need not exist, must not be read."""
        real = os.path.realpath(path)
        self._refuse_private(real, shown, None)
        self._refuse(real, shown, self._why_not_read(real))
        return real

    def refuse_opened(self, descriptor: int, path: Path, shown: str, judged: str) -> str:
        """The real path of an open file. Raises ToolError if it is unknown or must not be read. `judged` is the result of
        `refuse_read`, before it was opened.
        """
        real, status = opened_path(descriptor, str(path)), os.fstat(descriptor)
        if real is None:
            raise ToolError(f"{shown} is not read: where it really is cannot be determined")
        self._refuse_private(real, shown, status)
        if real != judged:
            self._refuse(real, shown, self._why_not_read(real))
        self._refuse(real, shown, self._why_not_linked(status))
        if self.holds_secret(descriptor, real, status):
            raise ToolError(f"{shown} is not read: it holds a credential of this run. {_ASK_WITHOUT}")
        return real

    def holds_secret(
        self, descriptor: int, real: str, status: os.stat_result, is_over: Callable[[], bool] = bool
    ) -> bool:
        """Whether an open regular file at the path `real` contains a known secret, as far as Read reads it. False in a root.
        Does not move the descriptor. `is_over` is asked before each MiB. If it is, the answer is True: what is not known must
        not be shown.
        """
        if self.is_shown_as_it_is(real, status):
            return False
        at, characters, kept = 0, 0, ""
        marked = marked_encoding(os.pread(descriptor, SNIFFED_BYTES, 0))
        decoder = getincrementaldecoder("utf-8" if marked is None else marked[1])("replace")
        while characters < MAX_SCANNED_BYTES:
            if is_over():
                return True
            chunk = os.pread(descriptor, _CHUNK_BYTES, at)
            if not chunk:
                break
            decoded = decoder.decode(chunk)
            text = kept + decoded
            if self._redactor.redact(text) != text:
                return True
            at, characters = at + len(chunk), characters + len(decoded)
            kept = text[-self._redactor.longest_bytes :]
        return False

    def is_shown_as_it_is(self, real: str, status: os.stat_result) -> bool:
        """Whether an open file is shown whatever secrets its content holds. `real` is the file's real path."""
        return (
            not self._redactor.longest_bytes
            or not stat.S_ISREG(status.st_mode)
            or is_within_any(real, self.places.roots)
            or is_made_by_kernel(real, status)
            or self._is_own(real)
        )

    def _is_own(self, real: str) -> bool:
        own = self._own_files()
        return own is not None and is_within(real, os.path.realpath(own))

    def refuse_written(self, real: str, shown: str) -> None:
        """Raises ToolError if the file at an absolute path without links, which need not exist, must not be written."""
        rule = None if self._rules is None else self._rules.why_not_written(real)
        self._refuse(real, shown, _by_rule(rule), "written")
        for path in dict.fromkeys((real, self._canonical(real))):
            self._refuse(real, shown, self.places.why_not_written(path), "written")

    def hidden_beneath(self, directory: str) -> HiddenPlaces:
        """The paths that a search in `directory` must skip. `directory` is absolute, with links resolved."""
        known = self._canonical(directory)
        return HiddenPlaces(self, directory, self.places.hidden_beneath(known))

    def may_be_read(self, real: str) -> bool:
        """Whether the file `real` may be read. `real` is an absolute path without links. The file need not exist."""
        return self._why_not_read(real) is None

    def why_judged(self, real: str) -> GuardedPlace | None:
        """The place because of whose name and content the file `real` must not be read, or None."""
        place = self.places.why_judged(real)
        return place if place is not None and holds_credentials(real) else None

    def may_be_shown(self, real: str) -> bool:
        """Whether the permission rules, apart from the table of places, allow the file `real` to be read."""
        return self._rules is None or self._rules.why_not_read(real) is None

    def why_private(self, real: str, status: os.stat_result | None = None) -> str | None:
        """Describes whose the file `real` is, if neither the model nor an ordinary user may read it, or None. The superuser's file
        tools read no more of other users than its commands, which have no capabilities.
        """
        why = why_private(real, status)
        if why or os.getuid() or is_within_any(real, self.places.roots) or not _is_of_another_alone(real):
            return why
        return "belongs to another user alone"

    def _refuse_private(self, real: str, shown: str, status: os.stat_result | None) -> None:
        why = self.why_private(real, status)
        if why is not None:
            raise ToolError(f"{shown} {why}, and is not read")

    def _refuse(
        self, real: str, shown: str, protection: GuardedPlace | str | None, verb: str = "read"
    ) -> None:
        if protection is not None:
            where = shown if shown == real else f"{shown} (really {real})"
            raise ToolError(f"{where} is not {verb}: {protection}")

    def _why_not_read(self, real: str) -> GuardedPlace | str | None:
        if self._is_own(real):
            return None
        rule = None if self._rules is None else self._rules.why_not_read(real)
        protection = _by_rule(rule) or self.places.why_not_read(real) or self.why_judged(real)
        known = real if protection is not None else self._canonical(real)
        return protection if known == real else self.places.why_not_read(known)

    @cached_property
    def _known(self) -> Mapping[Identity, str]:
        """The protected paths and all directories above them. Each key is a pair of device and inode number."""
        places = {place.path for place in self.places.found if place.path.startswith("/")}
        all_above = {str(above) for place in places for above in Path(place).parents}
        found = {}
        for path in (*sorted(all_above), *sorted(places)):
            status = status_of(path)
            if status is not None and (stat.S_ISDIR(status.st_mode) or path in places):
                found[_identity(status)] = path
        return found

    def _canonical(self, path: str) -> str:
        """The path as the table of protected paths spells it."""
        for above in (path, *map(str, Path(path).parents)):
            status = status_of(above)
            known = None if status is None else self._known.get(_identity(status))
            # The system may have reused the inode number for another file.
            if status is not None and known is not None and _is_still(known, status):
                return known.rstrip("/") + path[len(above.rstrip("/")) :] or "/"
        return path

    def linked_secrets(self) -> dict[Identity, str]:
        """Up to 2,000 files that must not be read, by device and inode, by which a hard link to one is recognised."""
        found: dict[Identity, str] = {}
        for path in islice(
            chain.from_iterable(files_in(place, 1) for place in self.places.unread), _MOST_FILES_COMPARED
        ):
            status = status_of(path)
            if status is not None and stat.S_ISREG(status.st_mode):
                found[_identity(status)] = path
        return found

    def _why_not_linked(self, status: os.stat_result) -> GuardedPlace | None:
        if status.st_nlink == 1 or not stat.S_ISREG(status.st_mode):
            return None
        path = self.linked_secrets().get(_identity(status))
        return None if path is None else self.places.why_not_read(path)


def why_private(real: str, status: os.stat_result | None = None) -> str | None:
    """Says what a file shows that only the kernel or a process should know. None for a file that the kernel does not make."""
    if not is_made_by_kernel(real, status):
        return None
    return next((shows for name, shows in named_with(PRIVATE) if is_named(real, name)), None)


def _is_of_another_alone(real: str) -> bool:
    """Whether the modes of a path without links keep it from all but its owner, who is neither the superuser nor this user."""
    asked = ((real, stat.S_IROTH), *((str(above), stat.S_IXOTH) for above in Path(real).parents))
    for path, right in asked:
        status = status_of(path)
        if status is not None and status.st_uid not in {0, os.getuid()}:
            is_of_group = status.st_gid in {os.getgid(), *os.getgroups()}
            if not status.st_mode & (right << 3 if is_of_group else right):
                return True
    return False


def refuse_kernel_file(real: str, shown: str, status: os.stat_result | None) -> None:
    """Raises ToolError if the kernel makes the content of the file at a path without links."""
    if is_made_by_kernel(real, status):
        raise ToolError(f"{shown} is made up by the kernel; it cannot be edited or replaced as a file")


class HiddenPlaces:
    """The paths that a search in a directory must skip."""

    def __init__(self, guard: PathGuard, directory: str, paths: tuple[str, ...]) -> None:
        self.paths = paths
        """Paths that must not be read, relative to the directory. A search need not enter them."""
        self._guard = guard
        self._directory = directory.rstrip("/")
        self._is_open: dict[str, bool] = {}
        self._holds_secret: dict[str | Identity, bool] = {}

    @property
    def those_there(self) -> list[str]:
        """Those of `paths` that exist. The files that the search has left out because of a secret in them are not among
        them: a name would tell that the pattern matches the secret.
        """
        return [path for path in self.paths if os.path.lexists(f"{self._directory}/{path}")]

    def holds_secret(self, path: str, is_over: Callable[[], bool]) -> bool:
        """Whether the content of the file `path` must not be shown, as `PathGuard.holds_secret` says. `path` is as in
        `hides`. A file with several names is looked through once.
        """
        if path not in self._holds_secret:
            real = f"{self._directory}/{path}"
            try:
                descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                return False  # it is gone, or this user may not read it
            with closed_after(descriptor):
                status = os.fstat(descriptor)
                known: str | Identity = (
                    path if self._guard.is_shown_as_it_is(real, status) else _identity(status)
                )
                if known not in self._holds_secret:
                    holds = self._guard.holds_secret(descriptor, real, status, is_over)
                    self._holds_secret[known] = holds
                self._holds_secret[path] = self._holds_secret[known]
        return self._holds_secret[path]

    def hides(self, path: str) -> bool:
        """Whether a search must skip the regular file `path`, relative to its directory and without links."""
        if is_within_any(path, self.paths):
            return True
        real = f"{self._directory}/{path}"
        above = os.path.dirname(real)  # noqa: PTH120 - it is a str
        if above not in self._is_open:
            self._is_open[above] = self._guard.may_be_read(above)
        return (
            not self._is_open[above]
            or not self._guard.may_be_shown(real)
            or self._guard.why_private(real) is not None
            or self._guard.why_judged(real) is not None
            or self._is_linked(real)
        )

    @cached_property
    def _linked_secrets(self) -> dict[Identity, str]:
        return self._guard.linked_secrets()

    def _is_linked(self, real: str) -> bool:
        status = status_of(real)
        return status is not None and status.st_nlink > 1 and _identity(status) in self._linked_secrets


def _by_rule(rule: str | None) -> str | None:
    return None if rule is None else f"the rule {rule} forbids it. Whoever starts ralph can change it"


def _is_still(path: str, status: os.stat_result) -> bool:
    now = status_of(path)
    return now is not None and os.path.samestat(now, status)


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def guard_of(context: ToolContext) -> PathGuard:
    """The guard of a run's file tools."""
    settings, roots = context.settings, context.roots.paths
    return PathGuard(
        lambda: gather_places(
            roots,
            settings.places_environment,
            settings.configuration,
            settings.session_directory,
            agents=settings.agents,
            denied=settings.box_plan.read_deny,
            given=settings.box_plan.given,
        ),
        own_files=lambda: context.spill.path,
        rules=settings.rules,
        redactor=context.redactor,
    )
