"""Writes a loop's events as lines on standard error, each beginning with `[loop]`. Iterations write their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.loop.events import (
    CheckedFirst,
    IterationBegan,
    IterationCutOff,
    IterationEnded,
    IterationResumed,
    LoopEnded,
    Pushed,
)
from ralph.loop.words import line_of
from ralph.output.standard_streams import ErrorLines
from ralph.values.events import Heartbeat, Notice

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.output.colors import Color
    from ralph.values.events import Event
    from ralph.values.ports import Events

_HIDDEN_BY_QUIET = (CheckedFirst, IterationBegan, IterationResumed, Pushed, Heartbeat)
"""Events beside which `--quiet` leaves ends and what went wrong."""


class LoopNarration:
    """An `Events` sink."""

    def __init__(self, *, redact: Callable[[str], str], has_color: bool, is_quiet: bool = False) -> None:
        self._lines = ErrorLines("[loop]", redact=redact, has_color=has_color)
        self._is_quiet = is_quiet

    def emit(self, event: Event) -> None:
        line = None if self._is_quiet and _is_detail(event) else line_of(event)
        if line is not None:
            self._lines.write(line, _color_of(event))


def _is_detail(event: Event) -> bool:
    return isinstance(event, _HIDDEN_BY_QUIET) or (isinstance(event, Notice) and not event.is_vital)


def _color_of(event: Event) -> Color | None:
    match event:
        case LoopEnded(end=end):
            return "red" if end.outcome.is_error else "green"
        case IterationEnded(record=record):
            return "green" if record.made_progress else "yellow"
        case IterationCutOff():
            return "yellow"
        case Heartbeat():
            return "dim"
        case _:
            return None if _is_detail(event) else "yellow"


if TYPE_CHECKING:

    def _fits(narration: LoopNarration) -> Events:
        return narration
