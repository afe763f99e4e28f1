"""The context of one process of `ralph run`: its options, settings, clock and event sinks. It is created before the
first event, and never changes.

It can be created even if the settings cannot be read, because ralph reports that error in a result.
"""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph import __version__
from ralph.machine.waiter import Heartbeats, InboxWaiter
from ralph.output.spool import is_one_stream
from ralph.output.standard_streams import has_color, obeys_controls
from ralph.output.writer import Writer
from ralph.run.telemetry import SessionNotes, Telemetry, open_metrics
from ralph.run.wiring import (
    Surroundings,
    refuse_uncountable_budget,
    safe_environment,
    search_for_programs,
)
from ralph.settings.merge import ClaudeOptions, load_with_claude
from ralph.settings.tables import ClockSettings
from ralph.values.controls import PermissionMode, RunControls
from ralph.values.credentials import known_secrets
from ralph.values.events import ClockFired, EventStream, Notice
from ralph.values.limits import LimitSettings
from ralph.values.outcome import CannotError, Outcome, UsageError
from ralph.values.ports import Interrupted, TimeIsUp
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.machine.inbox import Inbox
    from ralph.output.diagnostics import Diagnostics
    from ralph.output.iteration_log import IterationLog, LiveFile
    from ralph.output.notifier import Notifier
    from ralph.output.telemetry.metrics_file import MetricsFile
    from ralph.run.driven.driven_run import Driver
    from ralph.run.options import RunOptions
    from ralph.settings.tables import Settings
    from ralph.values.events import Event
    from ralph.values.ports import Clock, Events


class RunPlace(Struct, frozen=True):
    """The working directory and the settings of the run."""

    cwd: Path
    settings: Settings


class RunContext(Struct, frozen=True):
    options: RunOptions
    environment: Mapping[str, str]
    new_id: str
    """The id that a new session gets."""
    started_s: float
    clock: Clock
    place: RunPlace | Exception
    """The working directory and the settings. If one of them cannot be used, this is the exception that says why.
    `surroundings` raises it."""
    controls: RunControls
    waiter: InboxWaiter
    redactor: Redactor
    writer: Writer
    telemetry: Telemetry
    notes: SessionNotes
    events: Events
    """Receives every event of the run and passes it on to all receivers (the writer, the telemetry, the notes)."""
    driver: Driver | None
    """The connection to the driver that steers the run over standard input, or None if there is no driver."""
    log: IterationLog | None
    """Writes the run's events to the log of the loop that started the run. None if no loop started it."""
    notifier: Notifier | None
    """Tells a program of the user's how the run has ended. None if none is named, or if a loop tells it."""

    def tell(self, event: Event) -> None:
        """Writes a line for people that is no part of the run's events. Call this only before a run begins, or after
        its result is written.
        """
        self.writer.tell(event)
        if self.log is not None:
            self.log.emit(event)

    def surroundings(self) -> Surroundings:
        """The objects that all parts of the run share. Raises the exception in `place` if there is one."""
        if isinstance(self.place, Exception):
            raise self.place
        cwd, settings = self.place.cwd, self.place.settings
        return Surroundings(
            settings, self.environment, cwd, self.waiter, self.clock, self.events, self.redactor
        )


def make_context(
    options: RunOptions, environment: Mapping[str, str], inbox: Inbox, clock: Clock, *watchers: Events
) -> RunContext:
    """Creates the context. Wrong settings cause no error here. Each of the `watchers` receives every event of the
    run. The demo uses a watcher for its summary.
    """
    started_s = clock.now_s()
    metrics, place = _find_place(options, environment, clock)
    settings = None
    if isinstance(place, RunPlace):
        settings, environment = place.settings, {**environment, **place.settings.variables.plain}
        options = replace(options, writable=tuple(dict.fromkeys((*options.writable, *settings.directories))))
    controls = _make_controls(options, settings)
    secrets, of_loop = (
        known_secrets(environment, settings.secrets if settings is not None else ()),
        options.of_loop,
    )
    redactor = Redactor(secrets) if of_loop is None else Redactor(secrets | of_loop.secrets, of_loop.tell)
    new_id = options.session.session_id or str(uuid.uuid4())
    writer = _make_writer(options, environment, new_id, redactor)
    heartbeats = _make_heartbeats(options, settings, clock)
    telemetry, notes = Telemetry(clock, metrics), SessionNotes(redactor.redact)
    if options.has_diagnostics:
        watchers = (_make_diagnostics(options, clock, started_s, writer, redactor), *watchers)
    progress = None
    if options.takes_messages:
        from ralph.run.driven.progress import Progress  # noqa: PLC0415 - few runs are driven

        progress = Progress(clock)
        watchers = (progress, *watchers)
    log, live = _make_log(
        options, settings, clock, redactor, new_id, tell=lambda text: events.emit(Notice(text))
    )
    status = None
    if _shows_status(options, environment, writer):
        from ralph.output.status_line import StatusLine  # noqa: PLC0415 - for terminals alone

        status = StatusLine(
            writer, clock, redactor.redact, wake=inbox.wake, is_iteration=options.of_loop is not None
        )
    drawing: tuple[Events | None, ...] = (status, log, live)
    watchers = (*(sink for sink in drawing if sink is not None), *watchers)
    looks: list[Callable[[], None]] = [drawn.look for drawn in (live, status) if drawn is not None]
    if metrics is not None:
        looks.append(lambda: telemetry.look(events))
    events: Events = EventStream(heartbeats, *watchers, telemetry, writer, notes)
    driver = None
    if progress is not None:
        from ralph.run.driven.driven_run import make_driver  # noqa: PLC0415 - few runs are driven

        driver = make_driver(inbox, controls, clock, progress=progress, writer=writer, events=events)
    waiter = InboxWaiter(
        clock,
        inbox,
        events=events,
        heartbeats=heartbeats,
        driver=None if driver is None else driver.steering,
        run_ends_s=_run_ends_s(settings, started_s),
        on_first_stop=lambda stop: events.emit(_stop_event(stop, clock.now_s() - started_s)),
        on_tick=writer.count_down if obeys_controls(2, environment) and not options.output.is_quiet else None,
        on_look=_one_after_the_other(looks) if looks else None,
    )
    notifier = None
    if settings is not None and settings.notify.command is not None and options.of_loop is None:
        around = Surroundings(settings, environment, Path.cwd(), waiter, clock, events, redactor)
        try:
            notifier = _open_notifier(settings.notify.command, around, options.writable)
            events = EventStream(events, notifier)
        except CannotError as error:
            place = error
    return RunContext(
        *(options, environment, new_id, started_s, clock, place, controls, waiter, redactor, writer),
        *(telemetry, notes, events, driver, log, notifier),
    )


def _find_place(
    options: RunOptions, environment: Mapping[str, str], clock: Clock
) -> tuple[MetricsFile | None, RunPlace | Exception]:
    """Enters the working directory, opens the metrics file, and then reads the settings.

    Returns the metrics file, or None if it is not open. Also returns the place, or the exception because of which
    there is no place. The metrics file is opened before the settings are read, so that it does not keep the numbers
    of an earlier run if wrong settings end this run.
    """
    metrics = None
    try:
        if options.takes_messages:
            from ralph.run.driven.driven_run import refuse_unusable_input  # noqa: PLC0415 - few runs are driven

            refuse_unusable_input(options)
        cwd = _enter_directory(options.directory)
        metrics = open_metrics(options.metrics_file, clock, options.output.directories)
        return metrics, _read_settings(options, environment, cwd)
    except Exception as error:  # noqa: BLE001 - reported as the run's result, once there is a writer
        return metrics, error


def _enter_directory(directory: str | None) -> Path:
    """Changes to the working directory and returns it. Tools, files and git use it as the current directory."""
    if directory is not None:
        try:
            os.chdir(directory)
        except OSError as error:
            raise UsageError(f"cannot work in {directory}: {error.strerror}") from error
    try:
        return Path.cwd()
    except FileNotFoundError:
        gone = "the working directory is gone; change to one that exists"
        raise CannotError(gone, Outcome.IO_ERROR) from None


def _read_settings(options: RunOptions, environment: Mapping[str, str], cwd: Path) -> RunPlace:
    """Reads and checks the settings. Raises SettingsError."""
    config_file = Path(options.config_file) if options.config_file is not None else None
    of_loop = options.of_loop
    settings = load_with_claude(
        options.settings,
        environment,
        cwd,
        config_file,
        None if of_loop is None else of_loop.files,
        reach=tuple(map(Path, options.writable)),
        claude=ClaudeOptions(
            options.claude_settings,
            options.setting_sources,
            None if of_loop is None else of_loop.claude_files,
        ),
    )
    if options.is_restricted:
        settings = replace(settings, origins=_origins_of_restricted(settings.origins, options.settings))
    if not options.session.is_old:
        refuse_uncountable_budget(settings.targets, settings)
    return RunPlace(cwd, settings)


def _origins_of_restricted(origins: Mapping[str, str], flags: Mapping[str, object]) -> dict[str, str]:
    """The origins of the settings under `--restricted`, which stands for other flags that the user did not type."""
    own, lists = "flag --restricted", "flag --disallowed-tools"
    typed = own if flags["tools.disallowed"] == ("Bash",) else f"{lists}, {own}"
    changed = {name: origins[name].replace(lists, typed) for name in ("tools", "tools.disallowed")}
    return {**origins, **changed, "sandbox.mode": own}


def _run_ends_s(settings: Settings | None, started_s: float) -> float | None:
    max_time_s = settings.limits.max_time_s if settings is not None else None
    return None if max_time_s is None else started_s + max_time_s


def _make_controls(options: RunOptions, settings: Settings | None) -> RunControls:
    # A driver that wants to be asked would never be, if every tool were permitted. Nor would anything be denied.
    usual = PermissionMode.BYPASS if options.permissions is None else PermissionMode.DEFAULT
    mode = options.permission_mode or usual
    retries = settings is None or (settings.retry.enabled and settings.retry.policy != "off")
    return RunControls(
        auto_retry=retries,
        permission_mode=mode,
        stays_in_plan=mode is PermissionMode.PLAN,
        permissions_are_asked=options.permissions is not None,
    )


def _make_heartbeats(options: RunOptions, settings: Settings | None, clock: Clock) -> Heartbeats:
    clocks = ClockSettings() if settings is None else settings.clocks
    return Heartbeats(
        clock,
        clocks.heartbeat_s,
        shows_deltas=options.output.include_partial,
        shows_lines=not is_one_stream(1, 2),
    )


def _make_writer(
    options: RunOptions, environment: Mapping[str, str], new_id: str, redactor: Redactor
) -> Writer:
    return Writer(
        options.output,
        new_id,
        __version__,
        redact=redactor.redact,
        has_color=has_color(2, environment),
        is_on_terminal=os.isatty(1),
        is_one_terminal=os.isatty(1) and os.isatty(2),
        is_one_stream=is_one_stream(1, 2),
    )


def _shows_status(options: RunOptions, environment: Mapping[str, str], writer: Writer) -> bool:
    """Whether a person sees the lines for people on a terminal that can redraw a line. Objects of stream-json on a
    terminal leave no room for the line.
    """
    is_shared = options.output.output_format == "stream-json" and os.isatty(1)
    shows_lines = writer.tells_people and not options.output.is_quiet and not is_shared
    return shows_lines and obeys_controls(2, environment)


def _one_after_the_other(looks: Sequence[Callable[[], None]]) -> Callable[[], None]:
    def look() -> None:
        for one in looks:
            one()

    return look


def _make_log(
    options: RunOptions,
    settings: Settings | None,
    clock: Clock,
    redactor: Redactor,
    new_id: str,
    *,
    tell: Callable[[str], None],
) -> tuple[IterationLog, LiveFile] | tuple[None, None]:
    """The sinks that write to the folder of the loop that started this run. `tell` gets a sentence if the log cannot
    be written.
    """
    of_loop = options.of_loop
    if of_loop is None:
        return None, None
    from ralph.output import iteration_log as files  # noqa: PLC0415 - for iterations alone
    from ralph.output.live import LiveRun  # noqa: PLC0415 - for iterations alone

    now_s, limits = clock.utc_now().timestamp(), LimitSettings() if settings is None else settings.limits
    first = files.LiveIteration(
        *(os.getpid(), of_loop.number, new_id, now_s, LiveRun(now_s)),
        max_turns=limits.max_turns,
        max_budget_usd=limits.max_budget_usd,
        max_time_s=limits.max_time_s,
    )
    log_files = files.LogFiles(of_loop.folder, redactor.redact, tell)
    log = files.IterationLog(log_files, clock, of_loop.number, new_id, ralph_version=__version__)
    return log, files.LiveFile(of_loop.folder, first, clock, redactor.redact)


def _make_diagnostics(
    options: RunOptions, clock: Clock, started_s: float, writer: Writer, redactor: Redactor
) -> Diagnostics:
    from ralph.output.diagnostics import Diagnostics, DiagnosticsFile  # noqa: PLC0415 - few runs want them

    write = writer.write_line
    if options.debug_file is not None:
        try:
            write = DiagnosticsFile(options.debug_file, redactor.redact_all).write
        except OSError as error:
            problem = f"cannot write {options.debug_file} ({error.strerror}): diagnostics come here instead"
            writer.tell(Notice(problem))
    return Diagnostics(clock, started_s, write)


def _open_notifier(command: str, around: Surroundings, writable: Sequence[str]) -> Notifier:
    """Raises CannotError if the command must not run."""
    from ralph.output.notifier import Notifier  # noqa: PLC0415 - few users have one

    return Notifier(
        command,
        directory=str(around.cwd),
        environment=safe_environment(around, writable),
        search=search_for_programs(around, writable),
        waiter=around.waiter,
        clock=around.clock,
        redact=around.redactor.redact_all,
        events=around.events,
    )


def _stop_event(stop: Interrupted, elapsed_s: float) -> Event:
    if isinstance(stop, TimeIsUp):
        return ClockFired("run total", round(elapsed_s, 3))
    name = signal.Signals(stop.signal_number).name
    return Notice(f"{name}: stopping what runs; once more stops at once")
