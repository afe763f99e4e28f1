"""Passes the events of a run or a loop on to sinks. A sink is an object that prints, counts or records events."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ralph.values.events import Event
    from ralph.values.ports import Events


class EventStream:
    """Passes each event on to every sink, in order."""

    def __init__(self, *sinks: Events) -> None:
        self._sinks = sinks

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink.emit(event)
