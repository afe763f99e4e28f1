"""`ralph run` from its options to its exit code: every path through here, bugs included, ends in exactly one
result. Only misuse of the command line, a `UsageError`, has none.
"""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ralph import __version__
from ralph.core.bug_report import describe_bug
from ralph.core.credentials import known_secrets
from ralph.core.events import ClockFired, Event, Heartbeat, Notice, RunEnded, RunStarted
from ralph.core.outcome import Outcome, UsageError
from ralph.core.redaction import Redactor
from ralph.core.session import event_entry, run_entry
from ralph.core.usage import RunUsage
from ralph.effects.clock import SystemClock
from ralph.effects.output.stream_json import system_fields
from ralph.effects.output.writer import OutputOptions, Writer
from ralph.effects.prompt_input import PromptError, read_prompt
from ralph.effects.sessions.journal import FileJournal, NoJournal
from ralph.effects.sessions.retention import remove_old_journals
from ralph.effects.waiter import Heartbeats, InboxWaiter, catch_stop_signals
from ralph.loop import Run
from ralph.ports import Interrupted, JournalError, TimeIsUp, WorkingDirectoryGoneError
from ralph.run_session import CannotOpenError, OpenSession, SessionOptions, open_session, prompt_of_resumed
from ralph.settings import ClockSettings, SessionSettings, SettingsError, load_settings
from ralph.wiring import (
    Surroundings,
    build_client,
    build_task,
    build_toolbox,
    no_limit_notice,
    withheld_notice,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.core.tool_calls import ToolDefinition
    from ralph.loop import Task
    from ralph.settings import Settings

_SHAPING = ("model.name", "model.effort", "model.max_tokens", "tools.allowed", "tools.disallowed")
_RESUMABLE = frozenset(
    {Outcome.LIMIT_REACHED, Outcome.API_UNAVAILABLE, Outcome.TIMED_OUT, Outcome.INTERRUPTED}
)
"""Ends that nothing is wrong with but the time: another run goes on from there."""


@dataclass(frozen=True)
class RunOptions:
    """What the command line said. None: not given."""

    prompt: str | None = None
    prompt_file: str | None = None
    directory: str | None = None
    writable: tuple[str, ...] = ()
    """Directories besides the working directory that file tools may write beneath. Absolute."""
    config_file: str | None = None
    session: SessionOptions = field(default_factory=SessionOptions)
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    output: OutputOptions = field(default_factory=OutputOptions)
    settings: Mapping[str, object] = field(default_factory=dict)
    """Flags under their settings' names (`model.name`)."""
    reads_stdin: bool = True
    """False: the prompt is all there is, whatever standard input holds."""
    speed: float = 1.0
    """Waits of the retry policy are divided by it: for demonstrations."""

    @property
    def shapes_requests(self) -> bool:
        """It says something about the part of a request that a resumed session else keeps as it was."""
        own = self.system_prompt is not None or self.append_system_prompt is not None
        return own or any(self.settings.get(name) is not None for name in _SHAPING)


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
        self._session = OpenSession(self._session_id, NoJournal())
        self._clock = SystemClock()
        self._waiter = InboxWaiter(self._clock)
        self._heartbeats = Heartbeats(
            self,
            self._clock,
            ClockSettings().heartbeat_s,
            shows_deltas=options.output.include_partial,
        )
        self._waiter.heartbeats = self._heartbeats
        self._waiter.on_first_stop = self._say_that_it_stops
        self._redactor = Redactor(known_secrets(environment))
        self._writer = Writer(
            options.output,
            self._session_id,
            __version__,
            redact=self._redactor.redact,
            has_color="NO_COLOR" not in environment and os.isatty(2),
            is_one_terminal=os.isatty(1) and os.isatty(2),
        )
        self._takes_notes = True
        self._retention = SessionSettings()
        self._started_s = self._clock.now_s()

    def execute(self) -> int:
        restore_signals = catch_stop_signals(self._waiter)
        try:
            ended = self._outcome()
            self._remove_old_journals()
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - not even the result could be told: one line, no traceback
            with suppress(OSError):
                os.write(2, f"ralph: {self._redactor.redact_all(describe_bug(error))}\n".encode())
            return Outcome.INTERNAL_ERROR.exit_code()
        else:
            return ended.exit_code
        finally:
            restore_signals()

    def emit(self, event: Event) -> None:
        self._heartbeats.saw(event)
        if self.on_event is not None:
            self.on_event(event)
        self._writer.emit(event)
        self._note(event)

    def _note(self, event: Event) -> None:
        """What is no part of the conversation, but of the story. Raises JournalError, the first time it cannot."""
        fields = None if isinstance(event, Heartbeat) else system_fields(event)
        if fields is None or not self._takes_notes:
            return
        try:
            shown = {name: self._shown(value) for name, value in fields.items()}
            self._session.journal.append(event_entry(shown), sync=False)
        except JournalError:
            self._takes_notes = False
            raise

    def _shown(self, value: object) -> object:
        return self._redactor.redact(value) if isinstance(value, str) else value

    def _remove_old_journals(self) -> None:
        """Once everybody has what they wait for."""
        journal = self._session.journal
        if isinstance(journal, FileJournal):
            remove_old_journals(journal.path, self._retention, self._clock)

    def _say_that_it_stops(self, stop: Interrupted) -> None:
        if isinstance(stop, TimeIsUp):
            self.emit(ClockFired("run total", self._clock.now_s() - self._started_s))
        else:
            name = signal.Signals(stop.signal_number).name
            self.emit(Notice(f"{name}: stopping what runs; once more stops at once"))

    def _outcome(self) -> RunEnded:
        try:
            ended = self._run()
        except SettingsError as error:
            if error.from_flag:
                raise UsageError(str(error)) from error
            # A key in the wrong place is a setting's wrong value: it must not be repeated.
            ended = self._ended(Outcome.CONFIG, self._redactor.redact_all(str(error)))
        except CannotOpenError as error:
            ended = self._ended(error.outcome, str(error))
        except (JournalError, WorkingDirectoryGoneError) as error:
            ended = self._ended(Outcome.IO_ERROR, str(error))
        except PromptError as error:
            raise UsageError(str(error)) from error
        except Interrupted as interrupted:
            ended = self._ended(interrupted.outcome, str(interrupted), interrupted.signal_number)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the run ends with a result
            ended = self._ended(Outcome.INTERNAL_ERROR, describe_bug(error))
        return self._written(ended)

    def _written(self, ended: RunEnded) -> RunEnded:
        """Write the result everywhere it belongs. Where that fails the outcome becomes io_error."""
        try:
            self._writer.write_result_file(ended)
        except OSError as error:
            name = self.options.output.result_file
            ended = _io_error(ended, f"cannot write the result file {name}: {error.strerror}")
        self.emit(ended)
        failure = self._writer.deliver(self._waiter, self._clock)
        if failure is not None:
            ended = _io_error(ended, f"cannot write to standard output: {failure.strerror}")
            with suppress(OSError):  # said already when it failed before
                self._writer.write_result_file(ended)
        self.ended = ended
        self._writer.conclude(ended, self._waiter, self._clock)
        return ended

    def _run(self) -> RunEnded:
        try:
            cwd = self._directory()
        except FileNotFoundError:
            return self._ended(Outcome.IO_ERROR, "the working directory is gone; change to one that exists")
        config_file = Path(self.options.config_file) if self.options.config_file is not None else None
        settings = load_settings(self.options.settings, self._environment, cwd, config_file)
        around = Surroundings(settings, self._environment, cwd, self._waiter, self._clock, self)
        self._redactor = Redactor(around.secrets)
        self._writer.redact = self._redactor.redact
        self._heartbeats.interval_s = settings.clocks.heartbeat_s
        if settings.limits.max_time_s is not None:
            self._waiter.run_ends_s = self._started_s + settings.limits.max_time_s
        prompt, notices = self._prompt()  # after the limit is known: whoever pipes it in may take for ever
        return self._run_task(around, prompt, (*settings.warnings, *notices))

    def _run_task(self, around: Surroundings, prompt: str | None, notices: tuple[str, ...]) -> RunEnded:
        toolbox = build_toolbox(around, self._redactor, self.options.writable)
        client = build_client(around, self._redactor)
        try:
            self._open_session(around)
            task, more_notices = self._task(around, prompt, tuple(toolbox.definitions))
            self.emit(_started(around.settings, task.shape.model, str(around.cwd), toolbox.definitions))
            more_notices = (*more_notices, *withheld_notice(around), *no_limit_notice(around.settings))
            for notice in (*notices, *self._session.notices, *more_notices):
                self.emit(Notice(notice))
            run = Run(
                task,
                client=client,
                toolbox=toolbox,
                waiter=self._waiter,
                clock=self._clock,
                journal=self._session.journal,
                events=self,
                session=self._session.old,
            )
            return self._with_way_back(run.run())
        finally:
            client.close()
            toolbox.close()
            self._takes_notes = False  # a signal may still come while the result is delivered
            self._session.journal.close()

    def _open_session(self, around: Surroundings) -> None:
        now = self._clock.utc_now()
        options = self.options.session
        self._session = open_session(options, self._session_id, around.cwd, self._environment, now)
        self._writer.session_id = self._session.id
        self._retention = around.settings.sessions

    def _task(
        self, around: Surroundings, prompt: str | None, tools: tuple[ToolDefinition, ...]
    ) -> tuple[Task, tuple[str, ...]]:
        options, old = self.options, self._session.old
        task, notices = build_task(
            around,
            prompt if old is None else prompt_of_resumed(old, prompt),
            tools,
            own_system_prompt=options.system_prompt,
            appended_system_prompt=options.append_system_prompt,
            speed=options.speed,
        )
        if old is not None and not options.shapes_requests:
            task = replace(task, shape=old.shape)
        self._session.journal.append(run_entry(task.shape, self._clock.utc_now().isoformat(), os.getpid()))
        return task, notices

    def _with_way_back(self, ended: RunEnded) -> RunEnded:
        if ended.outcome not in _RESUMABLE or not self.options.session.is_kept:
            return ended
        return replace(ended, hints=(*ended.hints, f"go on with: ralph --resume {self._session.id[:8]}"))

    def _prompt(self) -> tuple[str | None, tuple[str, ...]]:
        """The task, and notices about where it came from. None: a session is to go on without one."""
        if not self.options.reads_stdin:
            return self.options.prompt or "", ()
        return read_prompt(
            self.options.prompt,
            self.options.prompt_file,
            waiter=self._waiter,
            clock=self._clock,
            is_required=not self.options.session.is_old,
        )

    def _directory(self) -> Path:
        """The working directory, entered. Tools, files and git all see it as the current one."""
        if self.options.directory is not None:
            try:
                os.chdir(self.options.directory)
            except OSError as error:
                raise UsageError(f"cannot work in {self.options.directory}: {error.strerror}") from error
        return Path.cwd()

    def _ended(self, outcome: Outcome, error: str, signal_number: int = 0) -> RunEnded:
        """A run that ended before its loop began, or by a bug."""
        return RunEnded(
            outcome=outcome,
            exit_code=outcome.exit_code(signal_number),
            result=None,
            errors=(error,),
            stop_reason=None,
            num_turns=0,
            duration_s=self._clock.now_s() - self._started_s,
            api_s=0.0,
            usage=RunUsage(),
        )


def _started(settings: Settings, model: str, cwd: str, tools: Sequence[ToolDefinition]) -> RunStarted:
    source = settings.credential.source if settings.credential else "none"
    return RunStarted(cwd, model, tuple(tool.name for tool in tools), source)


def _io_error(ended: RunEnded, error: str) -> RunEnded:
    """The same end, whose result could not be delivered."""
    outcome = Outcome.IO_ERROR
    return replace(ended, outcome=outcome, exit_code=outcome.exit_code(), errors=(*ended.errors, error))
