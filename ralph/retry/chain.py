"""Publishes the state of the retries and the events while one answer is requested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from ralph.retry.step import begin_chain, exhausted
from ralph.values.events import RetryRecovered, RetryScheduled
from ralph.values.ports import Interrupted

if TYPE_CHECKING:
    from types import TracebackType

    from ralph.retry.call_site import CallSite, TurnRequests
    from ralph.retry.step import RetryState
    from ralph.values.events import Event


class Chain:
    """A context manager that publishes the events of a chain. A chain is one call of `send_with_retry`.

    If the chain has a RetryScheduled event, exactly one RetryRecovered or RetryExhausted event follows before the
    chain ends. This holds even if a signal, a driver or the time limit ends the chain. If an `Interrupted` ends the
    chain, the last API error becomes the `__cause__` of the `Interrupted`.
    """

    def __init__(self, site: CallSite, requests: TurnRequests) -> None:
        self._site = site
        self._requests = requests
        self._started_s = site.clock.now_s()
        self._state: RetryState | None = None
        self._is_open = False

    def begin(self) -> tuple[RetryState, tuple[Event, ...]]:
        """The first retry state of the `send_with_retry` call, and its first events."""
        roster, requests = self._site.roster, self._requests
        return begin_chain(
            roster.state,
            roster.rules,
            roster.targets,
            turn=requests.turn,
            attempts=requests.attempts,
            now_s=self._started_s,
        )

    def publish(self, state: RetryState, *events: Event) -> None:
        """Stores the state for the rest of the run, and emits the events."""
        self._state = state
        self._site.roster.state = state.choice
        self._requests.attempts = state.attempt
        for event in events:
            if isinstance(event, RetryRecovered):
                self._is_open = False
            self._site.events.emit(event)
            if isinstance(event, RetryScheduled):
                self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, end: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._requests.took_s += self._site.clock.now_s() - self._started_s
        if self._state is None or not isinstance(end, Exception | Interrupted):
            return
        if isinstance(end, Interrupted):
            end.__cause__ = end.__cause__ or self._state.last_error
        if self._is_open:
            self._site.events.emit(exhausted(self._state, end))
