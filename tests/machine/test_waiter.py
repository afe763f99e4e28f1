"""Waiting on the main thread: order, deadlines, signals, and heartbeats while nothing happens."""

from __future__ import annotations

import math
import select
import signal
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ralph.machine import waiter as inbox
from ralph.machine.waiter import Heartbeats, Inbox, InboxWaiter, StopEvent, SystemClock, catch_stop_signals
from ralph.values.events import (
    ClockFired,
    Heartbeat,
    Notice,
    ResponseDiscarded,
    RetryRecovered,
    RetryScheduled,
    StreamReceived,
)
from ralph.values.ports import TIMED_OUT, Interrupted, TimeIsUp
from tests.fakes import FakeClock
from tests.patience import PATIENCE_S
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.machine.waiter import InboxMailbox
    from ralph.values.events import Event

CLOCK = SystemClock()


@pytest.fixture
def waiter() -> InboxWaiter:
    return InboxWaiter(CLOCK)


def take(waiter: InboxWaiter, mailbox: InboxMailbox, *, within_s: float | None = 0.05) -> Any:
    until_s = None if within_s is None else CLOCK.now_s() + within_s
    return waiter.wait(mailbox, until_s=until_s, waiting_for="a test")


def test_nothing_of_a_waiter_is_set_later() -> None:
    """The constructor receives everything that a waiter needs. The other attributes are its own results."""
    assert {name for name in vars(InboxWaiter(CLOCK)) if not name.startswith("_")} == {"inbox", "was_stopped"}


def test_items_come_in_the_order_they_were_put_whoever_asks_first(waiter) -> None:
    one, two = waiter.mailbox(), waiter.mailbox()
    for item in range(3):
        one.put(("one", item))
        two.put(("two", item))
    assert [take(waiter, two) for _ in range(3)] == [("two", item) for item in range(3)]
    assert [take(waiter, one) for _ in range(3)] == [("one", item) for item in range(3)]
    assert take(waiter, one, within_s=0) is TIMED_OUT


def test_what_is_there_may_be_none_or_false(waiter) -> None:
    mailbox = waiter.mailbox()
    for item in (None, False, b"", TIMED_OUT):
        mailbox.put(item)
    assert [take(waiter, mailbox) for _ in range(4)] == [None, False, b"", TIMED_OUT]


def test_a_sleep_and_a_wait_last_as_long_as_they_should(waiter) -> None:
    started_s = time.monotonic()
    assert take(waiter, waiter.mailbox(), within_s=0.1) is TIMED_OUT
    for seconds in (0.1, 0, -5):
        waiter.sleep(seconds, waiting_for="a test")
    assert time.monotonic() - started_s >= 0.2


def test_an_item_that_is_there_beats_a_deadline_that_has_passed(waiter) -> None:
    mailbox, other = waiter.mailbox(), waiter.mailbox()
    other.put("not this one")
    mailbox.put("late but there")
    assert waiter.wait(mailbox, until_s=CLOCK.now_s() - 100, waiting_for="a test") == "late but there"
    assert waiter.wait(mailbox, until_s=CLOCK.now_s() - 100, waiting_for="a test") is TIMED_OUT
    assert take(waiter, other) == "not this one"


def test_a_wait_without_a_deadline_ends_when_something_comes(waiter) -> None:
    mailbox = waiter.mailbox()
    threading.Timer(0.05, mailbox.put, ["here"]).start()
    assert take(waiter, mailbox, within_s=None) == "here"


def test_a_closed_mailbox_drops_what_is_there_and_what_still_comes(waiter) -> None:
    closed, mailbox = waiter.mailbox(), waiter.mailbox()
    closed.put(1)
    mailbox.put("next")
    assert take(waiter, mailbox) == "next"  # 1 has been sorted by now
    closed.put(2)
    closed.close()
    closed.put(3)
    assert take(waiter, closed, within_s=0) is TIMED_OUT
    assert not closed.items


def test_interrupted_comes_once_for_each_signal(waiter) -> None:
    mailbox = waiter.mailbox()
    mailbox.put("still here")
    waiter.inbox.note_signal(15)
    waiter.inbox.note_signal(2)
    for number in (15, 2):
        with pytest.raises(Interrupted) as caught:
            take(waiter, mailbox)
        assert caught.value.signal_number == number
    assert take(waiter, mailbox) == "still here"


def test_after_a_second_signal_no_time_is_left_to_stop(waiter) -> None:
    left = [waiter.stop_left_s()]
    for _ in range(2):
        waiter.inbox.note_signal(signal.SIGTERM)
        with pytest.raises(Interrupted):
            waiter.sleep(1, waiting_for="nothing")
        left.append(waiter.stop_left_s())
    assert left[0] == math.inf
    assert left[1] > 0 >= left[2]


def test_a_signal_ends_the_next_sleep_and_wakes_a_wait_for_ever(waiter) -> None:
    waiter.inbox.note_signal(1)
    with pytest.raises(Interrupted):
        waiter.sleep(0, waiting_for="a test")
    waiter.sleep(0, waiting_for="a test")
    threading.Timer(0.05, waiter.inbox.note_signal, [15]).start()
    with pytest.raises(Interrupted):
        take(waiter, waiter.mailbox(), within_s=None)


@every_row(
    ("heard", "after_s", "is_stuck"),
    [(False, 0.99, False), (False, 1.0, True), (True, 0.99, False), (True, 60, False)],
)
def test_p7_who_has_not_heard_a_signal_for_a_second_is_stuck(heard, after_s, is_stuck) -> None:
    clock = FakeClock()
    waiter = InboxWaiter(clock)
    assert not waiter.inbox.is_stuck
    waiter.inbox.note_signal(15)
    if heard:
        with pytest.raises(Interrupted):
            waiter.wait(waiter.mailbox(), until_s=0, waiting_for="a test")
    clock.seconds = after_s
    assert waiter.inbox.is_stuck == is_stuck


def test_p8_handlers_are_put_back_and_a_hangup_that_is_ignored_stays_so(waiter) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [
        signal.signal(number, how)
        for number, how in zip(numbers, (*[signal.SIG_DFL] * 2, signal.SIG_IGN), strict=True)
    ]
    try:
        put_back = catch_stop_signals(waiter.inbox)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted):
            waiter.sleep(60, waiting_for="a test")
        put_back()
        assert [signal.getsignal(number) for number in numbers] == [*[signal.SIG_DFL] * 2, signal.SIG_IGN]
    finally:
        for number, how in zip(numbers, before, strict=True):
            signal.signal(number, how)


def delta(kind: str, text: str) -> StreamReceived:
    content = {"type": f"{kind}_delta", kind: text}
    return StreamReceived({"type": "content_block_delta", "index": 0, "delta": content})


text_delta = partial(delta, "text")


class Silence:
    """Heartbeats every 30 s on a clock that the test sets."""

    def __init__(self, interval_s: float = 30, **shows: bool) -> None:
        self.clock = FakeClock()
        self.told: list[Heartbeat] = []
        self.heartbeats = Heartbeats(self.clock, interval_s, **shows)

    def beats_at(self, *times_s: float) -> list[float]:
        """Sets the clock and asks for a heartbeat. Returns the silences in seconds of all heartbeats so far."""
        for now_s in times_s:
            self.clock.seconds = now_s
            beat = self.heartbeats.beat("the answer to continue", now_s)
            self.told += [beat] if beat is not None else []
        return [each.since_s for each in self.told]

    def saw_at(self, now_s: float, event: Event) -> None:
        self.clock.seconds = now_s
        self.heartbeats.emit(event)


def test_a_heartbeat_comes_once_per_interval_and_counts_the_whole_silence() -> None:
    silence = Silence()
    assert (silence.beats_at(29.9), silence.beats_at(30, 59.9)) == ([], [30])
    assert (silence.beats_at(60), silence.told[0].waiting_for) == ([30, 60], "the answer to continue")
    assert Silence(0).beats_at(1e6) == [], "an interval of zero is silent"


def test_text_of_a_retry_is_no_sign_of_life_until_its_chain_is_closed() -> None:
    retry = RetryScheduled(1, 4, 2.0, 529, "HttpError", "overloaded", "529")
    silence, streaming = Silence(), Silence(shows_deltas=True)
    for each in (silence, streaming):
        each.saw_at(0, retry)
        each.saw_at(29, text_delta("hi\n"))
    assert silence.beats_at(30) == [30], "it is held back"
    assert streaming.beats_at(30) == []
    silence.saw_at(31, RetryRecovered(1, 2.0))
    silence.saw_at(59, text_delta("hi\n"))
    assert silence.beats_at(88.9) == [30]


@every_row(
    ("event", "shows", "is_sign"),
    [
        (Notice("hi"), {}, True),
        (text_delta("hi\n"), {}, True),
        (text_delta("hi\n"), {"shows_lines": False}, False),
        (text_delta("half a line, kept back until it is whole"), {}, False),
        (text_delta("half a line"), {"shows_deltas": True}, True),
        (text_delta(""), {}, False),
        (delta("thinking", "hm"), {}, False),
        (StreamReceived({"type": "content_block_delta", "delta": None}), {}, False),
        (StreamReceived({"type": "ping"}), {}, False),
        (ClockFired("connect", 10), {}, False),
        (ResponseDiscarded("m1"), {}, False),
        (Heartbeat("x", 1), {}, False),
    ],
)
def test_only_what_is_shown_is_a_sign_of_life_and_starts_the_interval_again(event, shows, is_sign) -> None:
    silence = Silence(**shows)
    silence.saw_at(29, event)
    assert silence.beats_at(30, 58.9) == ([] if is_sign else [30])
    assert not is_sign or silence.beats_at(59) == [30]


def test_what_is_there_is_taken_after_the_end_of_the_time_but_for_a_second_at_most() -> None:
    """So items that keep coming do not put the end of the run off."""
    clock = FakeClock()
    waiter = InboxWaiter(clock, run_ends_s=10)
    mailbox = waiter.mailbox()
    clock.seconds = 3
    assert waiter.time_left_s() == 7
    for item in range(4):
        mailbox.put(item)
    for at_s, item in ((3.0, 0), (10.0, 1), (10.9, 2)):
        clock.seconds = at_s
        assert take(waiter, mailbox) == item
    clock.seconds = 11.0
    with pytest.raises(TimeIsUp):
        take(waiter, mailbox)
    clock.seconds = 10.1
    nothing_there = InboxWaiter(clock, run_ends_s=10)
    with pytest.raises(TimeIsUp):
        take(nothing_there, nothing_there.mailbox())


@pytest.mark.parametrize("run_ends_s", [None, 9.0], ids=["a limit of the wait", "the time of the run"])
def test_a_process_that_was_stopped_waits_a_moment_for_what_came_in_time(run_ends_s) -> None:
    """The clock leaps while the waiter waits, and another thread hands over what came meanwhile only then."""
    clock, looks = FakeClock(), []

    def leap() -> None:
        looks.append(clock.seconds)
        clock.seconds += 0.1
        if len(looks) == 2:
            clock.seconds = 100.0
        if len(looks) == 5:
            mailbox.put("came in time")

    waiter = InboxWaiter(clock, run_ends_s=run_ends_s, on_look=leap)
    mailbox = waiter.mailbox()
    assert waiter.wait(mailbox, until_s=5.0, waiting_for="a test") == "came in time"
    if run_ends_s is None:
        assert waiter.wait(mailbox, until_s=5.0, waiting_for="a test") is TIMED_OUT


def test_a_run_that_a_signal_stops_has_no_time_limit_any_more() -> None:
    waiter = InboxWaiter(CLOCK, run_ends_s=CLOCK.now_s() + 0.05)
    waiter.inbox.note_signal(15)
    with pytest.raises(Interrupted) as caught:
        take(waiter, waiter.mailbox())
    assert caught.value.signal_number == 15
    assert take(waiter, waiter.mailbox(), within_s=0.1) is TIMED_OUT


@every_row(
    ("signals", "heard"),
    [
        ([(15, 0.0), (15, 0.9)], [15]),
        ([(15, 0.0), (15, 1.0)], [15, 15]),
        ([(15, 0.0), (2, 0.1)], [15, 2]),  # a signal with another number counts
        ([(15, 0.0), (2, 0.1), (15, 0.2)], [15, 2, 15]),
    ],
)
def test_a_signal_that_came_by_two_ways_is_heard_once(signals, heard) -> None:
    clock = FakeClock()
    waiter = InboxWaiter(clock, Inbox(clock, one_signal_for_s=1.0))
    for number, at_s in signals:
        clock.seconds = 100 + at_s
        waiter.inbox.note_signal(number)
    for number in heard:
        with pytest.raises(Interrupted) as raised:
            waiter.wait(waiter.mailbox(), until_s=0, waiting_for="nothing")
        assert raised.value.signal_number == number
    assert waiter.wait(waiter.mailbox(), until_s=0, waiting_for="nothing") is TIMED_OUT


def was_interrupted_at(line: int) -> bool:
    """Waits for an event, and sets it in a signal handler that interrupts the wait at this line, counted from the call.
    Returns False if the wait has fewer lines.
    """
    event, lines = StopEvent(), 0

    def trace(*_: object) -> Any:
        nonlocal lines
        lines += 1
        if lines == line:
            signal.raise_signal(signal.SIGUSR1)
        return trace

    before = signal.signal(signal.SIGUSR1, lambda *_: event.set())
    sys.settrace(trace)
    try:
        event.wait(0)
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGUSR1, before)
    assert event.is_set() == (lines >= line)
    return lines >= line


def test_a_signal_may_set_an_event_at_any_line_of_a_wait() -> None:
    """With `threading.Event`, the handler would wait for the lock that the interrupted wait holds."""
    interrupted = [line for line in range(1, 20) if was_interrupted_at(line)]
    assert interrupted == [*range(1, len(interrupted) + 1)]
    assert len(interrupted) >= 4


def polled_before(event: StopEvent, first: Callable[[], None], monkeypatch) -> list[float]:
    """Makes a wait call `first` after it has looked at the event and just before it begins to poll. Returns a list of the
    times in milliseconds for which it polls. No poll ends by itself before the wait does.
    """
    polls: list[float] = []
    usual = select.poll

    class Poller:
        def __init__(self) -> None:
            self._poller = usual()
            self.register = self._poller.register

        def poll(self, most_ms: float) -> object:
            if not polls:
                first()
            polls.append(most_ms)
            return self._poller.poll(most_ms)

    monkeypatch.setattr(select, "poll", Poller)
    monkeypatch.setattr(inbox, "_LONGEST_POLL_S", math.inf)
    return polls


def test_an_event_that_is_set_when_the_wait_has_looked_ends_the_wait(monkeypatch) -> None:
    event = StopEvent()
    polls = polled_before(event, event.set, monkeypatch)
    assert event.wait(10 * PATIENCE_S)
    assert event.wait(10 * PATIENCE_S)
    assert len(polls) == 1


def test_a_fork_that_sets_its_copy_of_an_event_does_not_keep_the_parent_busy(monkeypatch) -> None:
    event = StopEvent()
    polls = polled_before(event, event._bell.ring, monkeypatch)
    assert not event.wait(0.05)
    assert len(polls) == 2


def test_a_wait_polls_again_and_again_for_signals_that_came_just_before_a_poll() -> None:
    assert inbox._LONGEST_POLL_S == 0.2
    event = StopEvent()
    assert not event.wait(-1)
    threading.Timer(0.01, setattr, [event, "_is_set", True]).start()  # nobody rings
    assert event.wait(math.inf)
