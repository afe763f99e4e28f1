"""Keeps the position in the scenario, and gives each accepted request its step, once. Used by many threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ralph.mock_api.scenario import FOREVER, Scenario, Script, Step, as_step

if TYPE_CHECKING:
    from ralph.mock_api.fault import Fault
    from ralph.mock_api.recording import RecordedRequest


class ExhaustedError(Exception):
    """A request came after the last step."""


class Playback:
    def __init__(self, scenario: Scenario, script: Script | None) -> None:
        self._steps = [as_step(step) for step in scenario.steps]
        self._script = script
        self._position = 0
        self._played = 0
        """How often the step at this position has been played."""
        self._taken = 0
        self._after_pause_turn = False
        self._lock = threading.Lock()

    @property
    def after_pause_turn(self) -> bool:
        """True when the last step taken ended in `pause_turn`: its answer may be sent back unchanged."""
        return self._after_pause_turn

    def take(self, request: RecordedRequest) -> tuple[Step, int]:
        """The step for this request and its number from 0. Raises `ExhaustedError`, or whatever the script raises."""
        with self._lock:
            index = self._taken
            step = self._current() if self._script is None else as_step(self._script(request, index))
            if step is None:
                raise ExhaustedError(f"scenario exhausted after {index} requests")
            self._advance(step)
            return step, index

    def take_at_accept(self) -> Fault | None:
        """The fault for a connection that was just opened, when the next step is one; it is used up."""
        with self._lock:
            step = self._current()
            if step is None or step.fault is None or not step.fault.at_accept:
                return None
            self._advance(step)
            return step.fault

    def _current(self) -> Step | None:
        return self._steps[self._position] if self._position < len(self._steps) else None

    def _advance(self, step: Step) -> None:
        self._taken += 1
        self._played += 1
        self._after_pause_turn = step.turn is not None and step.turn.stop_reason == "pause_turn"
        if step.repeat != FOREVER and self._played >= step.repeat:
            self._position += 1
            self._played = 0
