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
        """The change that a call of Write or Edit will make to a file. This method does not change the file.

        Returns None if the call would fail, or if it is a call of another tool. When `run` later runs the call, it
        makes exactly this change or fails. Raises `Interrupted`. Raises `WorkingDirectoryGoneError` if the working
        directory is gone and the call is one of Write or Edit.
        """
        ...

    @property
    def background(self) -> Background: ...

    def background_news(self) -> Sequence[BackgroundStarted | BackgroundEnded]:
        """The starts and ends of commands in the background since the last call."""
        ...

    def stop_background(self) -> None:
        """Stops the commands in the background, and waits for their end within the time that a stop may take."""
        ...

    def settle(self, change: FileChange) -> ToolOutput | None:
        """The result of a call for which `plan` returned `change`, if an earlier process has made the change. Returns
        None if the change was not made. The call may then run.
        """
        ...

    def run(self, calls: Sequence[ToolCall]) -> Sequence[tuple[ToolOutput, float]]:
        """Runs calls with valid arguments. Returns their outputs in order, each with the seconds that the call took.

        Several calls at once must all be read-only, and they run in parallel. If a tool fails, its output says so,
        and no exception is raised. Raises `Interrupted` when a signal arrives, after it has stopped the calls. Raises
        `WorkingDirectoryGoneError` if the working directory is gone. In that case, no call had an effect.
        """
        ...


class Gate(Protocol):
    """Decides whether a tool call may run, whether a task may begin, and whether a task may end.

    The decision can come from the permission mode, from permission rules, from hooks or from people. Every method
    raises `Interrupted` when a signal arrives or a hook ends the run.
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
        """Decides whether a task may begin. Returns texts to add to the task. Raises `HookStopped` if the task is
        refused.
        """
        ...

    def judge(self, checked: Runnable, check: Callable[[ToolCall], Ruling]) -> Ruling:
        """Decides whether a call with valid arguments may run. It is called once for each call, immediately before
        the call's intent is recorded. A call that is refused has no intent. `check` checks and converts the arguments
        of a call: whatever changes the arguments, its change passes `check` before anything else judges it.
        """
        ...

    def observe(self, call: ToolCall, output: ToolOutput, took_s: float) -> ToolOutput:
        """Examines the output of a call that ran for `took_s` seconds. Returns the output that the model gets."""
        ...

    def before_end(self, text: str, *, was_held: bool) -> EndRefused | None:
        """Decides whether a task may end after the model has completed it with `text`. Returns None if it may end.
        `was_held` is True if the gate refused to end this task before.
        """
        ...


class Journal(Protocol):
    def append(self, *records: Record, sync: bool = True) -> None:
        """Writes all of the records, or none of them. If they cannot be written, raises JournalError. If `sync` is
        True, the records survive a power failure.
        """
        ...
