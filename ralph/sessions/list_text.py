"""Formats the output of `ralph sessions ls`, as lines or as JSON values. No I/O happens here: the time and the width
are parameters.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.output.narration import Narration
from ralph.sessions.naming import shortened
from ralph.sessions.places import SHORT_ID_CHARS
from ralph.sessions.story import RUNNING
from ralph.sessions.words import cost_text
from ralph.values.outcome import Outcome
from ralph.values.screen_text import columns_of, cut_to_columns, in_one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.output.standard_streams import Color
    from ralph.sessions.looking import SessionLook

_LONGEST_DIRECTORY = 28
_SHORTEST_DIRECTORY = 12
_SHORTEST_TITLE = 20
_TASK_JSON_CHARS = 400
_GAP = "  "


class _Column(Struct, frozen=True):
    name: str
    width: int
    is_right: bool = False


_COLUMNS = {
    "id": _Column("ID", SHORT_ID_CHARS),
    "time": _Column("WRITTEN", 11),
    "directory": _Column("DIRECTORY", _LONGEST_DIRECTORY),
    "outcome": _Column("OUTCOME", 15),
    "turns": _Column("TURNS", 5, is_right=True),
    "cost": _Column("COST", 8, is_right=True),
}
_LESS_NEEDED = ("turns", "time", "directory", "cost")
"""The columns that a narrow terminal does not show, the least needed first."""


class SessionList:
    """Formats one row per session. The columns have fixed widths, and the title takes the remaining width. On a
    narrow terminal, the directory is cut and columns are left out, so that no row is wider than the terminal.
    """

    def __init__(self, *, now: datetime, width: int | None, has_directory: bool, has_color: bool) -> None:
        """`now` is the current time in the local time zone. `width` is the number of columns of the terminal. None
        means that nothing is cut, which a program that reads the rows needs.
        """
        self._now = now
        self._width = width
        self._narration = Narration(is_quiet=False, has_color=has_color)
        self._columns = {
            key: column.width for key, column in _COLUMNS.items() if has_directory or key != "directory"
        }
        if width is not None:
            self._fit(width)

    def _fit(self, width: int) -> None:
        lacking = _SHORTEST_TITLE - (width - self._before_title())
        if "directory" in self._columns and lacking > 0:
            self._columns["directory"] -= min(lacking, _LONGEST_DIRECTORY - _SHORTEST_DIRECTORY)
        for key in _LESS_NEEDED:
            if width - self._before_title() < _SHORTEST_TITLE:
                self._columns.pop(key, None)

    def _before_title(self) -> int:
        return sum(self._columns.values()) + len(_GAP) * len(self._columns)

    def header(self) -> str:
        line = self._line({key: _COLUMNS[key].name for key in self._columns}, "TITLE")
        return self._narration.color("dim", line)

    def row(self, look: SessionLook) -> str:
        story = look.story
        directory = in_one_line("?" if story.opening is None else story.opening.cwd)
        if self._width is not None and "directory" in self._columns:
            directory = _tail(directory, self._columns["directory"])
        cells = {
            "id": look.id[:SHORT_ID_CHARS],
            "time": self._time(look.written_at_s),
            "directory": directory,
            "outcome": look.outcome,
            "turns": str(story.turns),
            "cost": cost_text(story.cost_usd),
        }
        return self._line(cells, in_one_line(story.title or ""), _color_of(look.outcome))

    def _line(self, cells: Mapping[str, str], title: str, color: Color | None = None) -> str:
        shown = []
        for key, width in self._columns.items():
            padding = " " * (width - columns_of(cells[key]))
            cell = padding + cells[key] if _COLUMNS[key].is_right else cells[key] + padding
            shown.append(self._narration.color(color, cell) if key == "outcome" and color else cell)
        if self._width is not None:
            title = cut_to_columns(title, self._width - self._before_title())
        return _GAP.join([*shown, title]).rstrip()

    def _time(self, written_at_s: float) -> str:
        written = datetime.fromtimestamp(written_at_s, tz=UTC).astimezone(self._now.tzinfo)
        return f"{written:%m-%d %H:%M}" if written.year == self._now.year else f"{written:%Y-%m-%d}"


def session_object(look: SessionLook) -> dict[str, Any]:
    story, cost_usd = look.story, look.story.cost_usd
    return {
        "id": look.id,
        "outcome": look.outcome,
        "last_written_at": datetime.fromtimestamp(look.written_at_s, tz=UTC).isoformat(),
        "created_at": getattr(story.opening, "created_at", None),
        "cwd": getattr(story.opening, "cwd", None),
        "forked_from": getattr(story.opening, "forked_from", None),
        "ralph": getattr(story.opening, "ralph", None),
        "model": story.runs[-1].opening.model if story.runs else None,
        "runs": len(story.own_runs),
        "turns": story.turns,
        "cost_usd": None if cost_usd is None else round(cost_usd, 6),
        "title": story.title,
        "task": shortened(story.task, _TASK_JSON_CHARS),
        "path": str(look.path),
    }


def _color_of(outcome: str) -> Color:
    if outcome == RUNNING:
        return "blue"
    return "green" if outcome == Outcome.COMPLETED.value else "yellow"


def _tail(path: str, width: int) -> str:
    """The end of the path, which says more than its beginning, in at most `width` columns."""
    if columns_of(path) <= width:
        return path
    while columns_of(path) > width - 1:
        path = path[1:]
    return "\u2026" + path
