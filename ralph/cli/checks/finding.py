"""The finding of a check: level, subject, text and advice, and its one line."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.values.shortage import ADVICE

if TYPE_CHECKING:
    from ralph.values.shortage import ShortageError


class Level(enum.Enum):
    """The value is the word that people see."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


class Finding(Struct, frozen=True):
    level: Level
    subject: str
    text: str
    advice: str | None = None
    """Advice; None: nothing needs doing."""
    is_for_later: bool = False
    """The machine lacks something for now, and nothing is known that the user could correct."""

    @property
    def line(self) -> str:
        """All but the level."""
        advice = f" -> {self.advice}" if self.advice else ""
        return f"{self.subject}: {self.text}{advice}"


def ok(subject: str, text: str) -> Finding:
    return Finding(Level.OK, subject, text)


def warn(subject: str, text: str, advice: str) -> Finding:
    return Finding(Level.WARN, subject, text, advice)


def fail(subject: str, text: str, advice: str) -> Finding:
    return Finding(Level.FAIL, subject, text, advice)


def short(subject: str, shortage: ShortageError) -> Finding:
    """A finding for something that could not be looked at just now."""
    return Finding(Level.FAIL, subject, str(shortage), ADVICE, is_for_later=True)
