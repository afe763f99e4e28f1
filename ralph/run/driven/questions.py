"""Sends requests to the driver, and waits for its responses on the main thread. Several requests may be open at the
same time, and the responses may come in any order. A response is ignored if its request is no longer open.
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
    """The text of heartbeats during the wait."""
    within_s: float
    """The time limit for the response, in seconds."""


class Late(Struct, frozen=True):
    """Stands for the response to a request if the driver did not respond in time. ralph has told the driver that it
    no longer waits.
    """

    after_s: float


class Gone(Struct, frozen=True):
    """Stands for the response to a request if the driver can no longer respond, because it has closed ralph's
    standard input.
    """


Reply = Response | Late | Gone


class Questions:
    """The requests to the driver that wait for a response. `take` and `close` are called while the main thread waits
    in `ask`.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None], waiter: Waiter, clock: Clock) -> None:
        """`send` writes one line to the driver."""
        self._send = send
        self._waiter = waiter
        self._clock = clock
        self._open: dict[str, Mailbox] = {}
        self._asked = 0
        self._is_closed = False

    def take(self, response: Response) -> None:
        """Passes a response to the request that it answers, if that request is still open."""
        mailbox = self._open.get(response.request_id)
        if mailbox is not None:
            mailbox.put(response)

    def close(self) -> None:
        """Ends all requests, because the input has ended and the driver can no longer respond. Every open request and
        every later request gets the reply `Gone`.
        """
        self._is_closed = True
        for mailbox in self._open.values():
            mailbox.put(Gone())

    def ask(self, questions: Sequence[Question]) -> list[Reply]:
        """Sends all requests at once, and returns one reply for each of them, in order. Each request has its own time
        limit, `within_s`. If the wait raises an `Interrupted`, the open requests are cancelled.
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
