"""What a run's result counts, added up from its events. Pure: it keeps numbers, it passes nothing on."""

from __future__ import annotations

from ralph.values.events import AttemptEnded, Event, RetryExhausted, RetryRecovered
from ralph.values.usage import RunUsage, TokenUsage

_WERE_ASKED = frozenset({None, "interrupted"})
"""Kinds of attempts that reached the model."""


class Tally:
    """Show it every event; read the sums."""

    def __init__(self) -> None:
        self.usage = RunUsage()
        self.retries = 0
        self.waited_s = 0.0
        self.api_s = 0.0
        """Seconds inside `send_message()`."""
        self.turns = 0
        """Completed: with an answer that was accepted, and the results of its tools."""
        self._asked_turns = 0

    @property
    def counted_turns(self) -> int:
        """What a result calls its turns: an answer that was no use and one that was cut short are of a turn too.

        A request that only failed is not: the same turn is asked for again when its session is resumed.
        """
        return max(self.turns, self._asked_turns)

    def saw(self, event: Event) -> None:
        match event:
            case AttemptEnded():
                if event.kind in _WERE_ASKED:
                    self._asked_turns = event.turn
                # A broken answer is billed too, as far as the server had counted it.
                if event.tokens != TokenUsage():
                    self.usage = self.usage.plus(event.model, event.tokens, event.facts)
                self.api_s += event.latency_s
            case RetryRecovered() | RetryExhausted():
                # Every chain is closed by one of them, with what it really took.
                self.retries += event.retries
                self.waited_s += event.total_wait_s
