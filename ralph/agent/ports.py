"""The ports of a task: the toolbox, the gate and the journal. `tools/`, `run/` and `sessions/` implement them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.conversation.records import Record
    from ralph.values.tool_calls import Block, FileChange, ToolCall, ToolDefinition, ToolOutput


class Toolbox(Protocol):
    @property
    def definitions(self) -> Sequence[ToolDefinition]: ...

    def plan(self, call: ToolCall) -> FileChange | None:
        """The change that a call will make to a file. Nothing is changed yet.

        None if the call is not one of Write or Edit, or will fail. The next `run` of the call makes exactly this
        change or fails. Raises `Interrupted`, and `WorkingDirectoryGoneError` if the working directory is gone.
        """
        ...

    def settle(self, change: FileChange) -> ToolOutput | None:
        """The result of the call that planned this change, if an earlier process has made the change.

        None if the change was not made, so that the call may run now.
        """
        ...

    def run(self, calls: Sequence[ToolCall]) -> Sequence[tuple[ToolOutput, float]]:
        """Runs calls with valid arguments. Returns their outputs in order, each with the seconds that the call took.

        If there are several calls, all of them are read-only, and they run in parallel. If a tool fails, its output
        says so; no exception is raised. Raises `Interrupted` when a signal arrives, after it has stopped the calls.
        Raises `WorkingDirectoryGoneError` if the working directory is gone; no call has had an effect then.
        """
        ...


class Permission(Struct, frozen=True):
    """The decision of a gate about one tool call."""

    denied: str | None = None
    """The reason why the call must not run, written for the model. None if it may run."""
    arguments: dict[str, Any] | None = None
    """The arguments with which the call must run. None if they stay as the model wrote them."""
    context: tuple[str, ...] = ()
    """Texts that the model gets with the result of the call."""


class Gate(Protocol):
    """Decides whether a call, a task or the end of a task is refused, by permission mode, rules, hooks and people.
    Every method raises `Interrupted` when a signal arrives or a hook ends the run.
    """

    def before_task(self, prompt: Sequence[Block]) -> Sequence[str]:
        """Judges a new task. Returns texts to add to the task. Raises `HookStopped` if the task is refused."""
        ...

    def judge(self, call: ToolCall, asks: str | None = None) -> Permission:
        """Decides whether a call with valid arguments may run. `asks` is the reason why a gate around this one wants
        somebody to be asked about the call, or None.
        """
        ...

    def observe(self, call: ToolCall, output: ToolOutput, took_s: float) -> ToolOutput:
        """Takes into account the output of a call that ran for `took_s` seconds. Returns the output that the model
        gets.
        """
        ...

    def before_end(self, text: str, *, was_held: bool) -> str | None:
        """Judges the end of a task that the model has completed with this text. Returns the reason why the model must
        continue, or None. `was_held` is True if an earlier end of this task was refused.
        """
        ...


class Journal(Protocol):
    def append(self, *records: Record, sync: bool = True) -> None:
        """Writes all of the records. If that fails, writes none of them and raises JournalError.

        If `sync` is True, the records survive a power cut.
        """
        ...
