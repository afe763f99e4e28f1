"""A chain of retries must be closed exactly once, whatever ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ralph.retry.backoff import standard
from ralph.retry.call_site import CallSite, Chain, TurnRequests
from ralph.values.controls import RunControls
from ralph.values.events import ModelFallbackSucceeded, RetryExhausted, RetryRecovered, RetryScheduled
from ralph.values.limits import Budget
from tests.fakes import FakeWaiter, RecordingEvents, ScriptedClient, new_log, roster_of
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.values.events import Event

SCHEDULED = RetryScheduled(1, 4, 2.0, 529, "HttpError", "overloaded", "529 overloaded")
RECOVERED = RetryRecovered(1, 2.0)
SUCCEEDED = ModelFallbackSucceeded("spare", 1, 2)


class Deaf(RecordingEvents):
    """A sink that raises OSError for one event."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self._event = event

    def emit(self, event: Event) -> None:
        super().emit(event)
        if event is self._event:
            raise OSError


@every_row(
    ("deaf_for", "closes"),
    [
        pytest.param(SCHEDULED, [], id="it was never told of"),
        pytest.param(RECOVERED, [RetryRecovered], id="it is closed already"),
        pytest.param(SUCCEEDED, [RetryRecovered], id="it was closed before"),
    ],
)
def test_a_chain_that_cannot_be_told_of_is_closed_no_second_time(deaf_for, closes) -> None:
    events, waiter = Deaf(deaf_for), FakeWaiter()
    site = CallSite(
        roster_of(),
        standard(),
        RunControls(),
        Budget(),
        ScriptedClient([]),
        waiter,
        waiter.clock,
        events,
        new_log(),
    )
    with pytest.raises(OSError), Chain(site, TurnRequests(1)) as chain:  # noqa: PT011, PT012 - the fake's own
        state, _ = chain.begin()
        chain.publish(state, SCHEDULED)
        chain.publish(state, RECOVERED, SUCCEEDED)
    assert [
        type(event) for event in events.events if isinstance(event, RetryRecovered | RetryExhausted)
    ] == closes
