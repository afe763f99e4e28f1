"""Keeps two facts about a run that a driver steers: the number of the current turn, and the pending retry.
`get_status` reports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.values.events import (
    AnswerAccepted,
    AttemptEnded,
    ClockFired,
    Event,
    ResponseDiscarded,
    RetryExhausted,
    RetryRecovered,
    RetryScheduled,
    StreamReceived,
)

if TYPE_CHECKING:
    from ralph.values.ports import Clock

# Each of these events shows that the announced retry has begun or ended, so ralph no longer waits for it.
_ATTEMPT_SIGNS = (StreamReceived, AttemptEnded, ResponseDiscarded, ClockFired, AnswerAccepted)


class Progress:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.turn = 0
        """The number of answers accepted for the current message. Between two messages, this is the number for the
        previous message."""
        self._retry: RetryScheduled | None = None
        """The pending retry, or None if no retry is pending."""
        self._retry_waits_until_s: float | None = None

    def begin(self) -> None:
        """Resets the state. It is called when work on a message begins."""
        self.turn = 0
        self.end()

    def end(self) -> None:
        self._retry, self._retry_waits_until_s = None, None

    def emit(self, event: Event) -> None:
        match event:
            case RetryScheduled():
                self._retry = event
                self._retry_waits_until_s = self._clock.now_s() + event.wait_s
            case RetryRecovered() | RetryExhausted():
                self.end()
            case _ if isinstance(event, _ATTEMPT_SIGNS):
                self._retry_waits_until_s = None
                self.turn += isinstance(event, AnswerAccepted)

    @property
    def is_retrying(self) -> bool:
        return self._retry is not None

    def retry_status(self) -> dict[str, Any] | None:
        """The pending retry as `get_status` reports it, or None if no retry is pending."""
        if self._retry is None:
            return None
        until_s, now_s = self._retry_waits_until_s, self._clock.now_s()
        left_s = 0.0 if until_s is None else max(0.0, until_s - now_s)
        return {
            "attempt": self._retry.attempt,
            "max_retries": self._retry.max_retries,
            "is_waiting": left_s > 0,
            "seconds_left": round(left_s, 3),
            "message": self._retry.message,
        }
