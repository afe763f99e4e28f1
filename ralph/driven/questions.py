"""Sends requests to the driver, and waits for its responses on the main thread. Several requests may be open at the
same time, and the responses may come in any order. A response is ignored if its request is no longer open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.driven.control_lines import Response, cancel_line, request_line
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


_GONE = "the driver has closed standard input, so that nobody can answer"


class Replies:
    """Passes the driver's responses to the requests that wait for them. `take` and `close` are called while the main
    thread waits in `Questions.ask`.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, Mailbox] = {}
        self.is_closed = False
        """True if the driver can no longer respond."""

    def expect(self, request_id: str, mailbox: Mailbox) -> None:
        """From now on, `mailbox` gets the response to this request."""
        self._waiting[request_id] = mailbox

    def give_up(self, request_id: str) -> bool:
        """Ends the wait for a response. Returns whether the request was still open."""
        mailbox = self._waiting.pop(request_id, None)
        if mailbox is not None:
            mailbox.close()
        return mailbox is not None

    def take(self, response: Response) -> None:
        """Passes a response to the request that it answers, if that request is still open."""
        mailbox = self._waiting.get(response.request_id)
        if mailbox is not None:
            mailbox.put(response)

    def close(self) -> None:
        """Ends all requests, because the input has ended and the driver can no longer respond. Every open request and
        every later request gets an error.
        """
        self.is_closed = True
        for request_id, mailbox in self._waiting.items():
            mailbox.put(Response(request_id, error=_GONE))


class Questions:
    def __init__(
        self, send: Callable[[dict[str, Any]], None], replies: Replies, waiter: Waiter, clock: Clock
    ) -> None:
        """`send` writes one line to the driver."""
        self._send = send
        self._replies = replies
        self._waiter = waiter
        self._clock = clock
        self._asked = 0

    def ask(self, questions: Sequence[Question]) -> list[Response]:
        """Sends all requests at once, and returns one response for each of them, in order. A request that is not answered
        within its time limit, or that cannot be, has a response with an error. If the wait raises an `Interrupted`, the open requests are cancelled.
        """
        if self._replies.is_closed:
            return [Response("", error=_GONE) for _ in questions]
        started_s = self._clock.now_s()
        asked = [self._begin(question) for question in questions]
        try:
            return [
                self._reply(request_id, mailbox, question, started_s)
                for (request_id, mailbox), question in zip(asked, questions, strict=True)
            ]
        finally:
            for request_id, _ in asked:
                self._give_up(request_id)

    def _begin(self, question: Question) -> tuple[str, Mailbox]:
        self._asked += 1
        request_id, mailbox = f"ralph_{self._asked}", self._waiter.mailbox()
        self._replies.expect(request_id, mailbox)
        self._send(request_line(request_id, question.request))
        return request_id, mailbox

    def _reply(self, request_id: str, mailbox: Mailbox, question: Question, started_s: float) -> Response:
        until_s = started_s + question.within_s
        reply = self._waiter.wait(mailbox, until_s=until_s, waiting_for=question.waiting_for)
        if reply is TIMED_OUT:
            self._give_up(request_id)
            return Response(request_id, error=f"no answer within {question.within_s:g} s")
        self._replies.give_up(request_id)
        return reply  # type: ignore[no-any-return]  # only `take` and `close` put something into the mailbox

    def _give_up(self, request_id: str) -> None:
        """Tells the driver that nobody waits for its response any more, if the request is still open."""
        if self._replies.give_up(request_id) and not self._replies.is_closed:
            self._send(cancel_line(request_id))
