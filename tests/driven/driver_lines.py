"""Makes lines that a driver writes to a run, and an object that handles these lines without a run. A driver is a
program that steers ralph through standard input.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from ralph.driven.questions import Replies
from ralph.driven.steering import Progress, Steering
from ralph.machine.waiter import Inbox
from ralph.values.controls import RunControls
from ralph.values.events import AnswerAccepted, AttemptEnded, RetryExhausted, RetryRecovered, RetryScheduled
from ralph.values.ports import GuardRefused, InterruptRequested, RetryAborted
from ralph.values.usage import TokenUsage
from tests.fakes import FakeClock, RecordingEvents

if TYPE_CHECKING:
    from ralph.values.controls import PermissionMode

FAILED = AttemptEnded(1, 1, "main", "m", 0.1, TokenUsage(), kind="overloaded", error="529")
SCHEDULED = RetryScheduled(2, 4, 8.0, 529, "HttpError", "overloaded", "529 overloaded")
RECOVERED = RetryRecovered(2, 12.0)
EXHAUSTED = RetryExhausted(4, 30.0, "529 overloaded")
ACCEPTED = AnswerAccepted({"id": "msg_1"})

MODELS = {"first": "claude-first-1", "second": "claude-second-2"}


class FakeModels:
    """A run's models for control requests: two models, of which `serving` answers at present."""

    def __init__(self) -> None:
        self.serving = MODELS["first"]

    def choose(self, requested: str | None) -> str:
        if requested is None:
            return MODELS["first"]
        if requested not in MODELS:
            raise ValueError(f"unknown model {requested}; models: {', '.join(MODELS)}")
        return MODELS[requested]

    def introduction(self, _mode: PermissionMode) -> dict[str, Any]:
        return {}

    def mcp_status(self) -> list[dict[str, Any]]:
        return []

    def context_usage(self) -> dict[str, Any]:
        return {}


def user(content: str) -> bytes:
    return json.dumps({"type": "user", "message": {"role": "user", "content": content}}).encode()


def request(subtype: str, request_id: str = "r1", **fields: Any) -> bytes:
    line = {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **fields}}
    return json.dumps(line).encode()


class SteeringRig:
    """A `Steering`, which handles a driver's lines, with a fake clock and without a run."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.clock = FakeClock()
        self.controls = RunControls()
        self.responses: list[dict[str, Any]] = []
        self.models = FakeModels()
        self.events = RecordingEvents()
        self.progress = Progress(self.clock)
        self.inbox = Inbox(self.clock)
        self.replies = Replies()
        self.steering = Steering(
            self.inbox.mailbox(),
            self.controls,
            self.clock,
            self.progress,
            self.responses.append,
            replies=self.replies,
            emit=self.events.emit,
        )
        if is_open:
            self.steering.open(self.models)

    def answer_to(self, subtype: str, **fields: Any) -> Any:
        """Handles one request of the driver and returns the content of the response, or the error text. Ignores
        exceptions that stop a run, which are raised after the response.
        """
        with contextlib.suppress(InterruptRequested, RetryAborted, GuardRefused):
            self.steering.handle(request(subtype, **fields))
        response = self.responses.pop()["response"]
        assert response["request_id"] == "r1"
        assert not self.responses
        return response["response"] if response["subtype"] == "success" else response["error"]
