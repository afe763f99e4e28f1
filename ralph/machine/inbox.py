"""The queue through which the main thread receives signals and items from other threads. Worker threads put items
into mailboxes, and do not wait for the main thread. A signal handler only records its signal. The main thread can also
watch descriptors: a mailbox then gets an item when there is something to read.
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
from typing import TYPE_CHECKING, Any

from ralph.machine import launcher

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ralph.values.ports import Clock

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
        goes on with a negative timeout, which means none (`simplequeue_get`, seen in 3.11).
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
        next call, so that many items cannot block this one.
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
