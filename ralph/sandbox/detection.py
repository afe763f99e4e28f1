"""Finds out which means of confinement work on this machine. If a means does not work, no error is raised, and the
result contains the reason.
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine import restriction
from ralph.machine.trusted_programs import BUBBLEWRAP, UnusableError, candidates, choose, dotted
from ralph.sandbox.bubblewrap import TEMPORARY, bwrap_command
from ralph.sandbox.kernel.landlock import Support
from ralph.sandbox.levels import Means
from ralph.sandbox.overlays import OVERLAYS_SINCE, Cover, EmptyDirectory, TooManyMountsError, cover
from ralph.sandbox.trial import TRIAL_WITHIN_S, exit_code, read_to_end, try_means
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.machine.own_programs import ProgramSearch
    from ralph.machine.trusted_programs import Candidate, Version

_MOST_COMPLAINT = 200
# A shortage that lasts longer than about a second is not awaited: the run then has a lower level, or ends.
_PAUSES_S = (0.05, 0.2, 0.8)
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_VERSION = re.compile(rb"bubblewrap (\d+(?:\.\d+)*)")
INSTALL = "install bubblewrap, or pip install '.[sandbox]' in ralph's clone, with ralph's Python"


def find_means(
    search: ProgramSearch, *, shares_network: bool = False, has_overlays: bool = False, needed: Version = ()
) -> Means:
    """Finds the means of confinement on this machine. What a trial of bubblewrap has shown is remembered, unless the machine was
    short of a resource; then the trial is repeated for about a second.

    `search` says where bubblewrap may lie (`trusted_programs.py`). The first one that works and has at least the version `needed`
    is taken, otherwise the first that works. Each is tried at most four times: with and without overlays and a network.

    With `shares_network`, commands use the machine's network, and no network namespace is tried. With `has_overlays`, each is
    tried with overlays first, and one that can make them is preferred. Landlock and seccomp are tried by applying them.
    """
    if sys.platform != "linux":
        return no_means("only Linux has the means")
    means = _without_shortage(try_means)
    if means.why_no_privileges:
        return no_means(means.why_no_privileges)
    # What Landlock itself confines needs no overlays, and without its scopes they do not help.
    has_overlays = has_overlays and means.landlock.has_scopes and not means.landlock.has_socket_paths
    if has_overlays:
        needed = max(needed, OVERLAYS_SINCE)
    return _with_namespaces(means, search, needed, shares_network=shares_network, has_overlays=has_overlays)


def _without_shortage(find: Callable[[], Means]) -> Means:
    """Calls `find`, and again while it fails for want of a resource. Raises ShortageError if it always does."""
    for pause_s in _PAUSES_S:
        with suppress(ShortageError):
            return find()
        select.select([], [], [], pause_s)
    return find()


def no_means(why: str) -> Means:
    return Means(Support(0, why), why, why, why_no_namespaces=why)


def begin_trial(search: ProgramSearch, *, shares_network: bool, has_overlays: bool = False) -> None:
    """Starts to try bubblewrap in the background, for milliseconds. `find_means` with the same arguments waits for the result."""
    if sys.platform == "linux":
        first = next((one for one in candidates(BUBBLEWRAP, search) if not one.why_not), None)
        if first is not None and (first.path, shares_network, has_overlays) not in _TRIED:
            _begun(first.path, has_network=shares_network, has_overlays=has_overlays)


def why_not_covered(bwrap: str, covered: Cover) -> str:
    """The reason why bubblewrap cannot show the machine so. Empty if it can. Waits for a trial."""
    return _Trial(bwrap, covered, has_network=True).result().why_not


class _Tried(Struct, frozen=True):
    why_not: str = ""
    """The reason why the program does not work, or an empty string."""
    is_short: bool = False
    """Whether the machine lacked a resource."""
    version: Version = ()
    """The version that the program named, or the empty one."""
    overlaid: frozenset[int] = frozenset()
    """The file systems of which it has made overlays."""


class _ShortError(Exception):
    """The machine lacks a resource for the trial of a program. The message names both."""


_TRIED: dict[tuple[str, bool, bool], _Tried] = {}
_BEGUN: dict[tuple[str, bool, bool], _Trial] = {}
"""The trials that run in the background. The keys of both are a program, `has_network` and `has_overlays`."""


def _with_namespaces(
    means: Means, search: ProgramSearch, needed: Version, *, shares_network: bool, has_overlays: bool
) -> Means:
    without_network: dict[str, str] = {}
    """The programs that make no network namespace, with the reason."""

    def version_of(candidate: Candidate) -> Version:
        why_not = ""
        for has_network in (True,) if shares_network else (False, True):
            tried = _tried_with(candidate.path, has_network=has_network, has_overlays=has_overlays)
            if tried.is_short:
                raise _ShortError(f"{candidate.path}: {tried.why_not}")
            why = tried.why_not or _why_not_entered()
            if not why:
                if has_network:
                    without_network[candidate.path] = why_not
                return tried.version or candidate.version
            why_not = why
        raise UnusableError(why_not)

    try:
        choice = choose(candidates(BUBBLEWRAP, search), version_of, needed)
    except _ShortError as error:
        return replace(means, why_no_namespaces=str(error), is_short_of_namespaces=True)
    if choice.candidate is None:
        why = "; ".join(choice.passed_over) or f"there is no bubblewrap ({INSTALL})"
        return replace(means, why_no_namespaces=why)
    bwrap = choice.candidate.path
    why_no_network = without_network.get(bwrap, "")
    if has_overlays:
        means = _with_overlays(
            means, _tried(bwrap, has_network=bwrap in without_network, has_overlays=True), choice.version
        )
    return replace(
        means,
        bwrap=bwrap,
        bwrap_version=choice.version,
        about_bwrap=choice.in_words("bubblewrap"),
        why_no_namespaces=f"{bwrap}: {why_no_network}" if why_no_network else "",
        has_network_namespace=bwrap not in without_network,
    )


def _with_overlays(means: Means, tried: _Tried, version: Version) -> Means:
    why_none = tried.why_not
    if why_none and version < OVERLAYS_SINCE:
        why_none = f"bubblewrap makes them from version {dotted(OVERLAYS_SINCE)} on"
    return replace(means, why_no_overlays=why_none, overlaid=tried.overlaid)


def _tried_with(bwrap: str, *, has_network: bool, has_overlays: bool) -> _Tried:
    if has_overlays:
        overlaid = _tried(bwrap, has_network=has_network, has_overlays=True)
        if not overlaid.why_not or overlaid.is_short:
            return overlaid
    return _tried(bwrap, has_network=has_network, has_overlays=False)


def _tried(bwrap: str, *, has_network: bool, has_overlays: bool) -> _Tried:
    """Tries a program until it fails for another reason than a shortage, or not at all."""
    key = (bwrap, has_network, has_overlays)
    if key in _TRIED:
        return _TRIED[key]
    for pause_s in (*_PAUSES_S, None):
        trial = _begun(bwrap, has_network=has_network, has_overlays=has_overlays)
        del _BEGUN[key]
        tried = trial.result()
        if not tried.is_short:
            _TRIED[key] = tried
        if not tried.is_short or pause_s is None:
            break
        select.select([], [], [], pause_s)
    return tried


def _begun(bwrap: str, *, has_network: bool, has_overlays: bool) -> _Trial:
    key = (bwrap, has_network, has_overlays)
    if key not in _BEGUN:
        _BEGUN[key] = _Trial(bwrap, None if has_overlays else Cover(), has_network=has_network)
    return _BEGUN[key]


def _why_not_entered() -> str:
    """Why this process cannot enter a namespace, or an empty text. Of an invalid descriptor the kernel complains (EBADF), and a
    container's filter refuses the call itself.
    """
    try:
        restriction.prepare().setns(-1)
    except OSError as error:
        return "" if error.errno == errno.EBADF else f"namespaces cannot be entered: {error.strerror}"
    return ""


class _Trial:
    """A trial run of bubblewrap: a process that runs in the background until `result` waits for its end."""

    def __init__(self, bwrap: str, covered: Cover | None, *, has_network: bool) -> None:
        """`covered` is how the machine is shown; None makes overlays of all that there is now."""
        self._pid, self._why, self._reading = 0, "", -1
        self._empty: EmptyDirectory | None = None
        try:
            if covered is None:
                self._empty = EmptyDirectory()
                covered = cover("/", self._empty.path)
        except (OSError, TooManyMountsError) as error:
            self._why = str(error)
            return
        self._overlaid = covered.devices
        words = bwrap_command(bwrap, cover=covered.words, temporary=TEMPORARY, has_network=has_network)
        # The program has process id 1: otherwise bubblewrap's own one might end last, as an orphan of this process.
        self._start([*words, "--as-pid-1", "--cap-drop", "ALL", "--", bwrap, "--version"])

    def _start(self, command: list[str]) -> None:
        self._reading, writing = os.pipe()
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        streams = [(os.POSIX_SPAWN_DUP2, fd, to) for fd, to in ((nowhere, 0), (writing, 1), (writing, 2))]
        try:
            self._pid = os.posix_spawn(command[0], command, {}, file_actions=streams)
        except OSError as error:
            self._why = str(error.strerror)
        finally:
            os.close(nowhere)
            os.close(writing)

    def result(self) -> _Tried:
        """Waits for the program to end. Must be called once."""
        said, is_late = b"", False
        if self._reading >= 0:
            said, is_late = read_to_end(self._reading)
            os.close(self._reading)
        why = self._complaint(said, is_late=is_late)
        if self._empty is not None:
            self._empty.remove()
        if why:
            return _Tried(why, is_short=why.endswith(tuple(map(os.strerror, _SHORTAGES))))
        found = _VERSION.search(said)
        version = tuple(map(int, found[1].split(b"."))) if found else ()
        return _Tried(version=version, overlaid=self._overlaid)

    def _complaint(self, said: bytes, *, is_late: bool) -> str:
        if not self._pid:
            return self._why
        if is_late:
            os.kill(self._pid, signal.SIGKILL)
        code = exit_code(self._pid, unknown=1 if _VERSION.sub(b"", said).strip() else 0)
        if is_late:
            return f"it took longer than {TRIAL_WITHIN_S:g} s"
        if code == 0:
            return ""
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2][:_MOST_COMPLAINT]
        return last or f"it ended with {code}"
