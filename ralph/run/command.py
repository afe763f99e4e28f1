"""`ralph run` from its options to its exit code: `assemble` makes a `Run` with its sinks, and `Run.work` does the rest.

A run is assembled even if the settings cannot be read, because ralph reports that error in a result.
"""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from ralph import __version__
from ralph.machine.loading import begin_garbage_collection
from ralph.machine.process_start import why_too_few_descriptors
from ralph.machine.starting import patiently
from ralph.machine.waiter import ONE_SIGNAL_S, Heartbeats, Inbox, InboxWaiter, SystemClock, catch_stop_signals
from ralph.output.result_file import DiagnosticsFile
from ralph.output.standard_streams import complain, has_color, is_for_runner, obeys_controls
from ralph.output.stream_json import Diagnostics
from ralph.output.writer import Writer, is_one_stream
from ralph.prompt.judged_file import refuse_planted
from ralph.prompt.prompt_input import InputWait, PromptError, PromptFound, read_prompt
from ralph.run.opening import SessionParts
from ralph.run.parts import RunContext, entered, find_library, program_keys, refuse_uncountable_budget
from ralph.run.session_run import SessionRun
from ralph.run.telemetry import SessionNotes, Telemetry, open_metrics
from ralph.sessions.journal import FileJournal
from ralph.sessions.store import remove_old_journals
from ralph.settings.merge import ClaudeOptions, SettingsError, load_with_claude
from ralph.settings.tables import Settings
from ralph.values.answer import describe_bug
from ralph.values.controls import PermissionMode, RunControls
from ralph.values.credentials import known_secrets
from ralph.values.events import ClockFired, Event, EventStream, Notice, RunEnded, SessionOpened
from ralph.values.outcome import (
    CannotError,
    Outcome,
    ShortageError,
    UsageError,
    line_with_advice,
    shortage_of,
)
from ralph.values.ports import (
    Clock,
    Driven,
    Events,
    Interrupted,
    JournalError,
    TimeIsUp,
    WorkingDirectoryGoneError,
)
from ralph.values.redaction import Redactor
from ralph.values.screen_text import in_one_line
from ralph.values.usage import RunUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.mcp.toolset import ServerGroup
    from ralph.output.iteration_log import IterationLog, LiveFile
    from ralph.output.metrics_file import MetricsFile
    from ralph.output.notifier import Notifier
    from ralph.output.status_line import StatusLine
    from ralph.permissions.gate import Asker, Hooks
    from ralph.run.options import RunOptions


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
    options, environment, metrics, cwd, settings, problem = _begin(options, environment, clock)
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
    diagnostics = _diagnostics(options, clock, started_s, writer, redactor)
    sinks: list[Events] = [one for one in (*drawn, log, driver, diagnostics) if one is not None]
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
        *(context, problem, new_id, started_s, writer, telemetry, notes),
        driver=driver,
        log=log,
        notifier=notifier,
    )


def _begin(
    options: RunOptions, environment: Mapping[str, str], clock: Clock
) -> tuple[RunOptions, Mapping[str, str], MetricsFile | None, Path, Settings, Exception | None]:
    """Enters the working directory, reads the settings, and opens the metrics file even if they are wrong: so it does not keep
    the numbers of an earlier run. The options get the directories of the settings, and the environment
    their variables. The last value is the exception because of which no run is possible. The others are then as far as they are known.
    """
    metrics, cwd, settings, problem = None, Path("/"), Settings(), None
    try:
        cwd = entered(options.directory)
        try:
            settings = _read_settings(options, environment, cwd)
            # Links in the directories of the settings are not trusted either. A file that was read already must not be behind one.
            writable = tuple(dict.fromkeys((*options.writable, *settings.directories)))
            untrusted = (*options.output.directories, *writable, *settings.sandbox.written(environment))
            output = replace(options.output, directories=tuple(dict.fromkeys(untrusted)))
            refuse_planted(options.files_read, output.directories)
            options = replace(options, writable=writable, output=output)
        finally:
            if options.metrics_file is not None:
                metrics = open_metrics(options.metrics_file, clock, options.output.directories)
        environment = {**environment, **settings.variables.plain}
    except Exception as error:  # noqa: BLE001 - reported as the run's result, once there is a writer
        problem = error
    return options, environment, metrics, cwd, settings, problem


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
        is_for_runner=is_for_runner(1, environment),
    )


def _has_status_line(options: RunOptions, environment: Mapping[str, str], writer: Writer) -> bool:
    """Whether a person looks at a terminal that can redraw a line. Objects of stream-json on a terminal leave no room."""
    is_shared = options.output.output_format == "stream-json" and os.isatty(1)
    is_hidden = not writer.tells_people or options.output.is_quiet or is_shared
    return not is_hidden and obeys_controls(2, environment)


def _stop_event(stop: Interrupted, elapsed_s: float) -> Event:
    if isinstance(stop, TimeIsUp):
        return ClockFired("run total", round(elapsed_s, 3))
    name = signal.Signals(stop.signal_number).name
    return Notice(f"{name}: stopping; send it again to stop at once")


def _diagnostics(
    options: RunOptions, clock: Clock, started_s: float, writer: Writer, redactor: Redactor
) -> Diagnostics | None:
    if not options.has_diagnostics:
        return None
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


class Driver(Protocol):
    """A program that sends the tasks of a run and steers it. It is also a sink for the events of the run."""

    @property
    def steering(self) -> Driven:
        """Handles the driver's lines while the run waits."""
        ...

    def emit(self, event: Event) -> None: ...

    def work(self, run: Run) -> int:
        """Works on the driver's messages, and returns the exit code. Raises UsageError."""
        ...


if TYPE_CHECKING:
    MakeDriver = Callable[[Inbox, RunControls, Clock, Writer, Callable[[Event], None]], Driver]


class Run:
    def __init__(  # noqa: PLR0917 - they are what `assemble` has made
        self,
        context: RunContext,
        problem: Exception | None,
        new_id: str,
        started_s: float,
        writer: Writer,
        telemetry: Telemetry,
        notes: SessionNotes,
        *,
        driver: Driver | None,
        log: IterationLog | None,
        notifier: Notifier | None,
    ) -> None:
        """`problem` is the exception because of which no work is possible; it is raised when the run begins. `new_id` is
        the id that a new session gets. `log` is the log of the loop that started the run. `notifier` tells a program of
        the user's how the run has ended.
        """
        self.context = context
        self.writer = writer
        self._problem = problem
        self._new_id = new_id
        self._started_s = started_s
        self._telemetry = telemetry
        self._notes = notes
        self._driver = driver
        self._log = log
        self._notifier = notifier
        self._opened: SessionRun | None = None

    def work(self) -> int:
        """Works on the prompt, or on the driver's messages, and returns the exit code. Raises UsageError if the command
        line is wrong: the caller writes its message to standard error.
        """
        if self._driver is not None:
            return self._driver.work(self)
        silent = None
        try:
            # The settings come first because they contain the time limits: if standard input never ends, only a time
            # limit ends the wait for the prompt.
            found = self._prompt()
            silent = found.silent
            ended: RunEnded | UsageError = self._work_on(found)
        except (Interrupted, Exception) as error:  # noqa: BLE001 - whatever it is, the run ends with a result
            ended = self.ended_by(error)
        # Data may have come since then.
        late = () if silent is None else silent.in_the_end
        if isinstance(ended, UsageError):
            return self.deliver_misuse(ended, late)
        ended = self.tell(replace(ended, notices=(*ended.notices, *late)))
        return self.deliver(ended, is_told=False).exit_code

    def _prompt(self) -> PromptFound:
        self.begin()
        context, options = self.context, self.context.options
        if not options.reads_stdin:
            return PromptFound(options.prompt or "")
        return read_prompt(
            options.prompt,
            options.prompt_file,
            directories=options.output.directories,
            wait=InputWait(
                context.waiter,
                context.clock,
                context.settings.clocks.input_s,
                lambda text: self._tell_aside(Notice(text)),
            ),
            is_required=not options.session.is_old,
        )

    def _work_on(self, found: PromptFound) -> RunEnded:
        context, options = self.context, self.context.options
        if found.typed is not None and found.typed.startswith("/") and options.takes_commands:
            why = find_library(context).why_unknown(found.typed)
            if why is not None:
                raise UsageError(why)
        opened = self.open(context, has_prompt=bool(found.text))
        prompt = opened.first_prompt(found.text)
        opened.announce((*context.settings.warnings, *found.notices), has_prompt=prompt is not None)
        if found.silent is not None:
            context.events.emit(Notice(found.silent.notice, is_vital=True))
            if found.silent.unread_bytes():
                opened.session.forget()
                return self.ended_early(Outcome.USAGE, found.silent.refusal)
        # The user's own words: piped data and the text that a loop adds are outside of them. None is the whole prompt.
        own = None if found.own_chars is None else slice(0, found.own_chars)
        task_chars = None if options.of_loop is None else options.of_loop.task_chars
        if found.text is not None and task_chars is not None:
            own = slice(max(len(found.text) - task_chars, 0), len(found.text))
        return opened.work(prompt, own)

    def begin(self) -> None:
        """Runs the programs that print keys, and opens the traces. Raises CannotError or `Interrupted`, and what has
        made the run impossible.
        """
        too_few = why_too_few_descriptors()
        if too_few is not None:
            raise CannotError(too_few)
        if self._problem is not None:
            raise self._problem
        if self.context.settings.key_programs:
            keys = program_keys(self.context)
            self.context = replace(self.context, settings=keys.begin(self.context.settings), keys=keys)
        if self.context.options.exports_traces:
            try:
                patiently(self._open_traces, self.context.waiter, self.context.clock)
            except ShortageError as error:  # telemetry must not harm the run
                self.context.events.emit(Notice(f"no traces of this run: {error}"))

    def _open_traces(self) -> None:
        context = self.context
        self._telemetry.open_traces(self._new_id, context.environment, redact=context.redactor.redact_all)

    def open(
        self,
        context: RunContext,
        *,
        has_prompt: bool,
        hooks: Sequence[Hooks] = (),
        asker: Asker | None = None,
        of_driver: ServerGroup | None = None,
    ) -> SessionRun:
        """Opens the session and its tools. Raises the errors of `SessionParts`. `has_prompt` is True if there is a
        prompt with which a new session can start. `hooks`, `asker` and the servers `of_driver` are a driver's, who may
        also have changed the options in `context`.
        """
        parts = SessionParts(context, self._new_id, has_prompt=has_prompt, of_driver=of_driver)
        self._opened = opened = SessionRun(parts, self._notes, hooks, asker)
        begin_garbage_collection()
        context.events.emit(SessionOpened(opened.session.id))
        return opened

    def ended_by(self, error: BaseException) -> RunEnded | UsageError:
        """The end of the run by an exception, or the error of the command line that it is."""
        if isinstance(error, Interrupted):
            return self.ended_early(error.outcome, str(error), error.signal_number)
        # This comes first, because a shortage of descriptors makes other errors look like something else.
        shortage, too_few = shortage_of(error), why_too_few_descriptors()
        if shortage is not None and too_few is not None:
            return self.ended_early(Outcome.CONFIG, too_few)
        if shortage is not None:
            ended = self.ended_early(Outcome.API_UNAVAILABLE, line_with_advice(shortage))
            return replace(ended, is_short=True)
        match error:
            case SettingsError(from_flag=False):
                # The wrong value of a setting may be an API key that was put in the wrong place. The message must
                # not repeat it.
                return self.ended_early(Outcome.CONFIG, self.context.redactor.redact_all(str(error)))
            case UsageError():
                return error
            case SettingsError() | PromptError():
                return UsageError(str(error))
            case CannotError(outcome=outcome):
                return self.ended_early(outcome, str(error))
            case JournalError() | WorkingDirectoryGoneError():
                return self.ended_early(Outcome.IO_ERROR, str(error))
        return self.ended_early(Outcome.INTERNAL_ERROR, describe_bug(error))

    def ended_early(self, outcome: Outcome, error: str, signal_number: int = 0) -> RunEnded:
        """The end of a run that stopped before its first turn or because of an exception. `signal_number` is 0 if no
        signal stopped it.
        """
        return RunEnded(
            outcome=outcome,
            exit_code=outcome.exit_code(signal_number),
            result=None,
            errors=(error,),
            stop_reason=None,
            num_turns=0,
            duration_s=self.context.clock.now_s() - self._started_s,
            api_s=0.0,
            usage=RunUsage(),
        )

    def tell(self, ended: RunEnded) -> RunEnded:
        """Writes the result to the result file and to standard output. Returns the end of the run as it was written.

        If the result file cannot be written, the outcome becomes io_error, or api_unavailable if the machine is short
        of a resource, so that `ralph loop` waits and then resumes the session.
        """
        try:
            self._write_result_file(ended)
        except OSError as error:
            outcome = Outcome.IO_ERROR if shortage_of(error) is None else Outcome.API_UNAVAILABLE
            name = self.context.options.output.result_file
            why = f"cannot write the result file {name}: {error.strerror}"
            ended = self._undelivered(ended, why, outcome)
        self.context.events.emit(ended)
        return ended

    def _write_result_file(self, ended: RunEnded) -> None:
        """Raises OSError or ShortageError. A temporary shortage must not lose the result: it tries for a while."""

        def write() -> None:
            try:
                self.writer.write_result_file(ended)
            except OSError as error:
                raise shortage_of(error) or error from None

        try:
            patiently(write, self.context.waiter, self.context.clock)
        except Interrupted:  # no time is left to wait: one last attempt
            write()

    def deliver(self, ended: RunEnded, *, is_told: bool) -> RunEnded:
        """Closes the tools, waits for a limited time until the reader of standard output has read everything, and
        closes the rest.

        Returns the end of the run with its final outcome, which is io_error if standard output could not be written.
        `is_told` is True if the last lines for people have already been written to standard error.
        """
        context, writer = self.context, self.writer
        self._close_tools()
        failure = writer.deliver(context.waiter, context.clock)
        if failure is not None:
            ended = self._undelivered(ended, f"cannot write to standard output: {failure.strerror}")
            with suppress(OSError):  # the first failure has been reported already
                writer.write_result_file(ended)
        try:
            if self._opened is not None:
                self._opened.record_delivery(ended, writer.delivery)
        except JournalError as error:
            if ended.outcome is not Outcome.IO_ERROR:  # else the journal's failure has been reported already
                text = f"the session does not record whether the result was delivered: {error}"
                self._tell_aside(Notice(text))
        self._close(ended.exit_code)
        if failure is not None or not is_told:
            writer.tell(ended)
        if self._notifier is not None:
            notice = self._notifier.tell_end(writer.result(ended))
            if notice is not None:
                self._tell_aside(notice)
        writer.conclude(context.waiter, context.clock)
        if self._opened is not None and isinstance(journal := self._opened.session.journal, FileJournal):
            kept = context.settings.sessions
            remove_old_journals(
                journal.path, keep_days=kept.keep_days, keep_mb=kept.keep_mb, clock=context.clock
            )
        return ended

    def _undelivered(self, ended: RunEnded, error: str, outcome: Outcome = Outcome.IO_ERROR) -> RunEnded:
        """The end of a run whose result was not delivered, with the command that resumes the session if that is
        possible.
        """
        failed = replace(ended, outcome=outcome, exit_code=outcome.exit_code(), errors=(*ended.errors, error))
        return self._opened.with_resume_command(failed) if self._opened is not None else failed

    def deliver_misuse(self, error: UsageError, notices: tuple[str, ...] = ()) -> int:
        """Writes the result after a wrong command line, and returns the exit code. `notices` become part of the
        result. If the run writes lines for people to standard error, raises `error` instead, for the caller to write.
        """
        early = self.ended_early(Outcome.USAGE, self.context.redactor.redact_all(str(error)))
        ended = self.tell(replace(early, notices=notices))
        is_for_caller = ended.outcome is Outcome.USAGE and self.writer.tells_people
        ended = self.deliver(ended, is_told=is_for_caller)
        if is_for_caller and ended.outcome is Outcome.USAGE:
            raise error
        return ended.exit_code

    def close_without_result(self) -> None:
        """Closes everything if a driver has sent no message. All requests of the driver have been answered before."""
        self.writer.deliver(self.context.waiter, self.context.clock)
        self.writer.conclude(self.context.waiter, self.context.clock)
        self._close_tools()
        self._close(Outcome.USAGE.exit_code())

    def _close_tools(self) -> None:
        self._notes.close()
        undone = "" if self._opened is None else self._opened.close_tools()
        if undone:
            self._tell_aside(Notice(undone, is_vital=True))

    def _close(self, exit_code: int) -> None:
        if self._opened is not None:
            self._opened.close()
        for event in self._telemetry.close(exit_code, was_stopped=self.context.waiter.was_stopped):
            self._tell_aside(event)

    def _tell_aside(self, event: Event) -> None:
        """Writes a line for people that is not a part of the run's events: before the run begins, or after its result."""
        self.writer.tell(event)
        if self._log is not None:
            self._log.emit(event)
