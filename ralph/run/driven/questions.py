"""Sends requests to the driver, and waits for its responses on the main thread.

Several requests may be open at once, and the responses may come in any order. A response to a request that is not open
is ignored: it came too late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.run.driven.control_lines import Response, cancel_line, request_line
from ralph.values.ports import TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.values.ports import Clock, Mailbox, Waiter


class Question(Struct, frozen=True):
    request: Mapping[str, Any]
    """The request, including its `subtype`."""
    waiting_for: str
    """The text of heartbeats meanwhile."""
    within_s: float
    """The seconds to wait for the response."""


class Late(Struct, frozen=True):
    """The driver has not answered in time. It has been told that nobody waits any more."""

    after_s: float


class Gone(Struct, frozen=True):
    """The driver has closed ralph's standard input, so that it cannot answer any more."""


Reply = Response | Late | Gone


class Questions:
    """The open requests to the driver. `take` and `close` are called while the main thread waits in `ask`."""

    def __init__(self, send: Callable[[dict[str, Any]], None], waiter: Waiter, clock: Clock) -> None:
        """`send` writes one line to the driver."""
        self._send = send
        self._waiter = waiter
        self._clock = clock
        self._open: dict[str, Mailbox] = {}
        self._asked = 0
        self._is_closed = False

    def take(self, response: Response) -> None:
        """Passes a response on to the request that it answers, if that is open."""
        mailbox = self._open.get(response.request_id)
        if mailbox is not None:
            mailbox.put(response)

    def close(self) -> None:
        """Must be called when the input has ended. All open requests and all later ones get the reply `Gone`."""
        self._is_closed = True
        for mailbox in self._open.values():
            mailbox.put(Gone())

    def ask(self, questions: Sequence[Question]) -> list[Reply]:
        """Sends all requests at once, and returns the reply to each of them, in order.

        Each of them waits as long as its own `within_s`. If the wait raises an `Interrupted`, the open requests are
        cancelled.
        """
        if self._is_closed:
            return [Gone() for _ in questions]
        started_s = self._clock.now_s()
        ids = [self._begin(question) for question in questions]
        try:
            return [
                self._reply(request_id, question, started_s)
                for request_id, question in zip(ids, questions, strict=True)
            ]
        finally:
            for request_id in ids:
                if request_id in self._open:
                    self._give_up(request_id)

    def _begin(self, question: Question) -> str:
        self._asked += 1
        request_id = f"ralph_{self._asked}"
        self._open[request_id] = self._waiter.mailbox()
        self._send(request_line(request_id, question.request))
        return request_id

    def _reply(self, request_id: str, question: Question, started_s: float) -> Reply:
        until_s = started_s + question.within_s
        reply = self._waiter.wait(self._open[request_id], until_s=until_s, waiting_for=question.waiting_for)
        if reply is TIMED_OUT:
            self._give_up(request_id)
            return Late(question.within_s)
        self._open.pop(request_id).close()
        return reply  # type: ignore[no-any-return]  # only `take` and `close` put something into the mailbox

    def _give_up(self, request_id: str) -> None:
        self._open.pop(request_id).close()
        if not self._is_closed:
            self._send(cancel_line(request_id))
