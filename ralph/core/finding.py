"""What a look at one thing found: a level, what it is about, and what to do. A value with its one line."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """The value is the word that people see."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    level: Level
    subject: str
    text: str
    advice: str | None = None
    """What to do about it; None: nothing needs doing."""

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
