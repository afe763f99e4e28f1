"""A driver at the other end of a real pipe, whose lines are handled during the waits of a run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from ralph.driven.control_channel import ControlChannel
from ralph.driven.control_lines import UserMessage, success
from ralph.driven.questions import Replies
from ralph.driven.steering import Progress, Steering
from ralph.machine.waiter import Inbox, InboxWaiter, SystemClock
from ralph.values.controls import RunControls
from ralph.values.ports import InterruptRequested
from tests.driven.driver_lines import FakeModels, request, user
from tests.fakes import RecordingEvents

if TYPE_CHECKING:
    from collections.abc import Iterator


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
