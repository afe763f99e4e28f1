"""The finding of a check: its level, subject, text and advice."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.values.shortage import ADVICE

if TYPE_CHECKING:
    from ralph.values.shortage import ShortageError


class Level(enum.Enum):
    """The level of a finding. `ralph doctor` prints the values of this enum."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


class Finding(Struct, frozen=True):
    level: Level
    subject: str
    text: str
    advice: str | None = None
    """Advice to the user, or None if the user need not do anything."""
    is_for_later: bool = False
    """True if the check could not be done because the machine lacks a resource such as memory. The user need not
    change anything and can try again later."""

    @property
    def line(self) -> str:
        """The finding as one line of text, without its level."""
        advice = f" -> {self.advice}" if self.advice else ""
        return f"{self.subject}: {self.text}{advice}"


def ok(subject: str, text: str) -> Finding:
    return Finding(Level.OK, subject, text)


def warn(subject: str, text: str, advice: str) -> Finding:
    return Finding(Level.WARN, subject, text, advice)


def fail(subject: str, text: str, advice: str) -> Finding:
    return Finding(Level.FAIL, subject, text, advice)


def short(subject: str, shortage: ShortageError) -> Finding:
    """The finding for a subject that could not be checked because of `shortage`."""
    return Finding(Level.FAIL, subject, str(shortage), ADVICE, is_for_later=True)
