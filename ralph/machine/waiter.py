"""Waits, on the main thread, for bytes, results of tools, control lines and signals, up to a deadline. All of these
arrive through one inbox. Interrupted is raised in this module and never in a signal handler, so that no write is
interrupted halfway. The real clocks, with which it measures, are defined here too.
"""

from __future__ import annotations

import math
import os
import queue
import select
import signal
import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from ralph.machine import launcher
from ralph.values.events import (
    SHOWABLE,
    Event,
    Heartbeat,
    RetryExhausted,
    RetryRecovered,
    RetryScheduled,
    StreamReceived,
)
from ralph.values.ports import (
    TIMED_OUT,
    Clock,
    Driven,
    Events,
    Interrupted,
    Mailbox,
    SignalReceived,
    TimeIsUp,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# --- The inbox
# The queue through which the main thread receives signals and items from other threads. Worker threads put items into
# mailboxes, and do not wait for the main thread. A signal handler only records its signal. The main thread can also
# watch descriptors: a mailbox then gets an item when there is something to read.


# If the main thread has not taken a signal for this long, it is in a call that may never return.
_STUCK_S = 1.0

# Only if the machine has no descriptors for a bell.
_LOOK_EVERY_S = 0.01

# A signal that comes just before a system call waits does not end it: its handler runs when this time is over.
_LONGEST_POLL_S = 0.2

ONE_SIGNAL_S = 1.0
"""The seconds for which a loop ignores repetitions of a signal. A signal to a process group may arrive several times."""

STOP_SIGNALS = tuple(map(signal.Signals, sorted(launcher.STOP_SIGNALS)))


class InboxMailbox:
    """A mailbox for one receiver. `put` adds an item to the inbox, and the main thread then moves it to `items`."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._watched: set[int] = set()
        self.items: deque[Any] = deque()
        self.closed = False

    def put(self, item: Any) -> None:
        self._inbox.put(self, item)

    def watch(self, descriptor: int, item: Any) -> None:
        self._watched.add(descriptor)
        self._inbox.watch(descriptor, self, item)

    def unwatch(self, descriptor: int) -> None:
        self._watched.discard(descriptor)
        self._inbox.unwatch(descriptor)

    def close(self) -> None:
        for descriptor in tuple(self._watched):
            self.unwatch(descriptor)
        self.closed = True
        self.items.clear()


class _Bell:
    def __init__(self) -> None:
        """Raises OSError if the machine has no free descriptors."""
        self.descriptor, self._rung = os.pipe()
        for descriptor in (self.descriptor, self._rung):
            os.set_blocking(descriptor, False)

    def ring(self) -> None:
        with suppress(BlockingIOError):  # it is full, and so it rings already
            os.write(self._rung, b".")

    def silence(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self.descriptor, 64):
                pass

    def __del__(self) -> None:
        if hasattr(self, "_rung"):
            os.close(self.descriptor)
            os.close(self._rung)


class StopEvent:
    """An event that a signal handler may set. With `threading.Event`, a handler that interrupts `wait` in the same thread could
    wait for its lock for ever.
    """

    def __init__(self) -> None:
        """Raises OSError if the machine has no free descriptors."""
        self._bell = _Bell()
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._bell.ring()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Waits until the event is set, but at most `timeout_s` seconds. Returns whether it is set."""
        poller = select.poll()
        poller.register(self._bell.descriptor, select.POLLIN)
        until_s = time.monotonic() + timeout_s
        while not self._is_set and (left_s := until_s - time.monotonic()) > 0:
            has_rung = poller.poll(math.ceil(min(left_s, _LONGEST_POLL_S) * 1000))
            if has_rung and not self._is_set:  # a fork of this process has set its copy, and the pipe is one
                self._bell.silence()
        return self._is_set


class Inbox:
    def __init__(self, clock: Clock, *, one_signal_for_s: float = 0.0) -> None:
        """After a signal, signals with the same number are ignored as duplicates for `one_signal_for_s` seconds."""
        self._clock = clock
        self._one_signal_for_s = one_signal_for_s
        self._last_signal = (0, 0.0)
        self._queue: queue.SimpleQueue[tuple[InboxMailbox, Any] | None] = queue.SimpleQueue()
        self._signals: deque[tuple[int, float]] = deque()
        """The numbers of recorded signals, each with the time of its arrival."""
        self._bell: _Bell | None = None
        self._is_polling = False
        """Whether the main thread waits for descriptors, or is about to."""
        self._watched: dict[int, tuple[InboxMailbox, Any]] = {}
        """The watched descriptors, each with the mailbox and the item that is put there."""

    def mailbox(self) -> InboxMailbox:
        return InboxMailbox(self)

    def put(self, mailbox: InboxMailbox, item: Any) -> None:
        self._deliver((mailbox, item))

    def watch(self, descriptor: int, mailbox: InboxMailbox, item: Any) -> None:
        if self._bell is None:
            with suppress(OSError):  # without a bell, the queue is looked at often
                self._bell = _Bell()
        self._watched[descriptor] = mailbox, item

    def unwatch(self, descriptor: int) -> None:
        self._watched.pop(descriptor, None)

    def note_signal(self, signal_number: int) -> None:
        """Records a signal. May be called in a signal handler, because `SimpleQueue.put` is reentrant."""
        now_s = self._clock.now_s()
        last_number, last_s = self._last_signal
        if signal_number == last_number and now_s - last_s < self._one_signal_for_s:
            return
        self._last_signal = signal_number, now_s
        self._signals.append((signal_number, now_s))
        self.wake()

    def wake(self) -> None:
        """Ends the current `sort_next`. A signal handler that takes longer than its timeout must call this at its end: CPython
        continues with a negative timeout, which means none (`simplequeue_get`, seen in 3.11).
        """
        self._deliver(None)

    def take_signal(self) -> int | None:
        """Removes the oldest recorded signal and returns its number, or None if there is none."""
        return self._signals.popleft()[0] if self._signals else None

    @property
    def is_stuck(self) -> bool:
        """Whether a signal has been waiting for a second or more: the main thread would have taken it."""
        return bool(self._signals) and self._clock.now_s() - self._signals[0][1] >= _STUCK_S

    def sort(self) -> None:
        """Moves what has arrived to the mailboxes, and looks at the watched descriptors. What arrives meanwhile is left for the
        next call.
        """
        self.sort_queue()
        if self._watched:
            self._look_at_watched(timeout_s=0)

    def sort_queue(self) -> None:
        """Does the same as `sort`, but does not look at the watched descriptors, which takes a system call."""
        for _ in range(self._queue.qsize()):
            self._take(timeout_s=0)

    def sort_next(self, timeout_s: float) -> None:
        """Waits until an item arrives or a watched descriptor has something to read, and moves what is there to the mailboxes."""
        if self._watched:
            self._look_at_watched(timeout_s)
            self.sort_queue()
        else:
            self._take(timeout_s)

    def _look_at_watched(self, timeout_s: float) -> None:
        """Waits for a watched descriptor or the bell. A descriptor whose item has not been taken yet is left out."""
        poller = select.poll()
        for descriptor, (mailbox, item) in self._watched.items():
            if item not in mailbox.items:
                poller.register(descriptor, select.POLLIN)
        if self._bell is None:
            timeout_s = min(timeout_s, _LOOK_EVERY_S)
        else:
            poller.register(self._bell.descriptor, select.POLLIN)
        # In this order: what arrives after the look at the queue rings.
        self._is_polling = True
        try:
            ready = poller.poll(math.ceil(timeout_s * 1000) if self._queue.empty() else 0)
        finally:
            self._is_polling = False
        for descriptor, _ in ready:
            if descriptor in self._watched:
                mailbox, item = self._watched[descriptor]
                mailbox.items.append(item)
            elif self._bell is not None:
                self._bell.silence()

    def _deliver(self, delivery: tuple[InboxMailbox, Any] | None) -> None:
        self._queue.put(delivery)
        if self._is_polling and self._bell is not None:
            self._bell.ring()

    def _take(self, timeout_s: float) -> None:
        try:
            delivery = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return
        if delivery is not None and not delivery[0].closed:
            delivery[0].items.append(delivery[1])


def catch_stop_signals(inbox: Inbox) -> Callable[[], None]:
    """Installs handlers that record the STOP_SIGNALS in the inbox. Returns a function that restores the old ones. A signal that the
    parent ignores (`nohup`) stays ignored.

    If the main thread is stuck when a signal arrives, the signal ends the process as if it had no handler. So a second Ctrl-C does
    not wait for a call that never returns. Running commands end with their parent, and the next run repairs a torn journal record.
    """

    def note(signal_number: int, _frame: FrameType | None) -> None:
        if inbox.is_stuck:
            signal.signal(signal_number, signal.SIG_DFL)
            os.kill(os.getpid(), signal_number)
        inbox.note_signal(signal_number)

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    caught = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    for number in caught:
        signal.signal(number, note)

    def restore() -> None:
        for number in caught:
            signal.signal(number, before[number] or signal.SIG_DFL)

    return restore


# --- Waiting

# CLOCK_MONOTONIC stands still while a laptop sleeps; deadlines must not.
_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    def now_s(self) -> float:
        return time.clock_gettime(_CLOCK_ID)

    def utc_now(self) -> datetime:
        return datetime.now(UTC)


# The interpreter's timed wait uses a clock that stops in suspend, and it misses a signal that arrives
# just before the wait begins. So no wait is longer than this.
_LONGEST_SLICE_S = 0.2
# No machine is so busy. A process that was stopped wakes later.
_WOKE_LATE_S = 0.5
_CATCH_UP_S = 1.0
# A stop takes six seconds at most. The rest is for the end of the process.
_STOPS_WITHIN_S = 5.5
_OF_RETRIES = (RetryScheduled, RetryRecovered, RetryExhausted)


class Heartbeats:
    """An `Events` sink that decides when a heartbeat is due: when users have seen no output for `interval_s` seconds; 0 means never."""

    def __init__(
        self, clock: Clock, interval_s: float, *, shows_deltas: bool = False, shows_lines: bool = True
    ) -> None:
        """Whether the user sees each piece of an answer as it arrives, and each complete line."""
        self._clock = clock
        self._interval_s = interval_s
        self._shows_deltas = shows_deltas
        self._shows_lines = shows_lines
        self._last_sign_s = clock.now_s()
        self._last_beat_s = self._last_sign_s
        self._is_held = False  # the text of a retried answer is shown only when the retries are over

    def emit(self, event: Event) -> None:
        """If the user sees the event, counts the time until the next heartbeat from now. Users do not see pings."""
        if isinstance(event, StreamReceived):  # first, because these come by the thousand
            is_visible = self._shows(event.event)
        else:
            if isinstance(event, _OF_RETRIES):
                self._is_held = isinstance(event, RetryScheduled) and not self._shows_deltas
            is_visible = isinstance(event, SHOWABLE)
        if is_visible:
            self._last_sign_s = self._last_beat_s = self._clock.now_s()

    def beat(self, waiting_for: str, now_s: float) -> Heartbeat | None:
        """The heartbeat if one is due at `now_s`, otherwise None. Its time since the last output may be several waits."""
        if self._interval_s <= 0 or now_s - self._last_beat_s < self._interval_s:
            return None
        self._last_beat_s = now_s
        return Heartbeat(waiting_for, now_s - self._last_sign_s)

    def _shows(self, event: dict[str, Any]) -> bool:
        delta = event.get("delta")
        if self._is_held or event.get("type") != "content_block_delta" or not isinstance(delta, dict):
            return False
        text = str(delta.get("text") or "")
        return bool(text) if self._shows_deltas else self._shows_lines and "\n" in text


class InboxWaiter:
    def __init__(
        self,
        clock: Clock,
        inbox: Inbox | None = None,
        *,
        events: Events | None = None,
        heartbeats: Heartbeats | None = None,
        driver: Driven | None = None,
        run_ends_s: float | None = None,
        on_first_stop: Callable[[Interrupted], None] | None = None,
        on_tick: Callable[[str, float], None] | None = None,
        on_look: Callable[[], None] | None = None,
    ) -> None:
        """`inbox` receives signals and items from other threads; None makes one. `events` receives the heartbeats. `driver`
        handles control lines during each wait. `run_ends_s` is when the run's time is over, by the clock; None means no limit.

        `on_first_stop` is called before Interrupted is raised for the first time, not in a signal handler. `on_tick` is called
        several times a second during `sleep`, with `waiting_for` and the seconds left, and at its end with 0. `on_look` is called
        several times a second during every wait.
        """
        self.inbox = inbox or Inbox(clock)
        self.was_stopped = False
        """Whether a signal or the time limit has stopped the run."""
        self._stops_by_s = math.inf
        self._clock = clock
        self._events = events
        self._heartbeats = heartbeats
        self._driver = driver
        self._run_ends_s = math.inf if run_ends_s is None else run_ends_s
        self._found_over_s: float | None = None
        """When it was noticed that the time of the run is over."""
        self._on_first_stop = on_first_stop
        self._on_tick = on_tick
        self._on_look = on_look

    def mailbox(self) -> InboxMailbox:
        return self.inbox.mailbox()

    def wait(self, mailbox: Mailbox, *, until_s: float | None, waiting_for: str) -> Any:
        return self._wait(mailbox, until_s, waiting_for, on_tick=None)

    def sleep(self, seconds: float, *, waiting_for: str) -> None:
        nobody = self.mailbox()
        try:
            until_s = self._clock.now_s() + seconds
            self._wait(nobody, until_s, waiting_for, on_tick=self._on_tick, is_sleep=True)
        finally:
            if self._on_tick is not None:
                self._on_tick(waiting_for, 0.0)

    def _wait(
        self,
        mailbox: Mailbox,
        until_s: float | None,
        waiting_for: str,
        *,
        on_tick: Callable[[str, float], None] | None,
        is_sleep: bool = False,
    ) -> Any:
        """As `wait`. If this process was stopped, others have a second to hand over what arrived in time. A sleep awaits nothing."""
        assert isinstance(mailbox, InboxMailbox)  # noqa: S101 - only this waiter's mailboxes reach it
        lines = self._control_lines_beside(mailbox)
        catches_up = not is_sleep and until_s is not None and self._clock.now_s() < until_s
        while True:
            now_s = self._clock.now_s()
            self._stop_if_asked(now_s, None if is_sleep else mailbox)
            self._give_signs(waiting_for, now_s)
            if on_tick is not None and until_s is not None:
                on_tick(waiting_for, max(until_s - now_s, 0.0))
            self.inbox.sort_queue()
            has_line = bool(lines) and self._driver is not None and self._driver.can_take()
            if has_line and self._driver is not None:
                # One line at a time, so that neither many lines nor many other items block the others.
                self._driver.handle(lines.popleft(), waiting_for=waiting_for)
                self.inbox.sort()
            left_s = _LONGEST_SLICE_S if until_s is None else until_s - now_s
            if left_s <= 0 and not mailbox.items:
                self.inbox.sort()  # what is there beats a deadline that has passed
            if mailbox.items:
                return mailbox.items.popleft()
            if left_s <= 0 and not (catches_up and -left_s >= _WOKE_LATE_S):
                return TIMED_OUT
            if left_s <= 0:
                catches_up, until_s = False, now_s + _CATCH_UP_S
            elif not has_line:
                ends_s = self._run_ends_s if now_s < self._run_ends_s else math.inf
                self.inbox.sort_next(timeout_s=min(left_s, ends_s - now_s, _LONGEST_SLICE_S))

    def time_left_s(self) -> float:
        return self._run_ends_s - self._clock.now_s()

    def stop_left_s(self) -> float:
        return self._stops_by_s - self._clock.now_s()

    def _give_signs(self, waiting_for: str, now_s: float) -> None:
        """Also when an item has arrived, because the user does not see each, such as a ping or hidden thinking."""
        if self._heartbeats is not None and self._events is not None:
            beat = self._heartbeats.beat(waiting_for, now_s)
            if beat is not None:
                self._events.emit(beat)
        if self._on_look is not None:
            self._on_look()

    def _stop_if_asked(self, now_s: float, awaited: InboxMailbox | None) -> None:
        signal_number = self.inbox.take_signal()
        if signal_number is not None:
            self._stop(SignalReceived(signal_number))
        if now_s >= self._run_ends_s and (awaited is None or not self._still_takes(awaited, now_s)):
            self._stop(TimeIsUp("the time limit (--max-time) is used up"))

    def _still_takes(self, awaited: InboxMailbox, now_s: float) -> bool:
        """Whether the wait may take what arrived in time, although the run's time is over now. It may for one second."""
        if self._found_over_s is None:
            self._found_over_s = now_s
        self.inbox.sort()
        # If this process was stopped, other threads may still have to hand over what arrived.
        was_stopped = self._found_over_s >= self._run_ends_s + _WOKE_LATE_S
        return now_s < self._found_over_s + _CATCH_UP_S and (was_stopped or bool(awaited.items))

    def _stop(self, stop: Interrupted) -> NoReturn:
        """Turns off the time limit, because only cleaning up follows, and then raises `stop`."""
        self._run_ends_s = math.inf
        is_first, self.was_stopped = not self.was_stopped, True
        self._stops_by_s = self._clock.now_s() + (_STOPS_WITHIN_S if is_first else 0.0)
        if is_first and self._on_first_stop is not None:
            self._on_first_stop(stop)
        raise stop

    def _control_lines_beside(self, awaited: InboxMailbox) -> deque[Any]:
        """Empty if the caller itself is waiting for control lines."""
        if self._driver is None or self._driver.mailbox is awaited:
            return deque()
        assert isinstance(self._driver.mailbox, InboxMailbox)  # noqa: S101 - only this waiter's mailboxes reach it
        return self._driver.mailbox.items
