"""Counts a run's events for its result. Pure."""

from __future__ import annotations

from ralph.values.events import AttemptEnded, Event, RetryExhausted, RetryRecovered
from ralph.values.usage import RunUsage, TokenUsage

_WERE_ASKED = frozenset({None, "interrupted"})
"""Kinds of attempts that reached the model."""


class Tally:
    """An `Events` sink with the sums of a run."""

    def __init__(self) -> None:
        self.usage = RunUsage()
        self.retries = 0
        self.waited_s = 0.0
        self.api_s = 0.0
        """Seconds inside `send_message()`."""
        self.turns = 0
        """Completed turns: those with an accepted answer and the results of its tools."""
        self._asked_turns = 0

    @property
    def counted_turns(self) -> int:
        """The number of turns in the result.

        A turn whose answers were useless or cut off counts; one with only failed requests does not, because a resumed
        session repeats it.
        """
        return max(self.turns, self._asked_turns)

    def emit(self, event: Event) -> None:
        match event:
            case AttemptEnded():
                if event.kind in _WERE_ASKED:
                    self._asked_turns = event.turn
                # A broken answer is billed too, for the tokens that the server had counted.
                if event.tokens != TokenUsage():
                    self.usage = self.usage.plus(event.model, event.tokens, event.facts)
                self.api_s += event.latency_s
            case RetryRecovered() | RetryExhausted():
                # Each of these events closes a chain, with the time that it really took.
                self.retries += event.retries
                self.waited_s += event.total_wait_s
