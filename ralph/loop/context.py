"""Everything that one invocation of `ralph loop` works with, made once: settings, secrets, event sinks.

It starts no process and spends no money. If a part cannot be made, the invocation ends with a one-line error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.loop.git.own_paths import own_output_files
from ralph.loop.rules import with_new_limits
from ralph.loop.sinks import LoopNarration, StepSummary
from ralph.loop.state import LoopState
from ralph.loop.store import LoopStore
from ralph.loop.values import LoopLimits
from ralph.machine.processes import protect_this_process
from ralph.machine.waiter import Heartbeats, InboxWaiter
from ralph.output.event_stream import EventStream
from ralph.sessions.store import SessionStore
from ralph.settings.files import SettingsFileError
from ralph.settings.handover import changed_since, files_of_loop, recorded_files
from ralph.settings.merge import SettingsError, load_settings
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.events import Notice
from ralph.values.outcome import Outcome
from ralph.values.ports import JournalError
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.loop.options import LoopOptions
    from ralph.loop.values import LoopPlan
    from ralph.machine.inbox import Inbox
    from ralph.settings.files import SettingsFile
    from ralph.settings.tables import Settings
    from ralph.values.ports import Clock, Events

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


class CannotBeginError(Exception):
    """A one-line error for a loop that cannot begin, with the outcome of the command."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class LoopContext(Struct, frozen=True):
    options: LoopOptions
    environment: Mapping[str, str]
    settings: Settings
    settings_files: tuple[SettingsFile, ...]
    """The settings files as they were when the loop began; later changes do not count."""
    redactor: Redactor
    command_environment: Mapping[str, str]
    """The environment of the check and of git. It has no credentials, like that of the agent's commands."""
    store: LoopStore
    events: Events
    waiter: InboxWaiter
    clock: Clock

    @property
    def directory(self) -> Path:
        return Path(self.options.plan.directory)

    def tell(self, text: str) -> None:
        self.events.emit(Notice(text))

    def waiter_until(self, run_ends_s: float | None) -> InboxWaiter:
        """A waiter whose waits end at `run_ends_s`, a time of the clock; None: there is no time limit. It is used
        before the loop's own time limits apply.
        """
        return _make_waiter(self.waiter.inbox, self.clock, self.events, self.settings, run_ends_s)

    def warn(self, text: str) -> None:
        """Reports a warning. `--quiet` does not hide it."""
        self.events.emit(Notice(text, is_vital=True))


def event_stream(
    options: LoopOptions, environment: Mapping[str, str], redactor: Redactor, *, is_quiet: bool = False
) -> Events:
    """All sinks of a loop's events."""
    narration = LoopNarration(
        redact=redactor.redact_all,
        has_color="NO_COLOR" not in environment and os.isatty(2),
        is_quiet=is_quiet,
    )
    path = environment.get(STEP_SUMMARY)
    if not path:
        return narration
    directories = (options.plan.launch_directory, options.plan.directory)
    summary = StepSummary(path, directories, redact=redactor.redact_all, narration=narration)
    return EventStream(summary, narration)  # the end is the last line


def open_context(
    options: LoopOptions, environment: Mapping[str, str], inbox: Inbox, clock: Clock, early: Events
) -> tuple[LoopContext, LoopState]:
    """The context, and the state to begin or resume with. The prompt from the command line is not in the state yet.

    `early` receives the events until all credentials are known. Raises CannotBeginError, RecordError.
    """
    protect_this_process()
    directory = Path(options.plan.directory)
    _enter(directory)
    store = _opened_store(environment, directory)
    state = opening_state(options, environment, store, clock)
    files = _settings_files(state.plan, environment, early)
    state = replace(state, plan=_with_recorded_files(state.plan, files))
    settings = _settings(state.plan, environment, files)
    redactor = Redactor(known_secrets(environment, settings.secrets))
    events = event_stream(options, environment, redactor, is_quiet=state.plan.is_quiet)
    context = LoopContext(
        options,
        environment,
        settings,
        files,
        redactor,
        child_environment(
            environment,
            settings.tools.pass_env,
            known_secrets(environment, settings.secrets),
            settings.key_variables,
        ),
        store,
        events,
        _make_waiter(inbox, clock, events, settings),
        clock,
    )
    return context, state


def _make_waiter(
    inbox: Inbox, clock: Clock, events: Events, settings: Settings, run_ends_s: float | None = None
) -> InboxWaiter:
    heartbeats = Heartbeats(clock, settings.clocks.heartbeat_s)
    return InboxWaiter(clock, inbox, events=events, heartbeats=heartbeats, run_ends_s=run_ends_s)


def opening_state(
    options: LoopOptions, environment: Mapping[str, str], store: LoopStore, clock: Clock
) -> LoopState:
    """A new state; with `--continue`, the state in the newest record. Raises CannotBeginError, RecordError."""
    now = clock.utc_now().isoformat()
    if not options.continues:
        plan = _with_own_paths(options.plan, environment)
        return LoopState(plan, started_at=now, pid=os.getpid(), updated_at=now)
    directory, record = options.plan.directory, store.newest()
    state, given = record.load(), options.limits_given
    if state.plan.directory != directory:
        other = f"{record.path} is of the loop in {state.plan.directory}; ralph loop begins a new one here"
        raise CannotBeginError(Outcome.CONFIG, other)
    ended = state.ended
    if ended is not None and ended.outcome is Outcome.COMPLETED and given == LoopLimits():
        done = f"the loop of {directory} is done ({ended.reason})"
        raise CannotBeginError(
            Outcome.USAGE, f"{done}; ralph loop begins a new one, higher limits go on with it"
        )
    plan = _with_own_paths(state.plan, environment)
    return with_new_limits(replace(state, plan=plan, pid=os.getpid(), ended=None, unpushed=0), given)


def _enter(directory: Path) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise CannotBeginError(Outcome.USAGE, f"cannot work in {directory}: {error.strerror}") from None


def _opened_store(environment: Mapping[str, str], directory: Path) -> LoopStore:
    try:
        return LoopStore.for_user(environment, directory)
    except JournalError as error:
        problem = f"there is no place for the loop's record: {error}"
        raise CannotBeginError(Outcome.IO_ERROR, problem) from None


def _settings_files(
    plan: LoopPlan, environment: Mapping[str, str], events: Events
) -> tuple[SettingsFile, ...]:
    """The settings files, read once: changes that an iteration makes to them have no effect."""
    recorded = plan.settings_files or ()
    config_file = None if plan.config_file is None else Path(plan.config_file)
    try:
        files = files_of_loop(environment, Path(plan.directory), config_file, recorded)
    except SettingsFileError as error:
        raise CannotBeginError(Outcome.CONFIG, str(error)) from None
    for path in changed_since(recorded):
        problem = f"{path} was changed since the loop began: what it said then counts to its end"
        events.emit(Notice(problem, is_vital=True))
    return files


def _with_recorded_files(plan: LoopPlan, files: tuple[SettingsFile, ...]) -> LoopPlan:
    if plan.settings_files is not None:
        return plan
    reach = [Path(plan.directory), *map(Path, plan.added_directories)]
    return replace(plan, settings_files=recorded_files(files, reach))


def _settings(plan: LoopPlan, environment: Mapping[str, str], files: tuple[SettingsFile, ...]) -> Settings:
    """The loop's own settings. This does not look for an API key: the options of an iteration may name it, so the first
    iteration checks.
    """
    config_file = None if plan.config_file is None else Path(plan.config_file)
    flags = {"tools.pass_env": plan.pass_env}
    try:
        return load_settings(flags, environment, Path(plan.directory), config_file, files)
    except SettingsFileError as error:
        raise CannotBeginError(Outcome.CONFIG, str(error)) from None
    except SettingsError as error:
        if error.so_far is None:
            raise CannotBeginError(Outcome.CONFIG, str(error)) from None
        return error.so_far


def _with_own_paths(plan: LoopPlan, environment: Mapping[str, str]) -> LoopPlan:
    """The plan with all paths that ralph, or the shell that started it, writes to. Changes there are not the agent's
    work.
    """
    directory = Path(plan.directory)
    named = None if plan.session_directory is None else Path(plan.session_directory)
    stores = [SessionStore.to_read(environment, place) for place in (None, named)]
    files = [plan.metrics_file, environment.get(STEP_SUMMARY)]
    places = (
        *own_output_files(),
        *(store.root for store in stores),
        *(store.place_of(directory) for store in stores),
        *LoopStore.to_read(environment, directory).roots,
        *(Path(plan.launch_directory, path) for path in files if path),
    )
    return replace(plan, own_paths=tuple(dict.fromkeys((*plan.own_paths, *map(str, places)))))
