"""`ralph run` from its options to its exit code: `assemble` makes a `Run` with its sinks, and `Run.work` does the rest.

A run is assembled even if the settings cannot be read, because ralph reports that error in a result.
"""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph import __version__
from ralph.machine.process_start import why_too_few_descriptors
from ralph.machine.waiter import ONE_SIGNAL_S, Heartbeats, Inbox, InboxWaiter, SystemClock, catch_stop_signals
from ralph.output.diagnostics import Diagnostics, DiagnosticsFile
from ralph.output.spool import is_one_stream
from ralph.output.standard_streams import complain, has_color, obeys_controls
from ralph.output.writer import Writer
from ralph.prompt.judged_file import refuse_planted
from ralph.run.parts import RunContext, entered, refuse_uncountable_budget
from ralph.run.run import Run
from ralph.run.telemetry import SessionNotes, Telemetry, open_metrics
from ralph.settings.merge import ClaudeOptions, load_with_claude
from ralph.settings.tables import Settings
from ralph.values.answer import describe_bug
from ralph.values.controls import PermissionMode, RunControls
from ralph.values.credentials import known_secrets
from ralph.values.events import ClockFired, Event, EventStream, Notice
from ralph.values.outcome import CannotError, Outcome, UsageError
from ralph.values.ports import Clock, Events, Interrupted, TimeIsUp
from ralph.values.redaction import Redactor
from ralph.values.screen_text import in_one_line
from ralph.values.shortage import line_with_advice, shortage_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.output.iteration_log import IterationLog, LiveFile
    from ralph.output.notifier import Notifier
    from ralph.output.status_line import StatusLine
    from ralph.output.telemetry.metrics_file import MetricsFile
    from ralph.run.options import RunOptions
    from ralph.run.run import MakeDriver


def run_command(
    options: RunOptions,
    environment: Mapping[str, str] | None = None,
    *watchers: Events,
    make_driver: MakeDriver | None = None,
) -> int:
    """Works on one prompt, or on the messages of a driver, and returns the exit code of the process.

    If `environment` is None, the environment of the process is used. Each of the `watchers` receives every event of
    the run. Raises only UsageError: any other error becomes a result, or one line on standard error if no result can
    be written.
    """
    environment = dict(os.environ) if environment is None else environment
    clock, run = SystemClock(), None
    # A signal to a process group or a systemd unit reaches a run of `ralph loop` twice: directly, and through the
    # loop.
    inbox = Inbox(clock, one_signal_for_s=0.0 if options.of_loop is None else ONE_SIGNAL_S)
    restore_signals = catch_stop_signals(inbox)
    try:
        run = assemble(options, environment, inbox, clock, *watchers, make_driver=make_driver)
        return run.work()
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - not even the result could be written: one line, no traceback
        redactor = Redactor(known_secrets(environment)) if run is None else run.context.redactor
        return _tell_failure(error, redactor)
    finally:
        restore_signals()


def _tell_failure(error: Exception, redactor: Redactor) -> int:
    """Writes one line to standard error that says why ralph could not write a result. Returns the exit code."""
    shortage = shortage_of(error)
    too_few = None if shortage is None else why_too_few_descriptors()
    why = too_few or (describe_bug(error) if shortage is None else line_with_advice(shortage))
    complain(redactor.redact_all(in_one_line(why)))
    outcome = Outcome.INTERNAL_ERROR if shortage is None else Outcome.API_UNAVAILABLE
    return (outcome if too_few is None else Outcome.CONFIG).exit_code()


def assemble(
    options: RunOptions,
    environment: Mapping[str, str],
    inbox: Inbox,
    clock: Clock,
    *watchers: Events,
    make_driver: MakeDriver | None = None,
) -> Run:
    """Makes the run. Wrong settings raise no error here, but when the run works."""
    started_s, new_id = clock.now_s(), options.session.session_id or str(uuid.uuid4())
    options, metrics, cwd, settings, problem = _begin(options, environment, clock)
    if problem is None:
        environment = {**environment, **settings.variables.plain}
    controls, of_loop = _controls(options, settings), options.of_loop
    secrets = known_secrets(environment, settings.secrets)
    redactor = Redactor(secrets) if of_loop is None else Redactor(secrets | of_loop.secrets, of_loop.tell)
    writer = _writer(options, environment, new_id, redactor)
    telemetry, notes = Telemetry(clock, metrics), SessionNotes(redactor.redact)

    def emit(event: Event) -> None:
        events.emit(event)

    driver = None if make_driver is None else make_driver(inbox, controls, clock, writer, emit)
    log: IterationLog | None = None
    drawn: Sequence[LiveFile | StatusLine] = ()
    if (has_line := _has_status_line(options, environment, writer)) or of_loop is not None:
        from ralph.run.progress import progress_sinks  # noqa: PLC0415 - for loops and terminals

        log, drawn = progress_sinks(
            *(of_loop, settings, clock, writer, redactor.redact, inbox.wake, emit),
            new_id=new_id,
            has_line=has_line,
        )
    sinks: list[Events] = [one for one in (*drawn, log, driver) if one is not None]
    if options.has_diagnostics:
        sinks.append(_diagnostics(options, clock, started_s, writer, redactor))
    heartbeats = _heartbeats(options, settings, clock)
    events: Events = EventStream(heartbeats, *sinks, *watchers, telemetry, writer, notes)

    def look() -> None:
        for one in drawn:
            one.look()
        telemetry.look(events)

    waiter = InboxWaiter(
        *(clock, inbox),
        events=events,
        heartbeats=heartbeats,
        driver=None if driver is None else driver.steering,
        run_ends_s=None if settings.limits.max_time_s is None else started_s + settings.limits.max_time_s,
        on_first_stop=lambda stop: emit(_stop_event(stop, clock.now_s() - started_s)),
        on_tick=writer.count_down if obeys_controls(2, environment) and not options.output.is_quiet else None,
        on_look=look if drawn or metrics is not None else None,
    )
    context = RunContext(settings, environment, cwd, waiter, clock, events, redactor, options, controls)
    context, notifier, problem = _with_notifier(context, problem)
    events = context.events
    return Run(
        *(context, problem, new_id, started_s),
        writer=writer,
        telemetry=telemetry,
        notes=notes,
        driver=driver,
        log=log,
        notifier=notifier,
    )


def _begin(
    options: RunOptions, environment: Mapping[str, str], clock: Clock
) -> tuple[RunOptions, MetricsFile | None, Path, Settings, Exception | None]:
    """Enters the working directory, reads the settings, and opens the metrics file even if they are wrong: so it does not keep
    the numbers of an earlier run. The options get the directories of the settings. The last value is the exception because of
    which no run is possible. The others are then as far as they are known.
    """
    metrics, cwd, settings, problem = None, Path("/"), Settings(), None
    try:
        cwd = entered(options.directory)
        try:
            settings = _read_settings(options, environment, cwd)
            options = _with_directories(options, settings, environment)
        finally:
            metrics = open_metrics(options.metrics_file, clock, options.output.directories)
    except Exception as error:  # noqa: BLE001 - reported as the run's result, once there is a writer
        problem = error
    return options, metrics, cwd, settings, problem


def _with_directories(options: RunOptions, settings: Settings, environment: Mapping[str, str]) -> RunOptions:
    """The options with the directories of the settings, in which links are not trusted either. Raises UsageError if a file that
    was read already is behind such a link, or another that is not trusted.
    """
    writable = tuple(dict.fromkeys((*options.writable, *settings.directories)))
    untrusted = (*options.output.directories, *writable, *settings.sandbox.written(environment))
    output = replace(options.output, directories=tuple(dict.fromkeys(untrusted)))
    refuse_planted(options.files_read, output.directories)
    return replace(options, writable=writable, output=output)


def _read_settings(options: RunOptions, environment: Mapping[str, str], cwd: Path) -> Settings:
    """Reads and checks the settings. Raises SettingsError."""
    of_loop = options.of_loop
    settings = load_with_claude(
        options.settings,
        environment,
        cwd,
        Path(options.config_file) if options.config_file is not None else None,
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
    return settings


def _origins_of_restricted(origins: Mapping[str, str], flags: Mapping[str, object]) -> dict[str, str]:
    """The origins of the settings under `--restricted`, which stands for other flags that the user did not type."""
    own, lists = "flag --restricted", "flag --disallowed-tools"
    typed = own if flags["tools.disallowed"] == ("Bash",) else f"{lists}, {own}"
    changed = {name: origins[name].replace(lists, typed) for name in ("tools", "tools.disallowed")}
    return {**origins, **changed, "sandbox.mode": own}


def _controls(options: RunOptions, settings: Settings) -> RunControls:
    # A driver that wants to be asked would never be, if every tool were permitted. Nor would anything be denied.
    usual = PermissionMode.BYPASS if options.permissions is None else PermissionMode.DEFAULT
    mode = options.permission_mode or usual
    return RunControls(
        auto_retry=settings.retry.enabled and settings.retry.policy != "off",
        permission_mode=mode,
        stays_in_plan=mode is PermissionMode.PLAN,
        permissions_are_asked=options.permissions is not None,
    )


def _heartbeats(options: RunOptions, settings: Settings, clock: Clock) -> Heartbeats:
    return Heartbeats(
        clock,
        settings.clocks.heartbeat_s,
        shows_deltas=options.output.include_partial,
        shows_lines=not is_one_stream(1, 2),
    )


def _writer(options: RunOptions, environment: Mapping[str, str], new_id: str, redactor: Redactor) -> Writer:
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


def _has_status_line(options: RunOptions, environment: Mapping[str, str], writer: Writer) -> bool:
    """Whether a person looks at a terminal that can redraw a line. Objects of stream-json on a terminal leave no room."""
    is_shared = options.output.output_format == "stream-json" and os.isatty(1)
    is_hidden = not writer.tells_people or options.output.is_quiet or is_shared
    return not is_hidden and obeys_controls(2, environment)


def _diagnostics(
    options: RunOptions, clock: Clock, started_s: float, writer: Writer, redactor: Redactor
) -> Diagnostics:
    write = writer.write_line
    if options.debug_file is not None:
        try:
            write = DiagnosticsFile(options.debug_file, redactor.redact_all, options.output.directories).write
        except OSError as error:
            problem = (
                f"cannot write {options.debug_file} ({error.strerror}): writing diagnostics here instead"
            )
            writer.tell(Notice(problem))
    return Diagnostics(clock, started_s, write)


def _with_notifier(
    context: RunContext, problem: Exception | None
) -> tuple[RunContext, Notifier | None, Exception | None]:
    """The context whose events reach the program of the user's that is told how a run ends, and the `Notifier` for it. The
    exception is `problem`, or says why that program must not run.
    """
    command = context.settings.notify.command
    if command is None or context.options.of_loop is not None:
        return context, None, problem
    from ralph.output.notifier import Notifier  # noqa: PLC0415 - few users have one

    try:
        notifier = Notifier(
            command,
            directory=str(context.cwd),
            environment=context.tools_environment,
            search=context.search(),
            waiter=context.waiter,
            clock=context.clock,
            redact=context.redactor.redact_all,
            events=context.events,
        )
    except CannotError as error:  # the command must not run
        return context, None, error
    return replace(context, events=EventStream(context.events, notifier)), notifier, problem


def _stop_event(stop: Interrupted, elapsed_s: float) -> Event:
    if isinstance(stop, TimeIsUp):
        return ClockFired("run total", round(elapsed_s, 3))
    name = signal.Signals(stop.signal_number).name
    return Notice(f"{name}: stopping; send it again to stop at once")
