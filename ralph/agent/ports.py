"""The ports of a task: the toolbox and the journal. `tools/` and `sessions/` implement them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.conversation.records import Record
    from ralph.values.tool_calls import FileChange, ToolCall, ToolDefinition, ToolOutput


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


class Journal(Protocol):
    def append(self, *records: Record, sync: bool = True) -> None:
        """Writes all of the records. If that fails, writes none of them and raises JournalError.

        If `sync` is True, the records survive a power cut.
        """
        ...
