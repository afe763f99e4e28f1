"""One process of `ralph run`, from the reading of its settings to the delivery of its result. Every run has a result:
an exception other than UsageError becomes the end of the run.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec.structs import replace

from ralph.machine.loading import begin_garbage_collection
from ralph.machine.process_start import why_too_few_descriptors
from ralph.machine.starting import patiently
from ralph.prompt.prompt_input import InputWait, PromptError, PromptFound, read_prompt
from ralph.run.opening import SessionParts
from ralph.run.parts import RunContext, find_library, program_keys
from ralph.run.session_run import SessionRun
from ralph.sessions.journal import FileJournal
from ralph.sessions.store import remove_old_journals
from ralph.settings.merge import SettingsError
from ralph.values.answer import describe_bug
from ralph.values.events import Event, Notice, RunEnded, SessionOpened
from ralph.values.outcome import CannotError, Outcome, UsageError
from ralph.values.ports import Clock, Driven, Interrupted, JournalError, WorkingDirectoryGoneError
from ralph.values.shortage import ShortageError, line_with_advice, shortage_of
from ralph.values.usage import RunUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.machine.waiter import Inbox
    from ralph.mcp.toolset import ServerGroup
    from ralph.output.iteration_log import IterationLog
    from ralph.output.notifier import Notifier
    from ralph.output.writer import Writer
    from ralph.permissions.gate import Asker, Hooks
    from ralph.run.options import RunOptions
    from ralph.run.telemetry import SessionNotes, Telemetry
    from ralph.values.controls import RunControls

T = TypeVar("T")


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
    def __init__(
        self,
        context: RunContext,
        problem: Exception | None,
        new_id: str,
        started_s: float,
        *,
        writer: Writer,
        telemetry: Telemetry,
        notes: SessionNotes,
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
        code = self._work_on_prompt() if self._driver is None else self._driver.work(self)
        if self._opened is not None and isinstance(journal := self._opened.session.journal, FileJournal):
            kept = self.context.settings.sessions
            remove_old_journals(
                journal.path, keep_days=kept.keep_days, keep_mb=kept.keep_mb, clock=self.context.clock
            )
        return code

    def _work_on_prompt(self) -> int:
        silent = None
        try:
            # The settings come first because they contain the time limits: if standard input never ends, only a time
            # limit ends the wait for the prompt.
            found = self.attempt(self._prompt)
            if isinstance(found, RunEnded):
                return self.deliver(self.tell(found), is_told=False).exit_code
            silent = found.silent
            ended = self.attempt(lambda: self._work_on(found))
        except UsageError as error:
            return self.deliver_misuse(error, () if silent is None else silent.in_the_end)
        # Data may have come since then.
        late = () if silent is None else silent.in_the_end
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
        return opened.work(prompt, _own_part(found, options))

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

    def attempt(self, work: Callable[[], T]) -> T | RunEnded:
        """Calls `work` and returns its value. If it raises an exception other than UsageError, returns the end of the
        run instead.
        """
        try:
            return work()
        except Interrupted as stop:
            return self.ended_early(stop.outcome, str(stop), stop.signal_number)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run ends with a result
            return self._ended_by_error(error)

    def _ended_by_error(self, error: Exception) -> RunEnded:
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
                raise error
            case SettingsError() | PromptError():
                raise UsageError(str(error)) from error
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
        self._record_delivery(ended)
        self._close(ended.exit_code)
        if failure is not None or not is_told:
            writer.tell(ended)
        if self._notifier is not None:
            notice = self._notifier.tell_end(writer.result(ended))
            if notice is not None:
                self._tell_aside(notice)
        writer.conclude(context.waiter, context.clock)
        return ended

    def _undelivered(self, ended: RunEnded, error: str, outcome: Outcome = Outcome.IO_ERROR) -> RunEnded:
        """The end of a run whose result was not delivered, with the command that resumes the session if that is
        possible.
        """
        failed = replace(ended, outcome=outcome, exit_code=outcome.exit_code(), errors=(*ended.errors, error))
        return self._opened.with_resume_command(failed) if self._opened is not None else failed

    def _record_delivery(self, ended: RunEnded) -> None:
        """Records in the journal whether the last result of this process was delivered."""
        if self._opened is None:
            return
        try:
            self._opened.record_delivery(ended, self.writer.delivery)
        except JournalError as error:
            if ended.outcome is not Outcome.IO_ERROR:  # else the journal's failure has been reported already
                self._tell_aside(
                    Notice(f"the session does not record whether the result was delivered: {error}")
                )

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


def _own_part(found: PromptFound, options: RunOptions) -> slice | None:
    """The range of the prompt that contains the user's own words. Piped data and the text that a loop adds are
    outside it. None means that the user wrote the whole prompt.
    """
    task_chars = None if options.of_loop is None else options.of_loop.task_chars
    if found.text is not None and task_chars is not None:
        return slice(max(len(found.text) - task_chars, 0), len(found.text))
    return None if found.own_chars is None else slice(0, found.own_chars)
