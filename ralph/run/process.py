"""Carries out the steps of one `ralph run` process, in the order `begin`, `open`, `tell` and `deliver`. The steps are the
same for a run on one prompt and for a run that a driver steers.

If a step raises an exception other than UsageError, `attempt` converts the exception into the end of the run. So
every run has a result.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from ralph.machine.loading import begin_garbage_collection
from ralph.machine.own_process import why_too_few_descriptors
from ralph.machine.starting import patiently
from ralph.prompt.prompt_input import PromptError
from ralph.run.prepared_run import PreparedRun
from ralph.run.run_parts import open_parts
from ralph.sessions.journal import FileJournal
from ralph.sessions.retention import remove_old_journals
from ralph.settings.merge import SettingsError
from ralph.values.events import Notice, RunEnded, SessionOpened
from ralph.values.outcome import CannotError, Outcome, UsageError
from ralph.values.ports import Interrupted, JournalError, WorkingDirectoryGoneError
from ralph.values.shortage import ShortageError, line_with_advice, shortage_of
from ralph.values.tool_calls import describe_bug
from ralph.values.usage import RunUsage

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.mcp.ports import ServerGroup
    from ralph.run.context import RunContext
    from ralph.run.driven.driver_asking import DriverAsking
    from ralph.run.options import RunOptions
    from ralph.run.wiring import Surroundings

T = TypeVar("T")


class RunProcess:
    """Carries out one process of `ralph run`, one method per step. Holds the context and, once `open` has been
    called, the session.
    """

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self._prepared: PreparedRun | None = None

    def begin(self) -> Surroundings:
        """Opens the traces and returns the objects that all parts of the run share. Raises CannotError or
        `Interrupted`. If the context's `place` is an exception, raises that exception.
        """
        too_few = why_too_few_descriptors()
        if too_few is not None:
            raise CannotError(too_few)
        context = self.context
        around = context.surroundings()
        if around.settings.key_programs:
            from ralph.run.wiring import program_keys  # noqa: PLC0415 - few users have one

            keys = program_keys(around, context.options.writable)
            around = replace(around, settings=keys.begin(around.settings), keys=keys)
        if context.options.exports_traces:
            self._open_traces()
        return around

    def open(
        self,
        around: Surroundings,
        *,
        has_prompt: bool,
        options: RunOptions | None = None,
        driver: DriverAsking | None = None,
        of_driver: ServerGroup | None = None,
    ) -> PreparedRun:
        """Opens the session and its tools. Raises the errors that `open_parts` raises.

        `has_prompt` is True if there is a prompt with which a new session can start. `options` replace the options in
        the context; a driver may have changed them. `driver` asks the driver about calls. `of_driver` is passed to
        `open_parts`.
        """
        context = self.context
        parts = open_parts(
            options or context.options,
            around,
            context.controls,
            context.new_id,
            has_prompt=has_prompt,
            of_driver=of_driver,
        )
        prepared = PreparedRun(parts, context.notes, driver)
        self._prepared = prepared
        begin_garbage_collection()
        context.events.emit(SessionOpened(prepared.parts.session.id))
        return prepared

    def attempt(self, work: Callable[[], T]) -> T | RunEnded:
        """Calls `work` and returns its value. If `work` raises an exception, returns the end of the run instead. A
        UsageError is not converted: the caller gets it.
        """
        try:
            return work()
        except Interrupted as stop:
            return self.ended_early(stop.outcome, str(stop), stop.signal_number)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run ends with a result
            return self._ended_by_error(error)

    def ended_early(self, outcome: Outcome, error: str, signal_number: int = 0) -> RunEnded:
        """Makes the `RunEnded` of a run that stopped before its first turn or because of an exception. Its numbers of
        turns and tokens are 0. `signal_number` is 0 if no signal stopped the run.
        """
        return RunEnded(
            outcome=outcome,
            exit_code=outcome.exit_code(signal_number),
            result=None,
            errors=(error,),
            stop_reason=None,
            num_turns=0,
            duration_s=self.context.clock.now_s() - self.context.started_s,
            api_s=0.0,
            usage=RunUsage(),
        )

    def tell(self, ended: RunEnded) -> RunEnded:
        """Writes the result to the result file and to standard output. Returns the end of the run as it was written.

        If the result file cannot be written, the outcome becomes io_error. If that is because the machine is short of
        a resource, the outcome becomes api_unavailable, so that `ralph loop` waits and then resumes the session.
        """
        try:
            self._write_result_file(ended)
        except OSError as error:
            outcome = Outcome.IO_ERROR if shortage_of(error) is None else Outcome.API_UNAVAILABLE
            name = self.context.options.output.result_file
            ended = self._undelivered(
                ended, f"cannot write the result file {name}: {error.strerror}", outcome
            )
        self.context.events.emit(ended)
        return ended

    def deliver(self, ended: RunEnded, *, is_told: bool) -> RunEnded:
        """Closes the tools. Then waits for a limited time until the reader of standard output has read everything,
        and closes the rest.

        Returns the end of the run with its final outcome, which is io_error if standard output could not be written.
        `is_told` is True if the last lines for people have already been written to standard error.
        """
        context, writer = self.context, self.context.writer
        self._stop_work()
        failure = writer.deliver(context.waiter, context.clock)
        if failure is not None:
            ended = self._undelivered(ended, f"cannot write to standard output: {failure.strerror}")
            with suppress(OSError):  # the first failure has been reported already
                writer.write_result_file(ended)
        self._record_delivery(ended)
        self._close(ended.exit_code)
        if failure is not None or not is_told:
            writer.tell_end(ended)
        if context.notifier is not None:
            notice = context.notifier.tell_end(writer.result(ended))
            if notice is not None:
                context.tell(notice)
        writer.conclude(context.waiter, context.clock)
        return ended

    def deliver_misuse(self, error: UsageError, notices: tuple[str, ...] = ()) -> int:
        """Writes the result after a wrong command line, and returns the exit code. `notices` become part of the
        result.

        If the run writes lines for people to standard error, raises `error` instead. The caller then writes the
        message of `error` there.
        """
        writer = self.context.writer
        early = self.ended_early(Outcome.USAGE, self.context.redactor.redact_all(str(error)))
        ended = self.tell(replace(early, notices=notices))
        is_for_caller = ended.outcome is Outcome.USAGE and writer.tells_people
        ended = self.deliver(ended, is_told=is_for_caller)
        if is_for_caller and ended.outcome is Outcome.USAGE:
            raise error
        return ended.exit_code

    def close_without_result(self) -> None:
        """Closes everything without writing a result. Called if a driver has sent no message. All requests of the
        driver have been answered before this call.
        """
        context = self.context
        context.writer.deliver(context.waiter, context.clock)
        context.writer.conclude(context.waiter, context.clock)
        self._stop_work()
        self._close(Outcome.USAGE.exit_code())

    def remove_old_journals(self) -> None:
        """Removes old journals. This is the last step, after the result has been delivered."""
        journal = self._prepared.parts.session.journal if self._prepared is not None else None
        if isinstance(journal, FileJournal):
            retention = self.context.surroundings().settings.sessions
            remove_old_journals(
                journal.path,
                keep_days=retention.keep_days,
                keep_mb=retention.keep_mb,
                clock=self.context.clock,
            )

    def _open_traces(self) -> None:
        context = self.context

        def open_them() -> None:
            redact = context.redactor.redact_all
            context.telemetry.open_traces(context.new_id, context.environment, redact=redact)

        try:
            patiently(open_them, context.waiter, context.clock)
        except ShortageError as error:  # telemetry must not harm the run
            context.events.emit(Notice(f"no traces of this run: {error}"))

    def _ended_by_error(self, error: Exception) -> RunEnded:
        # This comes first, because a shortage of descriptors makes other errors look like something else.
        shortage = shortage_of(error)
        too_few = why_too_few_descriptors()
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

    def _write_result_file(self, ended: RunEnded) -> None:
        """Writes the result file. Raises OSError or ShortageError.

        If the machine is short of a resource, it tries again for a while, so that the result is not lost because of a
        temporary shortage.
        """

        def write() -> None:
            try:
                self.context.writer.write_result_file(ended)
            except OSError as error:
                raise shortage_of(error) or error from None

        try:
            patiently(write, self.context.waiter, self.context.clock)
        except Interrupted:  # no time is left to wait: one last attempt
            write()

    def _undelivered(self, ended: RunEnded, error: str, outcome: Outcome = Outcome.IO_ERROR) -> RunEnded:
        """Makes a copy of `ended` which says that the result was not delivered. If the session can be resumed, the
        copy contains the command for that as a hint.
        """
        failed = replace(ended, outcome=outcome, exit_code=outcome.exit_code(), errors=(*ended.errors, error))
        return self._prepared.with_resume_command(failed) if self._prepared is not None else failed

    def _record_delivery(self, ended: RunEnded) -> None:
        """Records in the journal whether the last result of this process was delivered. The journal has no such
        record for earlier results of this process.
        """
        if self._prepared is None:
            return
        try:
            self._prepared.record_delivery(ended, self.context.writer.delivery)
        except JournalError as error:
            if ended.outcome is Outcome.IO_ERROR:
                return  # the journal's failure has been reported already
            notice = f"the session does not tell what became of the result: {error}"
            self.context.tell(Notice(notice))

    def _stop_work(self) -> None:
        self.context.notes.close()
        undone = "" if self._prepared is None else self._prepared.close_tools()
        if undone:
            self.context.tell(Notice(undone, is_vital=True))

    def _close(self, exit_code: int) -> None:
        context = self.context
        if self._prepared is not None:
            self._prepared.close()
        for event in context.telemetry.close(exit_code, was_stopped=context.waiter.was_stopped):
            context.tell(event)
