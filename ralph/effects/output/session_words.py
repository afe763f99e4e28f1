"""How times, costs and ends of sessions are said. Pure, but for the local time zone."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from ralph.effects.output.narration import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping


def cost_text(cost_usd: float | None) -> str:
    if cost_usd is None:
        return "?"
    return f"${cost_usd:.4f}" if cost_usd < 1000 else f"${cost_usd:.0f}"


def local_time(moment: str) -> str:
    """An ISO time as the clock on the wall shows it; what is none stays as it is."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return moment


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ending(ended: Mapping[str, Any]) -> str:
    """An `ended` record in one line, as the run's own last line was."""
    code = f" (exit {ended['exit_code']})" if ended["exit_code"] else ""
    why = f": {one_line(ended['errors'][-1])}" if ended["errors"] else ""
    took = (
        f"{counted(ended['num_turns'], 'turn')}, {ended['duration_s']:.1f}s, {cost_text(ended['cost_usd'])}"
    )
    return f"{ended['outcome']}{code}{why} [{took}]"


def shortened(text: str, width: int) -> str:
    """One line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: max(0, width - 1)].rstrip() + "…"
