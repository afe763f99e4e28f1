"""The form of a row in the table of settings: what one setting must be, where it can come from and what it means.

The rows stand in `ralph/settings/tables.py`, each beside the field that holds the setting's value.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.settings.tightening import Tightening


class Takes(enum.Enum):
    """What stands behind a flag on the command line."""

    TEXT = enum.auto()
    WHOLE_NUMBER = enum.auto()
    NUMBER = enum.auto()
    JOINED = enum.auto()
    """Texts, the flag repeated for each or a comma between them; the setting gets one text with commas."""
    NAMES = enum.auto()
    """Names, the flag repeated for each, or a comma or a space between them in one word."""
    WORDS = enum.auto()
    """Names, and all words up to the next option are among them."""


class Flag(NamedTuple):
    """An option of `ralph run`."""

    spelling: str
    help: str
    metavar: str | None = None
    """What the help shows for the value."""
    takes: Takes = Takes.TEXT
    choices: tuple[str, ...] = ()
    """The only texts that it takes; empty: any."""
    other_spellings: tuple[str, ...] = ()


class Key(NamedTuple):
    """One setting."""

    check: Callable[[object], Any]
    """Takes a raw value and gives the one to keep. Raises ValueError."""
    meaning: str = ""
    """For docs/settings.md, which lists the keys of files: one line of Markdown."""
    flag: Flag | None = None
    variable: str | None = None
    """Of the environment."""
    read: Callable[[str], object] = str
    """Reads the variable's text."""
    in_repository: Tightening | None = None
    """What a file that lies in the working directory may do to it; None: nothing (exit 78)."""
    is_in_files: bool = True
    """False: it is about one run, so that only its flag sets it."""
    name: str = ""
    """Table and key, with a dot between; `ralph/settings/keys.py` fills it in."""
    default: Any = None
    """As the field says; filled in too."""

    @property
    def spelling(self) -> str:
        """The flag's, empty where there is none."""
        return self.flag.spelling if self.flag else ""

    @property
    def places(self) -> tuple[str, ...]:
        """Flag and variable, as far as there are any."""
        return tuple(place for place in (self.spelling, self.variable) if place)
