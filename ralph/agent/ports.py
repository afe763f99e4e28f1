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
        """The change that a call will make to a file, without making it; None: it cannot be foreseen.

        The next `run` of the call makes exactly this change or fails. Raises `Interrupted` and, before anything is
        done, `WorkingDirectoryGoneError`.
        """
        ...

    def settle(self, change: FileChange) -> ToolOutput | None:
        """The result of a change that an earlier process may have made; None: the change was not made, and the call
        may run now.
        """
        ...

    def run(self, calls: Sequence[ToolCall]) -> Sequence[tuple[ToolOutput, float]]:
        """Runs calls with valid arguments. Returns their outputs in order, each with the seconds that its call took.

        Several calls in one batch are always read-only, and run in parallel. Failures of tools are outputs, not
        exceptions. Raises `Interrupted` when a signal ends the wait, after everything that was started has been
        stopped. Raises `WorkingDirectoryGoneError` before any call is run.
        """
        ...


class Journal(Protocol):
    def append(self, *records: Record, sync: bool = True) -> None:
        """Writes the records, all or none. With `sync`, they survive a power cut. Raises JournalError."""
        ...
