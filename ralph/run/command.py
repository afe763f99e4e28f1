"""`ralph run` from its options to its exit code: every path through here, bugs included, ends in exactly one
result, misuse of the command line (a `UsageError`) included once that was read.
"""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from ralph import __version__
from ralph.conversation.records import event_entry
from ralph.machine.clock import SystemClock
from ralph.machine.starting import patiently
from ralph.machine.waiter import ONE_SIGNAL_S, Heartbeats, InboxWaiter, catch_stop_signals
from ralph.output.spool import is_one_stream
from ralph.output.standard_streams import complain
from ralph.output.system_events import journal_fields
from ralph.output.writer import Writer
from ralph.prompt.prompt_input import InputWait, PromptError, PromptFound, read_prompt
from ralph.run.prepared_run import PreparedRun
from ralph.run.session import CannotOpenError
from ralph.run.telemetry import Telemetry
from ralph.run.wiring import Surroundings, refuse_uncountable_budget
from ralph.sessions.journal import FileJournal
from ralph.sessions.retention import remove_old_journals
from ralph.settings.files import SettingsFile, SettingsFileError
from ralph.settings.merge import ClockSettings, SessionSettings, SettingsError, load_settings
from ralph.values.controls import RunControls
from ralph.values.credentials import known_secrets
from ralph.values.error_text import describe_bug
from ralph.values.events import ClockFired, Event, Notice, RunEnded
from ralph.values.outcome import Outcome, UsageError
from ralph.values.permission_mode import PermissionMode
from ralph.values.ports import Interrupted, JournalError, TimeIsUp, WorkingDirectoryGoneError
from ralph.values.redaction import Redactor
from ralph.values.screen_text import in_one_line
from ralph.values.shortage import ShortageError, line_with_advice, shortage_of
from ralph.values.usage import RunUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.prompt.piped_input import SilentPipe
    from ralph.run.driven_run import DrivenRun
    from ralph.run.options import RunOptions


T = TypeVar("T")


def run_command(options: RunOptions) -> int:
    """Run one task; the process's exit code. Raises UsageError, and nothing else."""
    return RunCommand(options, dict(os.environ)).execute()


class RunCommand:
    """One invocation: the effects that live as long as it does. It is an `Events` sink for the loop."""

    def __init__(self, options: RunOptions, environment: Mapping[str, str]) -> None:
        self.options = options
        self.ended: RunEnded | None = None
        """The result, once `execute` has returned."""
        self.on_event: Callable[[Event], None] | None = None
        """Sees every event too (the demo's summary)."""
        self._environment = environment
        self._session_id = options.session.session_id or str(uuid.uuid4())
        self._prepared: PreparedRun | None = None
        mode = options.permission_mode or PermissionMode.BYPASS
        self.controls = RunControls(permission_mode=mode, stays_in_plan=mode is PermissionMode.PLAN)
        self._driven: DrivenRun | None = None
        self.clock = SystemClock()
        self.waiter = InboxWaiter(self.clock)
        if options.is_iteration:
            # Who stops a whole group or unit (systemd) reaches this run, and the loop passes its own on.
            self.waiter.one_signal_for_s = ONE_SIGNAL_S
        has_one_stream = is_one_stream(1, 2)
        self._heartbeats = Heartbeats(
            self,
            self.clock,
            ClockSettings().heartbeat_s,
            shows_deltas=options.output.include_partial,
            shows_lines=not has_one_stream,
        )
        self.waiter.heartbeats = self._heartbeats
        self.waiter.on_first_stop = self._say_that_it_stops
        self._redactor = Redactor(known_secrets(environment))
        self._writer = Writer(
            options.output,
            self._session_id,
            __version__,
            redact=self._redactor.redact,
            has_color="NO_COLOR" not in environment and os.isatty(2),
            is_on_terminal=os.isatty(1),
            is_one_terminal=os.isatty(1) and os.isatty(2),
            is_one_stream=has_one_stream,
        )
        if os.isatty(2) and not options.output.is_quiet:
            self.waiter.on_tick = self._writer.count_down
        self._telemetry = Telemetry(self.clock)
        self._takes_notes = True
        self._silent_input: SilentPipe | None = None
        self._retention = SessionSettings()
        self._started_s = self.clock.now_s()

    def execute(self) -> int:
        restore_signals = catch_stop_signals(self.waiter)
        try:
            code = self._work()
            self._remove_old_journals()
        except UsageError:
            if self.ended is None:  # a driver that sent no message waits for no result
                self._stop_work()
                self._close()
                self._close_telemetry(Outcome.USAGE.exit_code())
            raise
        except Exception as error:  # noqa: BLE001 - not even the result could be told: one line, no traceback
            shortage = shortage_of(error)
            why = describe_bug(error) if shortage is None else line_with_advice(shortage)
            complain(self._redactor.redact_all(in_one_line(why)))
            outcome = Outcome.INTERNAL_ERROR if shortage is None else Outcome.API_UNAVAILABLE
            return outcome.exit_code()
        else:
            return code
        finally:
            restore_signals()

    def emit(self, event: Event) -> None:
        self._heartbeats.emit(event)
        if self._driven is not None:
            self._driven.emit(event)
        if self.on_event is not None:
            self.on_event(event)
        self._telemetry.emit(event)
        self._writer.emit(event)
        self._note(event)
        if self._prepared is not None:
            self._prepared.hear(event)

    def _note(self, event: Event) -> None:
        """Records an event that belongs to the session's story, not to the conversation. Raises JournalError,
        the first time it cannot.
        """
        fields = journal_fields(event)
        if fields is None or not self._takes_notes or self._prepared is None:
            return
        try:
            shown = {name: self._shown(value) for name, value in fields.items()}
            self._prepared.note(event_entry(shown))
        except JournalError:
            self._takes_notes = False
            raise

    def _shown(self, value: object) -> object:
        return self._redactor.redact(value) if isinstance(value, str) else value

    def _remove_old_journals(self) -> None:
        """Runs last, when everybody has what they wait for."""
        journal = self._prepared.session.journal if self._prepared is not None else None
        if isinstance(journal, FileJournal):
            remove_old_journals(
                journal.path,
                keep_days=self._retention.keep_days,
                keep_mb=self._retention.keep_mb,
                clock=self.clock,
            )

    def _say_that_it_stops(self, stop: Interrupted) -> None:
        if isinstance(stop, TimeIsUp):
            self.emit(ClockFired("run total", self.clock.now_s() - self._started_s))
        else:
            name = signal.Signals(stop.signal_number).name
            self.emit(Notice(f"{name}: stopping what runs; once more stops at once"))

    def _work(self) -> int:
        if self.options.takes_messages:
            from ralph.run.driven_run import DrivenRun  # noqa: PLC0415 - few runs are driven

            try:
                self._driven = DrivenRun(self, self._writer)
                return self._driven.work()
            except UsageError as error:
                return self._misused(error)
        try:
            ended = self.told(self.ended_by(self._work_prompt))
        except UsageError as error:
            return self._misused(error)
        return self.delivered(ended, is_told=False).exit_code

    def _misused(self, error: UsageError) -> int:
        """The exit code, where the line for people must not stand beside JSON. Raises the error else: its line is the caller's."""
        if self._writer.is_closing:
            raise error  # a driver that sent no message waits for no result
        ended = self.told(self.ended_early(Outcome.USAGE, self._redactor.redact_all(str(error))))
        is_for_caller = ended.outcome is Outcome.USAGE and self._writer.tells_people
        ended = self.delivered(ended, is_told=is_for_caller)
        if is_for_caller and ended.outcome is Outcome.USAGE:
            raise error
        return ended.exit_code

    def _work_prompt(self) -> RunEnded:
        around = self._surroundings()
        # After the limit is known: whoever pipes it in may take for ever.
        found = self._prompt(around.settings.clocks.input_s)
        self._silent_input = found.silent
        prepared = self._prepare(around, has_prompt=bool(found.text))
        first_prompt = prepared.first_prompt(found.text)
        prepared.announce((*around.settings.warnings, *found.notices))
        if found.silent is not None:
            self.emit(Notice(found.silent.notice, is_vital=True))
            if found.silent.unread_bytes():
                prepared.session.forget()
                return self.ended_early(Outcome.USAGE, found.silent.refusal)
        return prepared.work(first_prompt)

    def ended_by(self, work: Callable[[], T]) -> T | RunEnded:
        """The value of `work`, or the end that it came to instead. Raises UsageError alone."""
        try:
            return work()
        except Interrupted as stop:
            return self.ended_early(stop.outcome, str(stop), stop.signal_number)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run ends with a result
            return self._ended_by_error(error)

    def _ended_by_error(self, error: Exception) -> RunEnded:
        # Before everything else: what cannot be opened for want of a descriptor is none of what it seems to be.
        shortage = shortage_of(error)
        if shortage is not None:
            return self.ended_early(Outcome.API_UNAVAILABLE, line_with_advice(shortage))
        match error:
            case SettingsError(from_flag=False):
                # A key in the wrong place is a setting's wrong value: it must not be repeated.
                return self.ended_early(Outcome.CONFIG, self._redactor.redact_all(str(error)))
            case UsageError():
                raise error
            case SettingsError() | PromptError():
                raise UsageError(str(error)) from error
            case CannotOpenError(outcome=outcome):
                return self.ended_early(outcome, str(error))
            case JournalError() | WorkingDirectoryGoneError():
                return self.ended_early(Outcome.IO_ERROR, str(error))
        return self.ended_early(Outcome.INTERNAL_ERROR, describe_bug(error))

    def told(self, ended: RunEnded) -> RunEnded:
        """The result, to everybody who waits for one. Where its file cannot be written the outcome becomes io_error; where
        the machine lacks what it takes, api_unavailable, so that a loop waits and has it told once more.
        """
        if self._silent_input is not None:
            ended = replace(ended, notices=self._silent_input.in_the_end)
        try:
            self._write_result_file(ended)
        except OSError as error:
            outcome = Outcome.IO_ERROR if shortage_of(error) is None else Outcome.API_UNAVAILABLE
            said = f"cannot write the result file {self.options.output.result_file}: {error.strerror}"
            ended = self._undelivered(ended, said, outcome)
        self.emit(ended)
        return ended

    def _write_result_file(self, ended: RunEnded) -> None:
        """A moment's shortage is waited for: it must not cost a night's result. Raises OSError, a ShortageError for that."""

        def write() -> None:
            try:
                self._writer.write_result_file(ended)
            except OSError as error:
                raise shortage_of(error) or error from None

        try:
            patiently(write, self.waiter, self.clock)
        except Interrupted:  # nobody waits any longer
            write()

    def _note_delivery(self, ended: RunEnded) -> None:
        """Records the delivery of the last result, and with it of this process's earlier ones, which were
        written before it.
        """
        if self._prepared is None:
            return
        try:
            self._prepared.note_delivery(ended, self._writer.delivery)
        except JournalError as error:
            if ended.outcome is Outcome.IO_ERROR:
                return  # it is told already that the journal takes no more
            self._writer.tell(Notice(f"the session does not tell what became of the result: {error}"))

    def _undelivered(self, ended: RunEnded, error: str, outcome: Outcome = Outcome.IO_ERROR) -> RunEnded:
        """That end with the failed delivery of its result, and how to get at the result."""
        failed = replace(ended, outcome=outcome, exit_code=outcome.exit_code(), errors=(*ended.errors, error))
        return self._prepared.with_way_back(failed) if self._prepared is not None else failed

    def delivered(self, ended: RunEnded, *, is_told: bool) -> RunEnded:
        """Waits until the output has been read, or never will be. Where it cannot be written, the outcome
        becomes io_error.

        `is_told`: the lines about the end stand on standard error already.
        """
        self._stop_work()
        failure = self._writer.deliver(self.waiter, self.clock)
        if failure is not None:
            ended = self._undelivered(ended, f"cannot write to standard output: {failure.strerror}")
            with suppress(OSError):  # said already when it failed before
                self._writer.write_result_file(ended)
        self.ended = ended
        self._note_delivery(ended)
        self._close()
        self._close_telemetry(ended.exit_code)
        if failure is not None or not is_told:
            self._writer.tell_end(ended)
        self._writer.conclude(self.waiter, self.clock)
        return ended

    def open(self) -> PreparedRun:
        """A session for tasks that will come."""
        around = self._surroundings()
        prepared = self._prepare(around, has_prompt=True)
        prepared.announce(around.settings.warnings)
        return prepared

    def _surroundings(self) -> Surroundings:
        """The settings, and what follows from them for everybody."""
        cwd = self._directory()
        config_file = Path(self.options.config_file) if self.options.config_file is not None else None
        # Before anything can be wrong with the settings: a run that they stop must not leave the last one's numbers.
        self._telemetry.open_metrics(
            self.options.metrics_file, self.options.output.directories, tell=self.emit
        )
        files = self._files_of_loop()
        settings = load_settings(self.options.settings, self._environment, cwd, config_file, files)
        if not self.options.session.is_old:
            refuse_uncountable_budget(settings.targets, settings)
        around = Surroundings(settings, self._environment, cwd, self.waiter, self.clock, self)
        self._redactor = Redactor(around.secrets)
        self._writer.redact = self._redactor.redact
        if self.options.exports_traces:
            self._open_traces()
        self.waiter.on_look = self._telemetry.look if self._telemetry.is_on else None
        self._heartbeats.interval_s = settings.clocks.heartbeat_s
        self._retention = settings.sessions
        self.controls.auto_retry = settings.retry.enabled and settings.retry.policy != "off"
        if settings.limits.max_time_s is not None:
            self.waiter.run_ends_s = self._started_s + settings.limits.max_time_s
        return around

    def _files_of_loop(self) -> tuple[SettingsFile, ...] | None:
        """The settings files that the outer loop read for all its iterations. None: there is no loop, and the
        files are read.
        """
        descriptor = self.options.settings_descriptor
        if descriptor is None:
            return None
        from ralph.settings.handover import taken_over  # noqa: PLC0415 - for iterations alone

        try:
            return taken_over(descriptor)
        except SettingsFileError as error:
            raise SettingsError(str(error), from_flag=True) from error

    def _open_traces(self) -> None:
        def open_them() -> None:
            self._telemetry.open_traces(self._session_id, self._environment, redact=self._redactor.redact_all)

        try:
            patiently(open_them, self.waiter, self.clock)
        except ShortageError as error:  # telemetry never hurts the run
            self.emit(Notice(f"no traces of this run: {error}"))

    def _prepare(self, around: Surroundings, *, has_prompt: bool) -> PreparedRun:
        """Prepares the run and opens its session. `has_prompt`: there is something to begin a new one with."""
        prepared = PreparedRun(
            self.options, around, self._redactor, self.controls, self._session_id, has_prompt=has_prompt
        )
        self._prepared = prepared
        self._writer.session_id = prepared.session.id
        self._telemetry.belongs_to(prepared.session.id)
        return prepared

    def _close_telemetry(self, exit_code: int) -> None:
        for event in self._telemetry.close(exit_code, was_stopped=self.waiter.was_stopped):
            self._writer.tell(event)

    def _stop_work(self) -> None:
        self._takes_notes = False  # a signal may still come while the result is delivered
        if self._prepared is not None:
            self._prepared.close_tools()

    def _close(self) -> None:
        if self._prepared is not None:
            self._prepared.close()

    def _prompt(self, first_byte_s: float) -> PromptFound:
        """The task. Its text is None where a session is to be resumed without one."""
        if not self.options.reads_stdin:
            return PromptFound(self.options.prompt or "")
        wait = InputWait(self.waiter, self.clock, first_byte_s, lambda text: self._writer.tell(Notice(text)))
        return read_prompt(
            self.options.prompt,
            self.options.prompt_file,
            directories=self.options.output.directories,
            wait=wait,
            is_required=not self.options.session.is_old,
        )

    def _directory(self) -> Path:
        """The working directory, entered. Tools, files and git all see it as the current one."""
        if self.options.directory is not None:
            try:
                os.chdir(self.options.directory)
            except OSError as error:
                raise UsageError(f"cannot work in {self.options.directory}: {error.strerror}") from error
        try:
            return Path.cwd()
        except FileNotFoundError:
            gone = "the working directory is gone; change to one that exists"
            raise CannotOpenError(Outcome.IO_ERROR, gone) from None

    def ended_early(self, outcome: Outcome, error: str, signal_number: int = 0) -> RunEnded:
        """A run that ended before its loop began, or by a bug."""
        return RunEnded(
            outcome=outcome,
            exit_code=outcome.exit_code(signal_number),
            result=None,
            errors=(error,),
            stop_reason=None,
            num_turns=0,
            duration_s=self.clock.now_s() - self._started_s,
            api_s=0.0,
            usage=RunUsage(),
        )
