"""Whatever a driver sends in whatever state, the responses and the state must be those of a simple model."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.driven.control_channel import END_OF_INPUT
from ralph.driven.control_lines import UserMessage
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.values.ports import TIMED_OUT, GuardRefused, InterruptRequested, RetryAborted
from tests.driven.driver_lines import (
    ACCEPTED,
    EXHAUSTED,
    MODELS,
    RECOVERED,
    SCHEDULED,
    SteeringRig,
    request,
    user,
)

if TYPE_CHECKING:
    from ralph.values.events import Event

REQUESTS = [
    ("initialize", {}),
    ("interrupt", {}),
    ("abort_retry", {}),
    ("get_status", {}),
    ("set_model", {"model": "second"}),
    ("set_model", {"model": "third"}),
    ("set_model", {"model": None}),
    ("set_auto_retry", {"enabled": False}),
    ("set_auto_retry", {"enabled": True}),
    ("set_auto_retry", {"enabled": "x"}),
    ("set_permission_mode", {"mode": "plan"}),
    ("set_permission_mode", {"mode": "askMe"}),
    ("initialize", {"hooks": {"Stop": [{}]}}),
    ("reboot", {}),
]
STEPS = st.lists(
    st.sampled_from(["user", "start", "finish", "junk", SCHEDULED, ACCEPTED, RECOVERED, EXHAUSTED])
    | st.sampled_from(REQUESTS),
    max_size=30,
)


STOPS = {
    "interrupt": InterruptRequested,
    "abort_retry": RetryAborted,
    "initialize": GuardRefused,
    "set_permission_mode": GuardRefused,
}


@dataclass
class Model:
    """The promises to a driver, in the simplest form."""

    is_working: bool = False
    has_raised: bool = False
    is_retrying: bool = False
    auto_retry: bool = True
    model: str = "claude-first-1"
    is_guarded: bool = False
    is_in_plan: bool = False
    lacks_mode: bool = False
    """Whether the driver has asked for a mode that ralph does not have, and no stricter mode is in force."""
    turn: int = 0
    queue: deque[str] = field(default_factory=deque)

    def answer(self, subtype: str, fields: dict[str, Any]) -> dict[str, Any] | None:
        """The content of the response, or None for an error."""
        match subtype, fields.get("model", fields.get("enabled")):
            case "initialize", _:
                self.is_guarded |= bool(fields.get("hooks"))
                return None if self.is_guarded else {}
            case "set_permission_mode", _:
                self.is_in_plan |= fields["mode"] == "plan"
                self.lacks_mode = not self.is_in_plan
                return {"mode": "plan"} if fields["mode"] == "plan" else None
            case "interrupt", _:
                return {"interrupted": self.is_working, "still_queued": []}
            case "abort_retry", _:
                return {"aborted": self.is_working and self.is_retrying}
            case "set_model", None | "second" as requested:
                self.model = MODELS[requested or "first"]
                return {"model": self.model}
            case "set_auto_retry", bool(requested):
                self.auto_retry = requested
                return {"enabled": requested}
            case "get_status", _:
                return self.status()
        return None

    def status(self) -> dict[str, Any]:
        retry = {"attempt": 2, "max_retries": 4, "message": "529 overloaded"} if self.is_retrying else None
        return {
            "state": "working" if self.is_working else "idle",
            "turn": self.turn,
            "queued_messages": len(self.queue),
            "auto_retry": self.auto_retry,
            "retry": retry,
            "model": self.model,
            "waiting_for": None,
        }

    def stops(self, subtype: str, *, was_refused: bool) -> bool:
        """Whether a stop follows the response that was just sent."""
        is_stopping = self.is_working and (
            subtype == "interrupt"
            or (subtype == "abort_retry" and self.is_retrying)
            or (subtype == "initialize" and self.is_guarded)
            or (subtype == "set_permission_mode" and was_refused and (self.is_guarded or self.lacks_mode))
        )
        is_first = not self.has_raised
        self.has_raised |= is_stopping
        return is_stopping and is_first

    def set_working(self, is_working: bool) -> None:
        self.turn = 0 if is_working else self.turn
        self.is_working, self.has_raised, self.is_retrying = is_working, False, False

    def observed(self, event: Event) -> None:
        self.is_retrying = event is SCHEDULED or (self.is_retrying and event is ACCEPTED)
        self.turn += event is ACCEPTED


def without_times(response: dict[str, Any]) -> dict[str, Any]:
    retry = response.get("retry")
    if retry is None:
        return response
    kept = {name: value for name, value in retry.items() if name not in {"is_waiting", "seconds_left"}}
    return {**response, "retry": kept}


@given(STEPS)
def test_whatever_comes_each_request_has_one_answer_in_order_and_the_state_is_as_said(steps) -> None:
    rig, model = SteeringRig(), Model()
    expected: list[tuple[str | None, dict[str, Any] | None]] = []
    for number, step in enumerate([*steps, ("get_status", {})]):
        match step:
            case "user":
                rig.steering.handle(user(f"message {number}"))
                model.queue.append(f"message {number}")
            case "start" | "finish":
                rig.steering.begin_work() if step == "start" else rig.steering.end_work()
                model.set_working(step == "start")
            case "junk":
                rig.steering.handle(b"{")
                expected.append((None, None))
            case (str() as subtype, dict() as fields):
                answer = model.answer(subtype, fields)
                expected.append((f"r{number}", answer))
                if model.stops(subtype, was_refused=answer is None):
                    with pytest.raises(STOPS[subtype]):
                        rig.steering.handle(request(subtype, f"r{number}", **fields))
                else:
                    rig.steering.handle(request(subtype, f"r{number}", **fields))
            case _:
                rig.progress.emit(step)
                model.observed(step)
    told = [response["response"] for response in rig.responses]
    assert [
        (response["request_id"], without_times(response["response"]) if "response" in response else None)
        for response in told
    ] == expected
    rig.steering.handle(END_OF_INPUT)
    waiter = InboxWaiter(SystemClock())
    for content in model.queue:
        assert rig.steering.next_message(waiter) == UserMessage(content)
    assert rig.steering.next_message(waiter) is None
    assert waiter.wait(waiter.mailbox(), until_s=0, waiting_for="nothing") is TIMED_OUT
