"""Control lines during waits: they are handled in order, whatever else happens, and do not delay anything else."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ralph.machine.waiter import Inbox, InboxWaiter, SystemClock
from ralph.values.ports import TIMED_OUT, Interrupted, InterruptRequested, RetryAborted, SignalReceived
from tests.machine.test_waiter import take

if TYPE_CHECKING:
    from collections.abc import Callable


CLOCK = SystemClock()


class Listener:
    """Keeps the items that it receives. An item that is an exception is raised."""

    def __init__(self) -> None:
        self.inbox = Inbox(CLOCK)
        self.mailbox = self.inbox.mailbox()
        self.told: list[Interrupted] = []
        """The first stop that the waiter raised."""
        self.heard: list[Any] = []
        self.waited_for: list[str | None] = []
        self.on_line: Callable[[Any], None] = lambda _item: None
        self.has_room = True

    def can_take(self) -> bool:
        return self.has_room

    def handle(self, item: Any, *, waiting_for: str | None = None) -> None:
        self.heard.append(item)
        self.waited_for.append(waiting_for)
        self.on_line(item)
        if isinstance(item, BaseException):
            raise item


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def waiter(listener: Listener) -> InboxWaiter:
    ends_s = CLOCK.now_s() + 1e6
    return InboxWaiter(
        CLOCK, listener.inbox, driver=listener, run_ends_s=ends_s, on_first_stop=listener.told.append
    )


@pytest.fixture
def flooded(listener: Listener) -> Listener:
    """Each handled line adds another one."""

    def bring_another(_line: Any) -> None:
        assert len(listener.heard) < 5_000_000, "nothing else is heard"
        listener.mailbox.put("one of many")

    listener.on_line = bring_another
    listener.mailbox.put("the first")
    return listener


def test_lines_are_taken_in_order_while_something_else_is_awaited(waiter, listener) -> None:
    for line in range(3):
        listener.mailbox.put(line)
    assert take(waiter, waiter.mailbox()) is TIMED_OUT
    assert listener.heard == [0, 1, 2]
    assert listener.waited_for == ["a test"] * 3


def test_a_line_wakes_a_wait_that_continues_afterwards(waiter, listener, monkeypatch) -> None:
    """The next line is sent while one is handled, or from a thread. None may have to wait for the end of a time
    slice, which never comes here.
    """
    monkeypatch.setattr("ralph.machine.waiter._LONGEST_SLICE_S", math.inf)
    mailbox = waiter.mailbox()

    def call_for_next(line: int) -> None:
        if line == 200:
            mailbox.put("answered")
        elif line % 2:
            listener.mailbox.put(line + 1)
        else:
            threading.Timer(0.005, listener.mailbox.put, [line + 1]).start()

    listener.on_line = call_for_next
    listener.mailbox.put(0)
    assert take(waiter, mailbox, within_s=None) == "answered"
    assert listener.heard == list(range(201))


def test_a_flood_of_other_items_does_not_keep_a_line_waiting(waiter, listener) -> None:
    """A server may be faster than ralph, so that its mailbox is never empty."""
    mailbox = waiter.mailbox()
    for item in range(200):
        mailbox.put(item)
        if item == 100:
            assert take(waiter, mailbox) == 0
            listener.mailbox.put("line")
    assert take(waiter, mailbox) == 1
    assert listener.heard == ["line"]


def test_a_flood_of_lines_does_not_keep_a_signal_waiting(waiter, flooded) -> None:
    threading.Timer(0.05, waiter.inbox.note_signal, [15]).start()
    with pytest.raises(SignalReceived):
        take(waiter, waiter.mailbox(), within_s=5)


@pytest.mark.parametrize("stop", [InterruptRequested(), RetryAborted()])
def test_what_a_line_raises_leaves_the_wait_and_nothing_else_changes(waiter, listener, stop) -> None:
    mailbox = waiter.mailbox()
    listener.mailbox.put(stop)
    listener.mailbox.put("next line")
    mailbox.put("item")
    with pytest.raises(type(stop)):
        take(waiter, mailbox)
    assert waiter.time_left_s() < math.inf
    assert not listener.told
    assert take(waiter, mailbox) == "item"
    assert listener.heard == [stop, "next line"]
    waiter.inbox.note_signal(15)
    with pytest.raises(SignalReceived):
        take(waiter, mailbox)
    assert [first.signal_number for first in listener.told] == [15]


def test_a_signal_comes_before_a_line(waiter, listener) -> None:
    listener.mailbox.put("line")
    waiter.inbox.note_signal(2)
    with pytest.raises(SignalReceived):
        take(waiter, waiter.mailbox())
    assert listener.heard == []


def test_a_line_stays_where_it_is_until_there_is_room_for_its_answer(waiter, listener) -> None:
    listener.has_room = False
    listener.mailbox.put("line")
    assert take(waiter, waiter.mailbox()) is TIMED_OUT
    assert listener.heard == []
    listener.has_room = True
    assert take(waiter, waiter.mailbox()) is TIMED_OUT
    assert listener.heard == ["line"]
