"""The errors of the command line. Each leads to one line on standard error and an exit code. The most common error,
`UsageError`, is defined elsewhere, because all packages use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from ralph.values.outcome import Outcome


class LineError(UsageError):
    """The words of a command line do not fit the command's parameters. The help of the command lists these
    parameters.
    """


def wrong_value(option: str, problem: str) -> LineError:
    """Makes the error about a wrong value of an option. `problem` says what is wrong."""
    return LineError(f"Invalid value for {option}: {problem}")


class CannotError(Exception):
    """The command line is valid, but ralph cannot carry out the command. The message is one line."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
