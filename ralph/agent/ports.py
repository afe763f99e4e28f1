"""The ports of a task: tools that run, and a journal that keeps. `tools/` and `sessions/` implement them."""

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
        """The change that a call is about to make to a file, without making it; None: it cannot be told. The
        next `run` of the call makes exactly this change or fails. Raises `Interrupted` and, before anything
        is done, `WorkingDirectoryGoneError`.
        """
        ...

    def settle(self, change: FileChange) -> ToolOutput | None:
        """A change that may have been made before: what came of it, or None when nothing did and it may be now."""
        ...

    def run(self, calls: Sequence[ToolCall]) -> Sequence[tuple[ToolOutput, float]]:
        """Run calls whose arguments are valid; outputs in order, each with the seconds it took.

        More than one call means: all read-only, run in parallel. Never raises for what a tool meets; raises
        `Interrupted` when a signal ends the wait, after everything that was started has been stopped, and
        `WorkingDirectoryGoneError` instead of running them.
        """
        ...


class Journal(Protocol):
    def append(self, *records: Record, sync: bool = True) -> None:
        """Write records, whole or not at all; with `sync` they survive a power cut. Raises JournalError."""
        ...
