"""The ports of a task: the toolbox, the gate and the journal. `tools/`, `permissions/` and `sessions/` implement them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.conversation.records import Record
    from ralph.values.answer import Block, FileChange, Ruling, Runnable, ToolCall, ToolDefinition, ToolOutput
    from ralph.values.events import Background, BackgroundEnded, BackgroundStarted
    from ralph.values.ports import EndRefused


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


class Journal(Protocol):
    def append(self, *records: Record, sync: bool = True) -> None:
        """Writes all of the records or none. With `sync`, they survive a power failure. Raises JournalError."""
        ...
