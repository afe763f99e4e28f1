"""Requests of ralph to a driver: each gets the reply that belongs to it, or none in time."""

from __future__ import annotations

from typing import Any

import pytest

from ralph.driven.control_channel import END_OF_INPUT
from ralph.driven.control_lines import Response, parse_control_line
from ralph.driven.questions import Question, Questions, Replies
from ralph.machine.waiter import Inbox, InboxWaiter
from ralph.values.ports import InterruptRequested
from tests.driven.driver_lines import SteeringRig, request
from tests.fakes import FakeClock
from tests.rows import every_row


class Link:
    """Questions with a driver whose lines are `sent`. It answers as soon as a line is written."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.inbox = Inbox(self.clock)
        self.sent: list[dict[str, Any]] = []
        self.answers: dict[str, Response] = {}
        self.replies = Replies()
        waiter = InboxWaiter(self.clock, self.inbox)
        self.questions = Questions(self._send, self.replies, waiter, self.clock)

    def _send(self, line: dict[str, Any]) -> None:
        self.sent.append(line)
        reply = self.answers.get(line["request_id"])
        if reply is not None and line["type"] == "control_request":
            self.replies.take(reply)


def question(subtype: str = "hook_callback", within_s: float = 5.0) -> Question:
    return Question({"subtype": subtype}, "an answer", within_s)


def test_replies_in_any_order_reach_their_questions() -> None:
    link = Link()
    link.answers = {"ralph_1": Response("ralph_1", {"n": 1}), "ralph_2": Response("ralph_2", error="no")}
    assert link.questions.ask([question(), question()]) == [
        Response("ralph_1", {"n": 1}),
        Response("ralph_2", error="no"),
    ]
    assert [line["type"] for line in link.sent] == ["control_request"] * 2


def test_an_unanswered_question_is_cancelled_when_its_time_is_over() -> None:
    link = Link()
    assert link.questions.ask([question(within_s=0.0)]) == [Response("ralph_1", error="no answer within 0 s")]
    assert link.sent[-1] == {"type": "control_cancel_request", "request_id": "ralph_1"}
    link.replies.take(Response("ralph_1", {}))
    link.answers = {"ralph_2": Response("ralph_2", {"late": False})}
    assert link.questions.ask([question()]) == [Response("ralph_2", {"late": False})], (
        "a late reply is ignored"
    )


def test_open_questions_end_when_the_driver_leaves() -> None:
    rig = SteeringRig()
    waiter = InboxWaiter(rig.clock, rig.inbox, driver=rig.steering)
    questions = Questions(rig.responses.append, rig.replies, waiter, rig.clock)
    rig.steering.mailbox.put(END_OF_INPUT)
    [reply] = questions.ask([question()])
    assert reply.error is not None


def test_an_interrupt_cancels_open_questions() -> None:
    rig = SteeringRig()
    waiter = InboxWaiter(rig.clock, rig.inbox, driver=rig.steering)
    questions = Questions(rig.responses.append, rig.replies, waiter, rig.clock)
    rig.steering.begin_work()
    rig.steering.mailbox.put(request("interrupt"))
    with pytest.raises(InterruptRequested):
        questions.ask([question()])
    assert rig.responses[-1] == {"type": "control_cancel_request", "request_id": "ralph_1"}


@every_row(
    ("line", "parsed"),
    [
        (b'{"subtype":"success","request_id":"r","response":{"a":1}}', Response("r", {"a": 1})),
        (b'{"subtype":"success","request_id":"r"}', Response("r")),
        (b'{"subtype":"error","request_id":"r","error":"no"}', Response("r", error="no")),
        (
            b'{"subtype":"success","request_id":"r","response":[]}',
            Response("r", error="the response does not have a valid form"),
        ),
        (
            b'{"subtype":"sucess","request_id":"r","response":{}}',
            Response("r", error="the response does not have a valid form"),
        ),
    ],
)
def test_a_response_line_is_a_success_only_if_it_says_so(line, parsed) -> None:
    assert parse_control_line(b'{"type":"control_response","response":' + line + b"}") == parsed
