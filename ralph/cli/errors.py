"""The errors of the command line, which lead to one line and an exit code. `UsageError`, the most common one, belongs to
all rooms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from ralph.values.outcome import Outcome


class LineError(UsageError):
    """The words of a command line do not fit the command's parameters. The command's help lists the parameters."""


def wrong_value(option: str, problem: str) -> LineError:
    """The error about the value of an option. `problem` says what is wrong with the value."""
    return LineError(f"Invalid value for {option}: {problem}")


class CannotError(Exception):
    """The command line is valid, but the command cannot be carried out. The message is one line."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
