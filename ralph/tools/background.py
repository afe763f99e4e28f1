"""Commands in the background of a run: Bash with `run_in_background`, BashOutput and KillBash. Such a command has ended when none
of its processes is left, because they have ended, KillBash stopped it, or the run ends.

One thread reads the output of all of them, keeps what nobody has read yet, and hears when a command ends. The main thread
starts and stops the commands, and waits for the thread's answers.
"""

from __future__ import annotations

import math
import os
import select
import time
from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.running_command import (
    ELSEWHERE,
    KILL_AGAIN_EVERY_S,
    KILL_S,
    LAUNCHER_MARGIN_S,
    NEVER_STARTED,
    OUTPUT_AFTER_END_S,
    STARTER_GONE,
    STILL_RUNS,
    TO_KILL_S,
    UNSEEN_END,
)
from ralph.machine.starting import start_thread
from ralph.tools.bash import checked_command, denial_note, new_capture, not_started, purpose_of, start_shell
from ralph.values.answer import BASH_OUTPUT, COMMANDS, ToolCall, ToolError, ToolOutput
from ralph.values.events import BackgroundEnded, BackgroundStarted
from ralph.values.ports import (
    TIMED_OUT,
    Clock,
    Interrupted,
    Mailbox,
    Waiter,
    WorkingDirectoryGoneError,
)
from ralph.values.screen_text import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.machine.command_supervisor import CommandSupervisor, SupervisedCommand
    from ralph.machine.running_command import OutputCapture
    from ralph.tools.tool_context import ToolContext

_MOST_RUNNING = 8
"""The maximum number of commands in the background at the same time. Each has a supervisor of its own, of 10 MB."""
_MOST_REMEMBERED = 32
"""The maximum number of ended commands whose output can still be read. Each may keep `max_output_bytes`."""
_CHUNK_BYTES = 65_536
# A command that prints without end would otherwise need a processor of its own: 6 MB a second are enough.
_PAUSE_AFTER_FULL_CHUNK_S = 0.01
# A line that a command prints in pieces is answered as a whole.
_QUIET_S = 0.2
_SETTLES_WITHIN_S = 1.0
# The thread answers within milliseconds, unless the file system with the output does not answer.
_ANSWERS_WITHIN_S = 5.0
# A busy machine has no process for a second, and the launcher then says that nothing was started.
_BEGINS_WITHIN_S = 10.0
# How long BashOutput waits for new output.
_WAITS_S = 30.0
# So a command that cannot run at all costs no turn.
_ENDS_EARLY_S = 0.2


def run(call: ToolCall, context: ToolContext) -> ToolOutput:
    """Runs a call of one of the three tools. Raises WorkingDirectoryGoneError, ToolError and Interrupted."""
    if call.name == COMMANDS:
        return _begin(call, context)
    reads = call.name == BASH_OUTPUT
    command_id = call.arguments["bash_id" if reads else "shell_id"]
    command = context.background.get(command_id)
    if command is None:
        known = ", ".join(one.id for one in context.background.running) or "none"
        raise ToolError(f"there is no background command {command_id!r}; running: {known}")
    return _read(command, context) if reads else _kill(command, context)


def _begin(call: ToolCall, context: ToolContext) -> ToolOutput:
    commands = context.background
    if len(running := commands.running) >= _MOST_RUNNING:
        known = ", ".join(one.id for one in running)
        raise ToolError(f"{_MOST_RUNNING} commands run in the background already ({known}): stop one first")
    text = checked_command(call.arguments["command"])
    try:
        environment = context.box.watch(context.settings.environment, "Bash: the sandbox")
        supervisor = context.new_supervisor(context.box.confine(lasts=True))
        end_sharing = context.box.share_namespaces()
        try:
            process = start_shell(text, context, supervisor, environment, lasts=True)
        except BaseException:
            supervisor.close()
            end_sharing()
            raise
    except OSError as error:
        raise not_started(error, context) from None
    commands.count += 1
    shown = " ".join(context.redactor.redact(text).split())
    started = BackgroundStarted(f"bash_{commands.count}", shown, call.id)
    refused = context.box.release_lasting()

    def release() -> Sequence[str]:
        end_sharing()
        return refused()

    command = BackgroundCommand(started, process, supervisor, new_capture(context), release)
    waiting_for = purpose_of(call.arguments, context)
    commands.add(command, waiting_for)
    has_ended = commands.ends_within(command, _ENDS_EARLY_S, waiting_for)
    if command.status == ELSEWHERE:
        raise WorkingDirectoryGoneError(context.settings.cwd)
    if has_ended:
        return replace(_read(command, context), is_error=bool(command.status))
    note = "BashOutput shows what it prints, KillBash stops it. It ends with the run."
    if "timeout" in call.arguments:
        note += " (timeout is not for commands in the background)"
    return ToolOutput(f"Command running in background with ID: {command.id}\n{note}")


def _read(command: BackgroundCommand, context: ToolContext) -> ToolOutput:
    if command.is_all_read:
        raise ToolError(
            f"{command.id} has ended ({_ending(command, context)}), and all of its output was read"
        )
    texts, waiting_for = list[str](), context.redactor.redact(f"BashOutput: {command.started.command}")[:80]
    # A command that has ended since its output was taken may have had more.
    while not texts or (command.is_over and not command.is_all_read):
        text = context.background.read(command, _WAITS_S, waiting_for)
        if text is None:
            raise ToolError(
                f"the output of {command.id} cannot be read: the file system with it does not answer"
            )
        texts.append(text)
    output = "".join(texts).strip("\n")
    if not command.is_all_read:
        took = duration(command.runs_for_s)
        nothing = f"(nothing new within {_WAITS_S:g} s)"
        return ToolOutput(f"{output or nothing}\n[{command.id} is running, {took} so far]")
    notes = [f"[{command.id} has ended: {_ending(command, context)}]"]
    if command.failure is not None:
        notes.append(f"[output was lost: {command.failure}]")
    has_failed = bool(command.status) and not command.stopped_by
    denied = denial_note(output, context.box, context, "BashOutput") if has_failed else ""
    notes += [f"[{one}]" for one in filter(None, (denied, *command.refusals))]
    return ToolOutput("\n".join([output or "(no output)", *notes]), is_denied=bool(denied))


def _kill(command: BackgroundCommand, context: ToolContext) -> ToolOutput:
    if command.is_over:
        raise ToolError(f"{command.id} has ended already ({_ending(command, context)})")
    context.background.stop([command], "model")
    if not command.is_all_gone:
        raise ToolError(f"{command.id} was told to stop: {STILL_RUNS}")
    command.is_all_read = not command.capture.has_output
    left = "" if command.is_all_read else "; BashOutput shows the rest of its output"
    return ToolOutput(f"{command.id} was stopped ({command.started.command[:200]}){left}")


def _ending(command: BackgroundCommand, context: ToolContext) -> str:
    status, exceeded = command.status, command.process.exceeded
    if command.stopped_by:
        return "it was stopped"
    if exceeded is not None:
        return f"stopped: {context.settings.sandbox.why_stopped(exceeded)}"
    if status == NEVER_STARTED:
        return f"it was not started: {STARTER_GONE}"
    return UNSEEN_END if status is None or status < 0 else f"exit code {status}"


class BackgroundCommand:
    """One command. The thread sets the attributes that change, apart from the last four public ones."""

    def __init__(
        self,
        started: BackgroundStarted,
        process: SupervisedCommand,
        supervisor: CommandSupervisor,
        capture: OutputCapture,
        release: Callable[[], Sequence[str]],
    ) -> None:
        """`supervisor` runs only this command. `release` is called at its end, and returns what the sandbox refused to it."""
        self.id = started.id
        self.started = started
        self.process = process
        self.supervisor = supervisor
        self.release = release
        self.lock = Lock()
        """Held while the process's report is read, and while its processes are killed."""
        self.began_s = time.monotonic()
        self.took_s = 0.0
        self.capture = capture
        self.last_output_s = self.began_s
        self.has_begun = False
        self.status: int | None = None
        """The exit status of the command, as of `SupervisedCommand.hear`. None while one of its processes lives."""
        self.is_over = False
        self.failure: Exception | None = None
        """Why output was lost, so that the command was stopped."""
        self.is_all_read = False
        self.stopped_by = ""
        self.is_all_gone = True
        self.is_released = False
        self.refusals: Sequence[str] = ()
        """The connections that the sandbox refused to the command. Known when it is released."""
        self._has_output_ended = False
        self._read_again_s = 0.0
        self._close_s = math.inf

    @property
    def ended(self) -> BackgroundEnded:
        """The event about the end of the command."""
        status = self.status if self.status is not None and self.status >= 0 else None
        return BackgroundEnded(
            self.id,
            self.started.command,
            self.started.call_id,
            status,
            self.stopped_by or ("limit" if self.process.exceeded else ""),
            round(self.took_s, 3),
        )

    @property
    def runs_for_s(self) -> float:
        return time.monotonic() - self.began_s

    # --- On the thread

    def watch(self, poller: select.poll, now_s: float) -> float:
        """Registers what the command is waited for. Returns the time at which it must be looked at anyway."""
        if self.status is None:
            poller.register(self.process.report_descriptor, select.POLLIN)
        if self._has_output_ended:
            return self._close_s
        if now_s >= self._read_again_s:
            poller.register(self.process.output_descriptor, select.POLLIN)
            return self._close_s
        return min(self._close_s, self._read_again_s)

    def look(self, ready: frozenset[int], now_s: float) -> None:
        """Takes what has arrived. `ready` are the descriptors with something to read."""
        if not self._has_output_ended and self.process.output_descriptor in ready:
            try:
                self._read(now_s)
            except Exception as error:  # noqa: BLE001 - the other commands need this thread
                self.failure, self._has_output_ended = error, True
                self.process.ask_to_stop()
        if self.status is None and self.process.report_descriptor in ready:
            with self.lock:
                status = self.process.hear()
            self.has_begun = self.has_begun or status is not None or self.process.has_begun
            if status is not None:
                self.took_s, self._close_s = now_s - self.began_s, now_s + OUTPUT_AFTER_END_S
                self.status = status
        if self.status is not None and (self._has_output_ended or now_s >= self._close_s):
            self.process.close()
            self.is_over = True

    def _read(self, now_s: float) -> None:
        try:
            chunk = os.read(self.process.output_descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return
        self._has_output_ended = not chunk
        if chunk:
            self.last_output_s = now_s
            self.capture.feed(chunk)
        if len(chunk) == _CHUNK_BYTES:
            self._read_again_s = now_s + _PAUSE_AFTER_FULL_CHUNK_S

    def taken_output(self, now_s: float) -> str:
        """The output since the last call."""
        is_quiet = self.is_over or now_s - self.last_output_s >= _QUIET_S
        taken, self.capture = self.capture, self.capture.cut(is_quiet=is_quiet)
        self.is_all_read = self.is_over
        return taken.text()


class _Question(Struct, frozen=True, eq=False):
    """Something that the main thread waits for. The thread puts the answer into `mailbox`."""

    mailbox: Mailbox
    answer: Callable[[float], object]
    """Takes the time, and returns the answer. A float is none: it is the time at which to ask again."""


class BackgroundCommands:
    """The commands in the background of one run. All methods must be called on the main thread."""

    def __init__(self, waiter: Waiter, clock: Clock) -> None:
        self.count = 0
        """The number of commands that the session has run in the background. The caller changes it."""
        self._waiter = waiter
        self._clock = clock
        self._commands: dict[str, BackgroundCommand] = {}
        self._news: list[BackgroundStarted | BackgroundEnded] = []
        self._lock = Lock()
        """Held for the following, which the thread uses too."""
        self._running: list[BackgroundCommand] = []
        self._questions: list[_Question] = []
        self._thread: Thread | None = None
        self._wakes, self._bell = os.pipe()
        for descriptor in (self._wakes, self._bell):
            os.set_blocking(descriptor, False)

    def add(self, command: BackgroundCommand, waiting_for: str) -> None:
        """Takes over a started command, and waits until it runs. Raises Interrupted, and ShortageError, and then nothing of it
        is left.
        """
        os.set_blocking(command.process.output_descriptor, False)
        try:
            with self._lock:
                self._start_thread()
                self._running.append(command)
        except BaseException:
            self._kill(command, self._clock.now_s() + KILL_S)
            command.process.close()
            self._release(command)
            raise
        self._commands[command.id] = command
        self._news.append(command.started)
        self._answer(lambda _: command.has_begun or math.inf, _BEGINS_WITHIN_S, waiting_for)

    def get(self, command_id: str) -> BackgroundCommand | None:
        return self._commands.get(command_id)

    @property
    def running(self) -> tuple[BackgroundCommand, ...]:
        """The commands that have not ended, the oldest first."""
        self._release_ended()
        return tuple(one for one in self._commands.values() if not one.is_released)

    def news(self) -> tuple[BackgroundStarted | BackgroundEnded, ...]:
        """The starts and ends since the last call."""
        self._release_ended()
        news, self._news = tuple(self._news), []
        return news

    def ends_within(self, command: BackgroundCommand, limit_s: float, waiting_for: str) -> bool:
        """Waits for the end of a command, and returns whether it has ended. Raises Interrupted."""
        until_s = time.monotonic() + limit_s
        self._answer(
            lambda now_s: command.is_over or now_s >= until_s or until_s,
            limit_s + _ANSWERS_WITHIN_S,
            waiting_for,
        )
        self._release_ended()
        return command.is_over

    def read(self, command: BackgroundCommand, within_s: float, waiting_for: str) -> str | None:
        """Waits for output that was not returned yet, or the end. None if a file system does not answer. Raises Interrupted."""
        first_s = math.inf
        until_s = time.monotonic() + within_s

        def answer(now_s: float) -> object:
            nonlocal first_s
            if command.is_over or now_s >= until_s:
                return command.taken_output(now_s)
            if not command.capture.has_output:
                return until_s
            due_s = command.last_output_s + _QUIET_S
            if command.capture.has_text:
                first_s = min(first_s, now_s)
                due_s = min(due_s, first_s + _SETTLES_WITHIN_S)
            return min(due_s, until_s) if now_s < due_s else command.taken_output(now_s)

        found = self._answer(answer, within_s + _ANSWERS_WITHIN_S, waiting_for)
        self._release_ended()
        return None if found is TIMED_OUT else str(found)

    def stop(self, commands: Sequence[BackgroundCommand], by: str) -> None:
        """Stops commands and waits for that. `by` is as in `BackgroundEnded`. A signal kills them at once, and Interrupted is
        raised then.
        """
        left = [one for one in commands if not one.is_over]
        interrupted = None
        for one in left:
            one.stopped_by = by
            one.process.ask_to_stop()
        if left:
            grace_s = max(one.process.grace_s for one in left)
            limit_s = min(grace_s + LAUNCHER_MARGIN_S, self._waiter.stop_left_s() - TO_KILL_S)
            interrupted = self._await_ends(left, limit_s)
        if left := [one for one in left if not one.is_over]:
            deadline_s = self._clock.now_s() + KILL_S
            for one in left:
                self._kill(one, deadline_s)
            interrupted = self._await_ends(left, OUTPUT_AFTER_END_S + _QUIET_S) or interrupted
        self._release_ended()
        if interrupted is not None:
            raise interrupted

    def _await_ends(self, commands: Sequence[BackgroundCommand], limit_s: float) -> Interrupted | None:
        what = "background commands to stop"
        try:
            self._answer(lambda _: all(one.is_over for one in commands) or math.inf, limit_s, what)
        except Interrupted as stop:
            return stop
        return None

    def close(self) -> None:
        """Stops all commands, and ends the thread. Nothing may be called after this."""
        with suppress(Interrupted):  # they were killed at once
            self.stop(self.running, "run")
        with self._lock:
            thread = self._thread
            self._running = []
        if thread is not None:
            self._wake()
            thread.join(_ANSWERS_WITHIN_S)
        if thread is None or not thread.is_alive():
            for descriptor in (self._wakes, self._bell):
                os.close(descriptor)

    def _kill(self, command: BackgroundCommand, deadline_s: float) -> None:
        nobody = self._waiter.mailbox()
        while True:
            with command.lock:
                if command.process.kill_what_is_left():
                    return
            if self._clock.now_s() >= deadline_s:
                command.is_all_gone = False
                return
            with suppress(Interrupted):
                again_s = self._clock.now_s() + KILL_AGAIN_EVERY_S
                self._waiter.wait(nobody, until_s=again_s, waiting_for="background commands to stop")

    def _release_ended(self) -> None:
        """Releases what ended commands needed, and forgets the oldest of many."""
        for one in self._commands.values():
            if not one.is_released and (one.is_over or not one.is_all_gone):
                if one.is_over:  # after the end of a launcher, processes of its command may be left
                    self._kill(one, self._clock.now_s() + KILL_S)
                self._release(one)
                self._news.append(one.ended)
        released = [one.id for one in self._commands.values() if one.is_released]
        for command_id in released[:-_MOST_REMEMBERED]:
            del self._commands[command_id]

    def _release(self, command: BackgroundCommand) -> None:
        command.is_released = True
        command.supervisor.close()
        command.refusals = command.release()

    # --- The thread

    def _answer(self, answer: Callable[[float], object], limit_s: float, waiting_for: str) -> Any:
        """Waits for the thread's answer to a question, at most `limit_s` seconds."""
        question = _Question(self._waiter.mailbox(), answer)
        with self._lock:
            self._start_thread()
            self._questions.append(question)
        self._wake()
        try:
            until_s = self._clock.now_s() + limit_s
            return self._waiter.wait(question.mailbox, until_s=until_s, waiting_for=waiting_for)
        finally:
            question.mailbox.close()
            with self._lock:
                self._questions = [one for one in self._questions if one is not question]
            self._wake()

    def _start_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = start_thread(self._work, name="background commands")

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it has not heard the last one yet
            os.write(self._bell, b".")

    def _work(self) -> None:
        due_s = 0.0
        while True:
            with self._lock:
                self._running = commands = [one for one in self._running if not one.is_over]
                if not commands and not self._questions:
                    self._thread = None
                    return
            now_s = time.monotonic()
            poller = select.poll()
            poller.register(self._wakes, select.POLLIN)
            due_s = min([due_s, *(one.watch(poller, now_s) for one in commands)])
            wait_ms = None if due_s == math.inf else max(math.ceil((due_s - now_s) * 1000), 0)
            ready = frozenset(descriptor for descriptor, _ in poller.poll(wait_ms))
            if self._wakes in ready:
                with suppress(BlockingIOError):
                    os.read(self._wakes, _CHUNK_BYTES)
            now_s = time.monotonic()
            for one in commands:
                one.look(ready, now_s)
            due_s = self._answer_all(now_s)

    def _answer_all(self, now_s: float) -> float:
        """Answers the questions that can be answered. Returns the time at which to ask the others again."""
        due_s = math.inf
        with self._lock:
            questions = list(self._questions)
        for one in questions:
            answer = one.answer(now_s)
            if isinstance(answer, float):
                due_s = min(due_s, answer)
                continue
            with self._lock:
                self._questions = [other for other in self._questions if other is not one]
            one.mailbox.put(answer)
        return due_s
