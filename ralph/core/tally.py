"""What a run's result counts, added up from its events. Pure: it keeps numbers, it passes nothing on."""

from __future__ import annotations

from ralph.core.events import AnswerAccepted, Event, ResponseDiscarded, RetryExhausted, RetryRecovered
from ralph.core.usage import RunUsage, tokens_of


class Tally:
    """Show it every event; read the sums. `model` is what discarded answers are billed to."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.usage = RunUsage()
        self.retries = 0
        self.waited_s = 0.0
        self.turns = 0

    def saw(self, event: Event) -> None:
        match event:
            case AnswerAccepted():
                self.usage = self.usage.plus(self._model, tokens_of(event.message["usage"]))
            case ResponseDiscarded():
                # Thrown away, but the server bills it.
                self.usage = self.usage.plus(self._model, event.tokens)
            case RetryRecovered() | RetryExhausted():
                # Every chain is closed by one of them, with what it really took.
                self.retries += event.retries
                self.waited_s += event.total_wait_s
