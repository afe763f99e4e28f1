"""Formats the output of `ralph sessions ls`, as lines or as JSON values. No I/O happens here: the time and the width
are parameters.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ralph.output.narration import Narration
from ralph.sessions.history import RUNNING
from ralph.sessions.naming import SHORT_ID_CHARS, shortened
from ralph.sessions.words import cost_text
from ralph.values.outcome import Outcome
from ralph.values.screen_text import in_one_line

if TYPE_CHECKING:
    from ralph.output.standard_streams import Color
    from ralph.sessions.history import SessionHistory

_DIRECTORY_CHARS = 28
_SHORTEST_TASK_CHARS = 12
_TASK_JSON_CHARS = 400


class SessionList:
    """Formats one row per session. The columns have fixed widths, and the task takes the remaining width."""

    def __init__(self, *, now: datetime, width: int, has_directory: bool, has_color: bool) -> None:
        """`now` is the current time in the local time zone."""
        self._now = now
        self._width = width
        self._has_directory = has_directory
        self._narration = Narration(is_quiet=False, has_color=has_color)

    def header(self) -> str:
        directory = "DIRECTORY" if self._has_directory else ""
        line = self._line("ID", "WRITTEN", directory, f"{'OUTCOME':15}", "TURNS", "COST", "TASK")
        return self._narration.color("dim", line)

    def row(self, session_id: str, written_at_s: float, outcome: str, history: SessionHistory) -> str:
        return self._line(
            session_id[:SHORT_ID_CHARS],
            self._time(written_at_s),
            _tail("?" if history.opening is None else history.opening.cwd, _DIRECTORY_CHARS)
            if self._has_directory
            else "",
            self._narration.color(_color_of(outcome), f"{outcome:15}"),
            str(history.turns),
            cost_text(history.cost_usd),
            in_one_line(history.title or history.task),
        )

    def _line(self, name: str, time: str, directory: str, outcome: str, *rest: str) -> str:
        turns, cost, task = rest
        where = f"{directory:{_DIRECTORY_CHARS}}  " if self._has_directory else ""
        before = f"{name:{SHORT_ID_CHARS}}  {time:11}  {where}"
        after = f"{turns:>5}  {cost:>8}  "
        left = self._width - len(before) - 15 - len(after) - 2
        return f"{before}{outcome}  {after}{shortened(task, max(_SHORTEST_TASK_CHARS, left))}".rstrip()

    def _time(self, written_at_s: float) -> str:
        written = datetime.fromtimestamp(written_at_s, tz=UTC).astimezone(self._now.tzinfo)
        return f"{written:%m-%d %H:%M}" if written.year == self._now.year else f"{written:%Y-%m-%d}"


def session_object(
    path: str, session_id: str, written_at_s: float, outcome: str, history: SessionHistory
) -> dict[str, Any]:
    opening = history.opening
    return {
        "id": session_id,
        "outcome": outcome,
        "last_written_at": datetime.fromtimestamp(written_at_s, tz=UTC).isoformat(),
        "created_at": getattr(opening, "created_at", None),
        "cwd": getattr(opening, "cwd", None),
        "forked_from": getattr(opening, "forked_from", None),
        "ralph": getattr(opening, "ralph", None),
        "model": history.runs[-1].opening.model if history.runs else None,
        "runs": len(history.own_runs),
        "turns": history.turns,
        "cost_usd": None if history.cost_usd is None else round(history.cost_usd, 6),
        "title": history.title,
        "task": shortened(history.task, _TASK_JSON_CHARS),
        "path": path,
    }


def _color_of(outcome: str) -> Color:
    if outcome == RUNNING:
        return "blue"
    return "green" if outcome == Outcome.COMPLETED.value else "yellow"


def _tail(path: str, width: int) -> str:
    """The last `width` characters of the path. The end of a path says more than its beginning."""
    shown = in_one_line(path)
    return shown if len(shown) <= width else "…" + shown[1 - width :]
