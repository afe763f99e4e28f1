"""Checks the machine: interpreter, system, programs, protections, resources, and the directories that a run writes to,
where it writes a temporary file. Starts only ripgrep and the supervisor of commands. Checks the working directory too:
whether commits and pushes work, as a loop runs git, and the permission rules and hooks in settings files for Claude Code.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.cli.checks import Finding, fail, note, ok, short, warn
from ralph.git.answer import CheckoutError
from ralph.git.checkout import IDENTITY_ADVICE, GitCheckout, committer
from ralph.git.look import status_of
from ralph.git.runner import GitSeams
from ralph.loop import DEFAULT_PLAN_FILE
from ralph.loop.checkout import open_checkout
from ralph.loop.record import LoopStore
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.files.trees import LocalDisk
from ralph.machine.own_programs import (
    ProgramSearch,
    own_program,
    search_around,
    unsafe_loads,
    without_unsafe_loads,
)
from ralph.machine.process_start import DESCRIPTORS, is_memory_private
from ralph.machine.ripgrep import REINSTALL, RipgrepError, find_ripgrep
from ralph.machine.starting import patiently, start_thread
from ralph.machine.waiter import InboxWaiter
from ralph.permissions.claude_settings import ClaudeSettings, GuardError, HookCommand, read_all
from ralph.permissions.judge import DeniedPlaces, RulePlaces, denied_places
from ralph.permissions.rule import RuleError
from ralph.run.hooks import doubts, missing_program, plan_hooks
from ralph.run.parts import why_uncountable
from ralph.run.permission_rules import not_kept
from ralph.sandbox.box_plan import CannotConfineError
from ralph.sandbox.planning import plan_box, refuse_owners_work, with_denied_places
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.sessions.places import places_to_read
from ralph.sessions.store import SessionStore
from ralph.settings.files import ClaudeFileError, document_of, read_claude_files
from ralph.settings.merge import SettingsError
from ralph.settings.tables import Settings
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.outcome import CannotError, Outcome, ShortageError, shortage_of
from ralph.values.ports import Clock, Interrupted, JournalError, Waiter
from ralph.values.screen_text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


# ralph cannot undo what these have done when it begins.
_LOADED_AT_START = (
    *(
        "LD_AUDIT",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONPYCACHEPREFIX",
        "PYTHONUSERBASE",
    ),
    *("DYLD_FALLBACK_LIBRARY_PATH", "DYLD_FRAMEWORK_PATH", "DYLD_INSERT_LIBRARIES", "DYLD_LIBRARY_PATH"),
)
# Each row has a program, the consequence of its absence, and advice.
_PROGRAMS = (
    ("bash", "commands are run by /bin/sh", "install bash: models write commands for it"),
    ("git", "the agent cannot commit, and `ralph loop` does not start in a git checkout", "install git"),
)


def look_at_machine(
    environment: Mapping[str, str], ralph_version: str, wanted: SandboxSettings, cwd: Path | None = None
) -> Iterator[Finding]:
    """`cwd` is None if the working directory does not exist. `wanted` has the limit on processes."""
    yield ok("ralph", f"{ralph_version} on Python {platform.python_version()}")
    yield _system()
    search = search_around(environment, () if cwd is None else (cwd,), wanted.written(environment))
    for program, without, advice in _PROGRAMS:
        path = own_program(program, search)
        yield ok(program, path) if path else warn(program, f"not found: {without}", advice)
    yield _ripgrep(search)
    yield from _search_paths(environment, search)
    yield _memory()
    yield _process_limit(environment, wanted.max_processes)


def look_at_sandbox(
    wanted: SandboxSettings, environment: Mapping[str, str], cwd: Path | None
) -> Iterator[Finding]:
    """The sandbox that commands would get: its level, its network, and each protection that is not in force."""
    try:
        plan = plan_box(wanted, environment, () if cwd is None else (cwd,))
        if cwd is not None:
            refuse_owners_work(plan, cwd)
    except CannotConfineError as error:
        yield fail("sandbox", str(error), "change the settings of [sandbox], or the machine")
        return
    about = plan.means.about_bwrap
    yield ok("bwrap", about) if about else note("bwrap", f"not used: {plan.means.why_no_namespaces}")
    if not plan.is_confined or plan.level.name == "none":
        yield warn(
            "sandbox",
            "none: commands run as you and can change whatever you can",
            "use a container or a separate account for tasks that you would not run yourself",
        )
    else:
        reached = ", ".join(name for name, is_reached in plan.protections.items() if is_reached)
        reasons = plan.level.reasons().items()
        missing = "".join(f"; not in force: {', '.join(names)} ({why})" for why, names in reasons)
        yield ok("sandbox", f"{plan.level.name}; network: {plan.net}; in force: {reached}{missing}")
        if plan.unix_sockets != "all":  # otherwise a protection is not in force, and named
            own = plan.unix_sockets == "own"
            why = "" if own else f" ({plan.means.why_not_own_sockets or 'sandbox.unix_sockets = deny'})"
            yield ok("unix sockets", "commands have their own" if own else f"commands have none{why}")
        if plan.gpus:
            yield ok("gpu", f"commands may use {', '.join(plan.gpus)}")
    for notice in plan.notices:
        yield warn("sandbox", notice.text, notice.advice)


def look_at_room(waiter: Waiter, clock: Clock) -> Iterator[Finding]:
    """A finding if no thread can be started, also after a while, or if too few file descriptors are left for a run."""
    held: list[int] = []
    try:
        patiently(lambda: start_thread(lambda: None, name="room"), waiter, clock)
        held += [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(DESCRIPTORS)]
    except OSError as error:
        yield short("machine", shortage_of(error) or ShortageError("file descriptor"))
    finally:
        for descriptor in held:
            os.close(descriptor)


def _system() -> Finding:
    name = f"{platform.system()} {platform.release()} ({platform.machine()})"
    if sys.platform == "linux":
        return ok("system", name)
    return warn(
        "system",
        f"{name}: ralph is tested on Linux; elsewhere, what a killed ralph has started keeps running",
        "run it in a Linux container where that matters",
    )


def _ripgrep(search: ProgramSearch) -> Finding:
    try:
        return ok("rg", find_ripgrep(search).in_words("ripgrep"))
    except RipgrepError as error:
        return warn("rg", f"{error}: Glob and Grep do not work", REINSTALL)


def _search_paths(environment: Mapping[str, str], search: ProgramSearch) -> Iterator[Finding]:
    """Yields a warning for each variable because of which ralph, or a program, may run what is where commands may write."""
    if not all(entry.startswith(os.sep) for entry in environment.get("PATH", os.defpath).split(os.pathsep)):
        yield warn(
            "PATH",
            "has an empty or a relative entry: a command of the agent may run a program from the directory that it works in",
            "take that entry out",
        )
    for name, entries in unsafe_loads(environment, search).items():
        if entries and name in _LOADED_AT_START:
            yield warn(
                name,
                f"names {', '.join(entry or os.curdir for entry in entries)}, where commands may write: code "
                "from there runs before ralph does",
                "unset it for ralph",
            )


def _memory() -> Finding:
    if is_memory_private():
        return ok(
            "memory", "ralph leaves no core dump, and an ordinary user's commands cannot read its memory"
        )
    return warn(
        "memory",
        "on this system, commands can read ralph's memory, which holds the key",
        "run it on Linux where that matters",
    )


def _process_limit(environment: Mapping[str, str], most: int) -> Finding:
    if not most:
        return warn("process limit", "none for commands: sandbox.max_processes is 0", "set a number")
    needed = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    kept = {name: environment[name] for name in needed if name in environment}
    supervisor = CommandSupervisor(kept, most_processes=most)
    try:
        why = supervisor.why_no_group()
    except OSError as error:
        why = str(shortage_of(error) or error.strerror)
    finally:
        supervisor.close()
    limit = f"a command may have {most} processes and threads at a time"
    if why is None:
        return ok("process limit", f"{limit}; a control group enforces it")
    if os.path.isdir("/proc/self/task"):  # noqa: PTH112 - one look
        return ok("process limit", f"{limit}; ralph counts them once a second, because {why}")
    return warn("process limit", f"none for commands: {why}", "run it on Linux where that matters")


def look_at_sessions(environment: Mapping[str, str], named: Path | None, cwd: Path | None = None) -> Finding:
    """A finding about the directory for sessions. If the directory is missing, it is created, as a run would do."""
    advice = "name another place with --session-dir DIR or RALPH_STATE_DIR"
    try:
        where = places_to_read(environment, named)[0]
    except OSError as error:  # no home, and no temporary directory either
        return fail("sessions", f"they cannot be saved: {_reason(error)}", advice)
    try:
        store = SessionStore.for_user(environment, named, () if cwd is None else (cwd,))
        _write_into(store.root)
    except (JournalError, OSError) as error:
        return fail("sessions", f"{where} is not writable: {_reason(error)}", advice)
    if store.notice is not None:
        return warn("sessions", store.notice, "set HOME, RALPH_STATE_DIR or --session-dir DIR")
    return ok("sessions", f"{store.root} is writable")


def look_at_working_directory(cwd: Path | None) -> Finding:
    """A finding about the working directory. `cwd` is None if that directory does not exist."""
    if cwd is None:
        return fail(
            "working directory", "it is gone", "change to a directory that exists, or name one with --cd DIR"
        )
    try:
        _write_into(cwd)
    except OSError as error:
        return warn(
            "working directory",
            f"{cwd} is not writable ({_reason(error)}): the agent can only read here",
            "name another one with --cd DIR",
        )
    return ok("working directory", f"{cwd} is writable")


def _write_into(directory: Path) -> None:
    with tempfile.TemporaryFile(dir=directory, prefix=".ralph-doctor-") as file:
        file.write(b"?")
        file.flush()


def _reason(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, JournalError) else error
    if isinstance(cause, FileExistsError | NotADirectoryError):
        return "a file is in the way"
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause or error)


# --- Limits, free space on disks, and free processes


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
    most, used = _user_room()
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


def _user_room() -> tuple[int | None, int]:
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


_PUSH_S = 60.0
"""The time limit of the attempt to push. A loop waits longer, but a person waits for doctor."""
_GIT_S = 20.0


# --- The working directory


def look_at_git(
    environment: Mapping[str, str], settings: Settings | None, cwd: Path, clock: Clock, *, tries_push: bool
) -> Iterator[Finding]:
    """Findings about the identity for commits, and with `tries_push` about a push (`--dry-run`, a minute at most).
    None outside a git checkout. Git runs as a loop runs it, without credentials in its environment.
    """
    secrets = known_secrets(environment, settings.secrets if settings else ())
    passed = settings.tools.pass_env if settings else ()
    variables = settings.key_variables if settings else frozenset()
    ours = child_environment(environment, passed, secrets, variables)
    wanted = settings.sandbox if settings else SandboxSettings()
    search = search_around(ours, (cwd,), wanted.written(ours))
    supervisor = CommandSupervisor(without_unsafe_loads(ours, search), makes_group=False)

    checks = {"git identity": (_identity, _GIT_S)} | ({"push": (_push, _PUSH_S)} if tries_push else {})
    try:
        for subject, (check, within_s) in checks.items():
            waiter = InboxWaiter(clock, run_ends_s=clock.now_s() + within_s)
            checkout = open_checkout(
                cwd, DEFAULT_PLAN_FILE, GitSeams(ours, supervisor, waiter, clock, writable=search.roots)
            )
            if isinstance(checkout, GitCheckout):
                yield _told(subject, within_s, partial(check, checkout))
    finally:
        supervisor.close()


def _told(subject: str, within_s: float, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Interrupted:
        return warn(
            subject, f"git did not answer within {within_s:g} s", "check whether git itself works here"
        )
    except CheckoutError as error:
        return warn(subject, str(error), "fix what git reports; a loop with --commit or --push needs it")
    except OSError as error:
        return short(subject, shortage_of(error) or ShortageError("process"))


def _identity(checkout: GitCheckout) -> Finding:
    checkout.refuse_foreign()
    name = committer(checkout.git())
    if name is None:
        problem = "git has no name and address for commits here, so every commit would fail"
        return warn("git identity", problem, IDENTITY_ADVICE)
    return ok("git identity", f"commits will be by {name}")


def _push(checkout: GitCheckout) -> Finding:
    checkout.refuse_foreign()
    git = checkout.git()
    try:
        push = checkout.push_of(git, status_of(git))
    except CheckoutError as error:
        return note("push", f"--push is not possible here: {error}")
    target = push.target
    where = f"remote {target.remote}, branch {target.branch}"
    try:
        push.try_out()
    except CheckoutError as error:
        return warn("push", f"{where}: {error}; a loop with --push would not start", target.advice)
    return ok("push", f"{where} would accept a push")


_NAME = "permission rules"
_HOOKS = "hooks"


def look_at_claude_rules(
    cwd: Path, environment: Mapping[str, str], settings: Settings | None = None
) -> Iterator[Finding]:
    """Findings about the settings files for Claude Code: which of their rules a run with `settings` would apply, and
    which not.
    """
    try:
        files = read_claude_files(cwd, environment)
        read = read_all(((file, document_of(file)) for file in files), ("user",))
    except (ClaudeFileError, GuardError) as error:
        yield fail(_NAME, str(error), "correct that file: no run begins without its rules")
        return
    for found in read:
        if found.rules or found.hooks:
            counts = f"{len(found.rules)} rules" + (f", {len(found.hooks)} hooks" if found.hooks else "")
            yield ok(_NAME, f"{found.file.name}: {counts}")
        if found.sandbox.keys:
            yield ok(_NAME, f"{found.file.name}: commands are restricted by {', '.join(found.sandbox.keys)}")
        for fact, advice in not_kept(found):
            yield warn(_NAME, fact, advice)
    settings = settings or Settings()
    yield from _about_hooks(cwd, environment, settings, [hook for found in read for hook in found.hooks])
    yield from _about_denied_places(cwd, environment, settings, read)


def _about_hooks(
    cwd: Path, environment: Mapping[str, str], settings: Settings, hooks: Sequence[HookCommand]
) -> Iterator[Finding]:
    if not hooks:
        return
    search = search_around(environment, (cwd,), settings.sandbox.written(environment))
    try:
        plan = plan_box(settings.sandbox, environment, (cwd,))
        made = plan_hooks(settings, environment, hooks, plan, search=search, roots=(cwd,))
    except CannotConfineError:  # the finding about the sandbox says so
        return
    except SettingsError as error:
        yield fail(_HOOKS, str(error), "no run begins with it")
        return
    more = ", ".join((*made.write[len(plan.write) :], *made.sockets[len(plan.sockets) :]))
    where = f"in the sandbox of commands{f', with {more}' if more else ''}"
    yield ok(_HOOKS, f"{len(hooks)} run {where if made.is_confined else 'without a sandbox'}")
    for fact, advice in doubts(hooks, made, search.roots, has_more=made is not plan):
        yield warn(_HOOKS, fact, advice)
    for hook in hooks:
        missing = missing_program(hook.command, cwd, environment)
        if missing is not None:
            yield warn(_HOOKS, f"the {hook.event} hook ({hook.name}) names {missing}", "it does not exist")


def _about_denied_places(
    cwd: Path, environment: Mapping[str, str], settings: Settings, read: Sequence[ClaudeSettings]
) -> Iterator[Finding]:
    rules = [rule for found in read for rule in found.rules]
    home = environment.get("HOME", "")
    try:
        places = RulePlaces(str(cwd), home if home.startswith("/") else "", LocalDisk())
        denied = denied_places(rules, settings.tools.disallowed, places, (str(cwd),))
    except RuleError as error:
        yield fail(_NAME, str(error), "correct that rule: no run begins without it")
        return
    if denied == DeniedPlaces():
        return
    try:
        plan = plan_box(settings.sandbox, environment, (cwd,))
    except CannotConfineError:  # the finding about the sandbox says so
        return
    if plan.is_confined:
        made = with_denied_places(plan, denied.read, (cwd,), denied.unsearched, denied.changed)
        for notice in made.notices[len(plan.notices) :]:
            yield warn(_NAME, notice.text, notice.advice)
