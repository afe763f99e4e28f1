"""Checks what a long run needs beside a server: limits, free space on disks, and free processes."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.cli.checks.finding import Finding, fail, ok, warn
from ralph.loop.record import LoopStore
from ralph.run.parts import why_uncountable
from ralph.sessions.places import places_to_read
from ralph.values.outcome import CannotError, Outcome
from ralph.values.screen_text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.settings.tables import Settings

_MEGABYTE = 1_000_000
# A long overnight run writes about 100 MB of journal (specs/sessions.md), and builds write more.
_LEAST_BYTES, _GOOD_BYTES = 100 * _MEGABYTE, 2_000 * _MEGABYTE
_LEAST_INODES, _GOOD_INODES = 1_000, 50_000
# A build or a test run of a command may take some hundred processes and threads, ralph itself about 20.
_GOOD_PROCESSES = 200
_GOOD_FILES = 256
_NO_LIMIT = "give --max-budget-usd and --max-time, for a loop also --max-iterations, or set [limits] in your config.toml"


def look_at_limits(settings: Settings) -> Finding:
    """A finding about the limits that the settings give to every run."""
    limits = settings.limits
    if limits.max_budget_usd is not None:
        for problem in filter(None, (why_uncountable(target, settings) for target in settings.targets)):
            text, _, advice = problem.partition(". ")
            return fail("limits", text, advice)
    told = [
        *([counted(limits.max_turns, "turn")] if limits.max_turns is not None else []),
        *([f"${limits.max_budget_usd:g}"] if limits.max_budget_usd is not None else []),
        *([f"{limits.max_time_s:g} s"] if limits.max_time_s is not None else []),
    ]
    if told:
        return ok("limits", f"a run ends after {', '.join(told)}")
    return warn("limits", "no limit is set: a run may take any number of turns, dollars and hours", _NO_LIMIT)


def look_at_disks(
    environment: Mapping[str, str], session_directory: Path | None, cwd: Path | None
) -> Iterator[Finding]:
    """One finding for each file system on which an overnight run writes."""
    found: dict[int, list[str]] = {}
    at: dict[int, Path] = {}
    for name, place in _written_places(environment, session_directory, cwd):
        with suppress(OSError):
            there = next(one for one in (place, *place.parents) if one.is_dir())
            device = there.stat().st_dev
            found.setdefault(device, []).append(name)
            at.setdefault(device, there)
    for device, names in found.items():
        with suppress(OSError):
            space = os.statvfs(at[device])
            # /proc has no blocks; a review may read only.
            if space.f_blocks and not space.f_flag & os.ST_RDONLY:
                yield disk_finding(", ".join(names), at[device], space)


def disk_finding(names: str, place: Path, space: os.statvfs_result) -> Finding:
    """The finding about one file system. `names` says what is written there, and `place` is a directory on it."""
    free_bytes = space.f_bavail * space.f_frsize
    has_inodes = space.f_files > 0  # some file systems have no fixed number of files
    text = f"{free_bytes / 1e9:,.1f} GB" + (f" and {space.f_favail:,} files" if has_inodes else "")
    text = f"{text} free for {names} ({place})"
    advice = "free space there, or move it: --session-dir, RALPH_STATE_DIR, TMPDIR"
    if free_bytes < _LEAST_BYTES or (has_inodes and space.f_favail < _LEAST_INODES):
        return fail("disk", text, advice, Outcome.IO_ERROR)
    if free_bytes < _GOOD_BYTES or (has_inodes and space.f_favail < _GOOD_INODES):
        return warn("disk", text, advice)
    return ok("disk", text, free_bytes=free_bytes, free_files=space.f_favail if has_inodes else None)


def _written_places(
    environment: Mapping[str, str], session_directory: Path | None, cwd: Path | None
) -> Iterator[tuple[str, Path]]:
    with suppress(OSError):
        yield "sessions", places_to_read(environment, session_directory)[0]
    if cwd is not None:
        with suppress(OSError, CannotError):  # the finding about sessions tells of a file in the way
            yield "loops", LoopStore.to_read(environment, cwd).roots[0]
        yield "the working directory", cwd
    yield "temporary files", Path(environment.get("TMPDIR") or "/tmp")  # noqa: S108 - only looked at


def look_at_process_room() -> Finding:
    """A finding about the processes, threads and files that this user and this container may have."""
    most, used = _process_limit()
    group = _group_room()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    told, left = [], []
    if most is not None:
        told.append(f"{used:,} of {most:,} processes and threads of this user (ulimit -u)")
        left.append(most - used)
    if group is not None:
        told.append(f"{group[0]:,} of {group[1]:,} of this control group (pids.max)")
        left.append(group[1] - group[0])
    has_files = files == resource.RLIM_INFINITY or files >= _GOOD_FILES
    told.append(
        "any number of open files" if files == resource.RLIM_INFINITY else f"{files:,} open files (ulimit -n)"
    )
    text = ", ".join(told if most or group else ["no limit on processes", *told])
    if left and min(left) < _GOOD_PROCESSES:
        advice = f"raise that limit, or end other programs: a build may start {_GOOD_PROCESSES} processes and threads"
        return warn("process budget", f"{text}: {min(left):,} are left", advice)
    if not has_files:
        return warn("process budget", text, f"raise the limit on open files: ulimit -n {_GOOD_FILES * 4}")
    return ok("process budget", text, left=min(left, default=None), open_files=files)


def _process_limit() -> tuple[int | None, int]:
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft == resource.RLIM_INFINITY or os.getuid() == 0:
        return None, 0
    used = 0
    with suppress(OSError), os.scandir("/proc") as listing:
        for entry in listing:
            with suppress(OSError):
                if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                    used += os.stat(f"{entry.path}/task").st_nlink - 2  # noqa: PTH116 - for each process
    return soft, used


def _group_room() -> tuple[int, int] | None:
    """Used and allowed processes and threads of the control group with the least room. None without a limit."""
    found = []
    for base in _control_groups():
        for group in (base, *base.parents):
            with suppress(OSError, ValueError):  # ValueError if the limit is "max"
                most = int((group / "pids.max").read_text())
                found.append((int((group / "pids.current").read_text()), most))
    return min(found, key=lambda one: one[1] - one[0], default=None)


def _control_groups() -> Iterator[Path]:
    """Those of version 2, and of the controller `pids` of version 1. In a container, the kernel may name another path than
    the mounted one.
    """
    root = Path("/sys/fs/cgroup")
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield root / path.lstrip("/")
            elif "pids" in controllers.split(","):
                yield root / "pids" / path.lstrip("/")
