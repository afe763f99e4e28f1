"""The finding of a check: its level, subject, text and advice."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ralph.values.outcome import ADVICE, Outcome, ShortageError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Level(enum.Enum):
    """The level of a finding. `ralph doctor` prints the values of this enum."""

    OK = "ok"
    NOTE = "note"
    """Something is not there that no run needs."""
    WARN = "warn"
    FAIL = "FAIL"


class Finding(Struct, frozen=True):
    level: Level
    subject: str
    text: str
    advice: str | None = None
    is_for_later: bool = False
    """The machine lacks a resource such as memory: nothing need be changed, and a later try may succeed."""
    outcome: Outcome = Outcome.CONFIG
    """The outcome that a run would have because of a failed check. Its exit code is the exit code of doctor."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Measured numbers for programs, which `--json` shows."""

    def __post_init__(self) -> None:
        is_problem = self.level in {Level.WARN, Level.FAIL}
        assert self.advice or not is_problem, f"{self.subject}: a problem without a remedy"  # noqa: S101 - the caller's error

    @property
    def line(self) -> str:
        """The finding as one line of text, without its level."""
        advice = f" -> {self.advice}" if self.advice else ""
        return f"{self.subject}: {self.text}{advice}"


def ok(subject: str, text: str, **figures: Any) -> Finding:
    return Finding(Level.OK, subject, text, figures=figures)


def note(subject: str, text: str) -> Finding:
    return Finding(Level.NOTE, subject, text)


def warn(subject: str, text: str, advice: str, **figures: Any) -> Finding:
    return Finding(Level.WARN, subject, text, advice, figures=figures)


def fail(subject: str, text: str, advice: str, outcome: Outcome = Outcome.CONFIG) -> Finding:
    return Finding(Level.FAIL, subject, text, advice, outcome=outcome)


def short(subject: str, shortage: ShortageError) -> Finding:
    """The finding for a subject that could not be checked because of `shortage`."""
    later = Outcome.API_UNAVAILABLE
    return Finding(Level.FAIL, subject, str(shortage), ADVICE, is_for_later=True, outcome=later)


# The most lasting failure first: settings, the account, the request. What passes by itself comes last.
_RANKS = (
    *(Outcome.CONFIG, Outcome.AUTH, Outcome.API_REJECTED, Outcome.LIMIT_REACHED, Outcome.IO_ERROR),
    Outcome.API_UNAVAILABLE,
)


def by_importance(failed: list[Finding]) -> list[Finding]:
    """A shortage of the machine comes first, because it may have caused the other failures."""
    return sorted(failed, key=lambda finding: (not finding.is_for_later, _RANKS.index(finding.outcome)))


def exit_code(findings: list[Finding]) -> int:
    """The exit code for the most important failure. 0 if no finding is a failure."""
    failed = by_importance([finding for finding in findings if finding.level is Level.FAIL])
    return failed[0].outcome.exit_code() if failed else 0


def verdict(findings: list[Finding]) -> str:
    """One sentence that says whether a run can begin and work overnight, and if not, what would fail."""
    failed = by_importance([finding for finding in findings if finding.level is Level.FAIL])
    if failed:
        reasons = "; ".join(
            f"{number}. {finding.subject}: {finding.text}" for number, finding in enumerate(failed, start=1)
        )
        return f"not ready for the night: {reasons}"
    warned = ", ".join(dict.fromkeys(finding.subject for finding in findings if finding.level is Level.WARN))
    return "ready for the night" + (f"; see the warnings about {warned}" if warned else "")
