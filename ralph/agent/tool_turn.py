"""Runs the tool calls of one answer, and collects their results in order. `call_rules.py` decides which may run.

`Toolbox` and `Gate` are the ports, which `tools/` and `permissions/` implement. `PromptCalls` runs the calls that a prompt requests, a shell line or the reading of a file, whose output becomes part
of the prompt. If a rule refuses one, the task ends, because a part of the prompt would be missing.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from ralph.agent.call_rules import CallRules, as_written, refused
from ralph.agent.compaction import all_fitted, output_size
from ralph.conversation.records import background_record, intent_record, result_record
from ralph.values.answer import (
    FILE_TOOLS,
    Runnable,
    ToolCall,
    ToolOutput,
    ToolResult,
)
from ralph.values.events import Notice, PromptCalled, PromptCallEnded, ToolFinished, ToolStarted
from ralph.values.ports import Events, Interrupted, WorkingDirectoryGoneError
from ralph.values.tool_choice import with_known_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from ralph.agent.session_log import SessionLog
    from ralph.values.answer import (
        Block,
        FileChange,
        MalformedCall,
        Ruling,
        ToolDefinition,
    )
    from ralph.values.events import Background, BackgroundEnded, BackgroundStarted
    from ralph.values.ports import EndRefused


# More calls at once would take memory and would hardly be faster.
MOST_PARALLEL_CALLS = 8

INTERRUPTED = (
    "This call was interrupted while it ran; its effects are unknown. Look at the state of things before you "
    "repeat it."
)


class Toolbox(Protocol):
    @property
    def definitions(self) -> Sequence[ToolDefinition]: ...

    def plan(self, call: ToolCall) -> FileChange | None:
        """The change that a call of Write or Edit will make to a file, and that `run` then makes exactly or fails.
        None if the call would fail, and for other tools. Changes nothing. Raises `Interrupted`, and
        `WorkingDirectoryGoneError` for Write and Edit.
        """
        ...

    @property
    def background(self) -> Background: ...

    def background_news(self) -> Sequence[BackgroundStarted | BackgroundEnded]:
        """The starts and ends of commands in the background since the last call."""
        ...

    def stop_background(self) -> None:
        """Stops the commands in the background within the time that a stop may take."""
        ...

    def settle(self, change: FileChange) -> ToolOutput | None:
        """The result of a call whose planned `change` an earlier process has made. If None, the call may run."""
        ...

    def run(self, calls: Sequence[ToolCall]) -> Sequence[tuple[ToolOutput, float]]:
        """The outputs of calls with valid arguments, in order, each with the seconds it took. Several at once are all
        read-only, and run in parallel. A tool's failure is an output. Raises `Interrupted` after a signal, when the
        calls are stopped, and `WorkingDirectoryGoneError` before any had an effect.
        """
        ...


class Gate(Protocol):
    """Decides by mode, rules, hooks or people whether a call may run, and whether a task may begin or end. Every
    method raises `Interrupted` when a signal arrives or a hook ends the run.
    """

    @property
    def asks_others(self) -> bool:
        """Whether hooks or people are asked. Both take time, and hooks may change files."""
        ...

    @property
    def judges_at_once(self) -> bool:
        """Whether `judge` waits for nothing, neither for others nor for the disk."""
        ...

    def before_task(self, prompt: Sequence[Block]) -> Sequence[str]:
        """Texts to add to a task that may begin. Raises `HookStopped` if it may not."""
        ...

    def judge(self, checked: Runnable, check: Callable[[ToolCall], Ruling]) -> Ruling:
        """Decides about a call once, immediately before its intent is recorded. Whatever changes the arguments passes
        them to `check` before anything else judges them.
        """
        ...

    def observe(self, call: ToolCall, output: ToolOutput, took_s: float) -> ToolOutput:
        """The output that the model gets of a call that ran for `took_s` seconds."""
        ...

    def before_end(self, text: str, *, was_held: bool) -> EndRefused | None:
        """None if a task that the model has completed with `text` may end. `was_held`: the gate has refused this task's
        end before.
        """
        ...


class ToolTurn:
    def __init__(
        self,
        calls: Sequence[ToolCall | MalformedCall],
        toolbox: Toolbox,
        log: SessionLog,
        events: Events,
        rules: CallRules,
        *,
        room_tokens: int | None = None,
        ends_at_once: bool = False,
    ) -> None:
        """`ends_at_once`: nothing is waited for after the last call, so its result is synced when the next request has
        been sent.
        """
        self.calls = [with_known_name(call) if isinstance(call, ToolCall) else call for call in calls]
        self.toolbox = toolbox
        self._read_only = {tool.name for tool in toolbox.definitions if tool.is_read_only}
        self.log = log
        self.events = events
        self.rules = rules
        self._ends_at_once = ends_at_once
        self.room_tokens = room_tokens
        """The tokens that the results may have together. None without a limit."""
        self.finished: dict[str, ToolResult] = {}
        """The results so far, by call id. That of an interrupted call is an error: its effects are unknown."""
        self.changes: dict[str, FileChange | None] = {}
        """For each call that this process ran, the planned change of a file."""

    def resume(self) -> None:
        """Takes over the results of an earlier process. Must be called before `run`. Of a call with an intent and no
        result, nobody knows whether it ran.
        """
        results, intents = self.log.session.results, self.log.session.intents
        self.finished.update(results)
        if self.room_tokens is not None:
            self.room_tokens -= sum(output_size(result.output) for result in results.values())
        for call in self.calls:
            if call.id in results or call.id in intents:
                result = results.get(call.id)
                self.rules.resume_from(call, result.output if result is not None else None)

    def run(self) -> tuple[ToolResult, ...]:
        """Runs the calls without a result, each with effects at most once, and returns all results in order."""
        left = [call for call in self.calls if call.id not in self.finished]
        try:
            for is_parallel, group in groupby(left, key=lambda call: call.name in self._read_only):
                members, size = list(group), MOST_PARALLEL_CALLS if is_parallel else 1
                for start in range(0, len(members), size):
                    self._run_batch(members[start : start + size])
        except WorkingDirectoryGoneError as gone:
            for call in self.calls:
                self.finished.setdefault(
                    call.id, ToolResult(call.id, refused(f"This call was not run: {gone}."))
                )
            raise
        return tuple(self.finished[call.id] for call in self.calls)

    def _run_batch(self, batch: Sequence[ToolCall | MalformedCall]) -> None:
        runnable: list[Runnable] = []
        for call in batch:
            shown = as_written(call)
            self.events.emit(ToolStarted(shown))
            ruling = self._settled(shown) or self.rules.ruling(call)
            if isinstance(ruling, Runnable):
                self._announce(ruling.call)
                runnable.append(ruling)
            else:
                self._finish([(shown, ruling, 0.0)])
        if runnable:
            self._run_all(runnable)

    def _run_all(self, runnable: Sequence[Runnable]) -> None:
        calls = [each.call for each in runnable]
        try:
            outputs = self.toolbox.run(calls)
        except Interrupted as stop:
            text = f"{INTERRUPTED}\n{stop.undone}" if stop.undone else INTERRUPTED
            for call in calls:
                self.finished[call.id] = ToolResult(call.id, ToolOutput(text, is_error=True))
                if stop.undone:
                    self.rules.denied.append(call)
                    self.events.emit(Notice(stop.undone))
            raise
        note_background(self.toolbox, self.log, self.events)
        done = []
        for each, (output, took_s) in zip(runnable, outputs, strict=True):
            self.rules.observe(each.call, output, self.changes.get(each.call.id))
            done.append((each.call, output.followed_by("\n".join(each.notes), "\n"), took_s))
        observed: list[tuple[ToolCall, ToolOutput, float]] = []
        try:
            for call, output, took_s in done:
                observed.append((call, self.rules.gate.observe(call, output, took_s), took_s))
        except Interrupted:
            self._finish([*observed, *done[len(observed) :]])
            raise
        self._finish(observed)

    def _announce(self, call: ToolCall) -> None:
        """Plans the change of a call, and records that it is about to run."""
        has_effects = call.name not in self._read_only
        self.changes[call.id] = self.toolbox.plan(call) if has_effects else None
        self.log.record(intent_record(call, self.changes[call.id]), sync=has_effects)

    def _settled(self, call: ToolCall) -> ToolOutput | None:
        """The result of a call of which an earlier process recorded the intent. None if there was none, or if it has
        changed nothing: then it may run.
        """
        intents = self.log.session.intents
        if call.id not in intents or call.name in self._read_only:
            return None
        if call.name not in FILE_TOOLS:
            return ToolOutput(INTERRUPTED, is_error=True)
        change = intents[call.id]
        try:
            # A call for which no change was planned could not change anything.
            return None if change is None else self.toolbox.settle(change)
        except Interrupted:
            self.finished[call.id] = ToolResult(call.id, ToolOutput(INTERRUPTED, is_error=True))
            raise

    def _finish(self, done: Sequence[tuple[ToolCall, ToolOutput, float]]) -> None:
        outputs = all_fitted([output for _, output, _ in done], self.room_tokens)
        if self.room_tokens is not None:
            self.room_tokens -= sum(map(output_size, outputs))
        results = [ToolResult(call.id, output) for (call, _, _), output in zip(done, outputs, strict=True)]
        self.finished.update((result.tool_use_id, result) for result in results)
        is_last = all(call.id in self.finished for call in self.calls)
        record = self.log.record_ahead if is_last and self._ends_at_once else self.log.record
        record(*map(result_record, results))
        for (call, _, took_s), result in zip(done, results, strict=True):
            self.events.emit(ToolFinished(call, result, took_s))


def note_background(toolbox: Toolbox, log: SessionLog, events: Events) -> None:
    """Tells and records what has happened to commands in the background."""
    news = toolbox.background_news()
    if news:
        log.record(background_record(toolbox.background), sync=False)
    for event in news:
        events.emit(event)


if TYPE_CHECKING:
    PromptMaker: TypeAlias = Callable[["PromptCalls"], str | Sequence[Block]]
    """A function that makes the prompt of a task. It is called when the task has begun, and may run tools."""


class PromptRefusedError(Exception):
    """A rule refuses a part of the prompt. The message is one line."""


class PromptCalls:
    def __init__(
        self, toolbox: Toolbox, make_rules: Callable[[], CallRules], gate: Gate, events: Events
    ) -> None:
        """`make_rules` makes the `CallRules` of each call, because they count what they judge."""
        self._toolbox = toolbox
        self._make_rules = make_rules
        self._gate = gate
        self._events = events

    def judge(self, tool: str, arguments: Mapping[str, str]) -> Ruling:
        """A hook may change the call's arguments. Raises `Interrupted` when a signal arrives or a hook ends the run."""
        return self._make_rules().ruling(ToolCall(f"prompt_{uuid4().hex}", tool, dict(arguments)))

    def run(self, command: str, permitted: Runnable) -> ToolOutput:
        """The output of a call that `judge` has permitted. `command` is as in `PromptCalled`."""
        call = permitted.call
        argument = str(next(iter(call.arguments.values())))
        self._events.emit(PromptCalled(command, call.name, argument))
        [(output, took_s)] = self._toolbox.run([call])
        self._events.emit(PromptCallEnded(command, call.name, argument, output.is_error, round(took_s, 3)))
        return self._gate.observe(call, output.followed_by("\n".join(permitted.notes), "\n"), took_s)
