"""A driver's lines: each request is answered once and in order, and no exception is raised where nobody could catch
it.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from ralph.driven import steering
from ralph.driven.control_channel import END_OF_INPUT, ControlChannel
from ralph.driven.control_lines import UserMessage, failure, success
from ralph.driven.questions import Replies
from ralph.driven.steering import MOST_QUEUED_MESSAGES, Progress, Steering
from ralph.machine.waiter import Inbox, InboxWaiter, SystemClock
from ralph.values.controls import RunControls
from ralph.values.events import (
    ClockFired,
    Heartbeat,
    Notice,
    ResponseDiscarded,
    StreamReceived,
)
from ralph.values.ports import TIMED_OUT, Interrupted, InterruptRequested
from tests.driven.driver_lines import FAILED, SCHEDULED, FakeModels, SteeringRig, request, user
from tests.fakes import RecordingEvents
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def rig() -> SteeringRig:
    return SteeringRig()


def test_nothing_runs_when_a_driver_would_count_on_something_in_vain(rig) -> None:
    rig.steering.begin_work()
    refused = rig.answer_to("initialize", toolAliases={"a": "b"}, plugins=["p"])
    assert refused == "initialize: ralph does not offer plugins, toolAliases; leave that out"
    assert rig.steering.missing_guard == f"{refused}. Nothing runs without what was asked for"
    assert rig.answer_to("initialize") == rig.steering.missing_guard


GUARDS: list[dict[str, Any]] = [
    {"agents": {"reviewer": {"prompt": "x"}}},
    {"canUseTool": True},
    {"can_use_tool": {"enabled": True}},
    {"permissionPromptToolName": "stdio"},
    {"permissions": {"deny": ["Bash"]}},
    {"disallowedTools": ["Bash"]},
]


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: next(iter(guard)))
def test_a_guard_that_cannot_be_honoured_is_refused_for_good_and_stops_the_message(rig, guard) -> None:
    rig.steering.begin_work()
    assert rig.answer_to("initialize", **guard).startswith(f'initialize asked for "{next(iter(guard))}"')
    assert "nothing runs without a guard that was asked for" in rig.steering.missing_guard
    rig.steering.end_work()
    rig.steering.begin_work()
    for again in (guard, {"agents": None}, {}):
        assert rig.answer_to("initialize", **again) == rig.steering.missing_guard


def test_no_line_is_taken_before_the_session_is_open() -> None:
    rig = SteeringRig(is_open=False)
    waiter = InboxWaiter(rig.clock, rig.inbox, driver=rig.steering)
    rig.steering.mailbox.put(request("get_status"))
    assert waiter.wait(waiter.mailbox(), until_s=0, waiting_for="a thread") is TIMED_OUT
    assert rig.responses == []
    rig.steering.open(rig.models)
    waiter.wait(waiter.mailbox(), until_s=0, waiting_for="the next message")
    assert [response["response"]["request_id"] for response in rig.responses] == ["r1"]


@pytest.mark.parametrize("enabled", [False, True])
def test_auto_retry_is_switched_for_the_loop_to_see(rig, enabled) -> None:
    rig.controls.auto_retry = not enabled
    assert rig.answer_to("set_auto_retry", enabled=enabled) == {"enabled": enabled}
    assert rig.controls.auto_retry is enabled


@pytest.mark.parametrize(
    ("event", "is_waiting"),
    [
        (Heartbeat("retry 2 of 4", 30), True),
        (Notice("hi"), True),
        (StreamReceived({}), False),
        (FAILED, False),
        (ClockFired("connect", 10), False),
        (ResponseDiscarded("m1"), False),
    ],
)
def test_a_retry_waits_until_its_attempt_gives_a_sign(rig, event, is_waiting) -> None:
    rig.progress.emit(SCHEDULED)
    rig.progress.emit(event)
    assert rig.answer_to("get_status")["retry"]["is_waiting"] is is_waiting


def test_messages_are_queued_up_to_a_number(rig) -> None:
    for number in range(MOST_QUEUED_MESSAGES):
        rig.steering.handle(user(f"message {number}"))
    assert rig.responses == []
    rig.steering.handle(user("one too many"))
    error = "the message was dropped: 100 messages are waiting already; send it again after a result"
    assert rig.responses == [failure(None, error)]
    waiter = InboxWaiter(SystemClock())
    assert rig.steering.next_message(waiter) == UserMessage("message 0")
    rig.steering.handle(user("the last"))
    rig.steering.handle(END_OF_INPUT)
    taken = [rig.steering.next_message(waiter) for _ in range(MOST_QUEUED_MESSAGES)]
    expected = [*(f"message {number}" for number in range(1, MOST_QUEUED_MESSAGES)), "the last"]
    assert taken == list(map(UserMessage, expected))
    assert rig.steering.next_message(waiter) is None


def test_messages_are_queued_up_to_a_size_and_one_whatever_its_size(rig, monkeypatch) -> None:
    assert steering.MOST_QUEUED_BYTES == 67_108_864
    monkeypatch.setattr(steering, "MOST_QUEUED_BYTES", most_bytes := 65_536)
    half = user("x" * (most_bytes // 2 - len(user(""))))
    rig.steering.handle(half)
    rig.steering.handle(half)
    assert rig.responses == []
    rig.steering.handle(user("x"))
    error = (
        "the message was dropped: 65,536 bytes of messages are waiting already; send it again after a result"
    )
    assert rig.responses.pop() == failure(None, error)
    waiter = InboxWaiter(SystemClock())
    for _ in range(2):
        rig.steering.next_message(waiter)
    rig.steering.handle(user("x" * (most_bytes + 1)))
    assert rig.answer_to("get_status")["queued_messages"] == 1


def test_messages_that_came_with_a_signal_are_not_lost(rig) -> None:
    steering = rig.steering
    waiter = InboxWaiter(rig.clock, rig.inbox, driver=steering)
    for line in (user("one"), request("get_status"), user("two"), END_OF_INPUT):
        steering.mailbox.put(line)
    waiter.inbox.note_signal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        steering.next_message(waiter)
    assert not steering.has_message
    steering.take_last_lines(waiter)
    assert [steering.next_message(waiter).content for _ in range(2)] == ["one", "two"]
    assert steering.next_message(waiter) is None
    assert len(rig.responses) == 1


@every_row(
    ("hooks", "reason"),
    [
        ({"Hooks": {"Stop": [{"hookCallbackIds": ["h"]}]}}, 'initialize: "Hooks" must be written hooks'),
        (
            {"hooks": {"Stop": [{"hookCallbackIds": []}]}},
            "initialize: hooks: Expected `array` of length >= 1",
        ),
    ],
)
def test_hooks_that_were_refused_are_missing_for_good(hooks, reason) -> None:
    rig = SteeringRig()
    assert rig.answer_to("initialize", **hooks).startswith(reason)
    assert rig.answer_to("initialize").startswith(reason)


# --- With a real pipe, channel and waiter


@dataclass
class Pipe:
    """The pipe of a driver, with a real channel and a real waiter."""

    waiter: InboxWaiter
    steering: Steering
    progress: Progress
    controls: RunControls
    responses: list[dict[str, Any]]
    write_fd: int

    def send(self, *lines: bytes) -> None:
        os.write(self.write_fd, b"".join(line + b"\n" for line in lines))

    def hang_up(self) -> None:
        os.close(self.write_fd)
        self.write_fd = -1

    def wait_until_answered(self, number: int) -> None:
        """Waits for something else until this number of responses was sent, as a working run does."""
        while len(self.responses) < number:
            self.waiter.sleep(0.005, waiting_for="a tool")


@pytest.fixture
def driver() -> Iterator[Pipe]:
    read_fd, write_fd = os.pipe()  # the reading end stays open: the channel's thread may be at it
    clock, controls = SystemClock(), RunControls()
    inbox, progress = Inbox(clock), Progress(clock)
    mailbox = inbox.mailbox()
    channel = ControlChannel(mailbox, read_fd, most_unread_bytes=1000)
    channel.start()
    responses: list[dict[str, Any]] = []
    steering = Steering(
        mailbox,
        controls,
        clock,
        progress,
        responses.append,
        replies=Replies(),
        emit=RecordingEvents().emit,
        acknowledge=channel.acknowledge,
    )
    steering.open(FakeModels())
    ends_s = clock.now_s() + 60  # a test that fails does not hang
    waiter = InboxWaiter(clock, inbox, driver=steering, run_ends_s=ends_s)
    pipe = Pipe(waiter, steering, progress, controls, responses, write_fd)
    yield pipe
    if pipe.write_fd >= 0:
        pipe.hang_up()


def test_an_interrupt_sent_with_its_message_stops_that_message(driver) -> None:
    driver.send(user("one"), request("interrupt"), user("two"))
    assert driver.steering.next_message(driver.waiter) == UserMessage("one")
    driver.steering.begin_work()
    with pytest.raises(InterruptRequested):
        driver.waiter.sleep(5, waiting_for="a tool")
    driver.steering.end_work()
    assert driver.responses == [success("r1", {"interrupted": True, "still_queued": []})]
    assert driver.steering.next_message(driver.waiter) == UserMessage("two")


def test_more_lines_than_the_channel_keeps_are_all_answered_while_a_tool_runs(driver) -> None:
    """Each handled line makes room for another one. There is room for about three lines here."""
    driver.steering.begin_work()
    driver.send(*(request("initialize", f"r{number}") for number in range(50)))
    driver.wait_until_answered(50)
    assert driver.responses == [success(f"r{number}", {}) for number in range(50)]
