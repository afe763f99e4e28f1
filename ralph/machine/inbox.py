"""The inbox of the main thread, for signals and for items from other threads. It waits only for the next item.

Worker threads put items into mailboxes without waiting for the main thread. A signal handler only records its signal.
"""

from __future__ import annotations

import os
import queue
import signal
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ralph.values.ports import Clock

# A main thread that has not looked for so long is in no wait of ours: in a call that may never return.
_STUCK_S = 1.0

ONE_SIGNAL_S = 1.0
"""Seconds in which a loop counts equal signals as one. A signal that is sent to all its processes arrives several
times.
"""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InboxMailbox:
    """A mailbox whose items travel through the shared inbox and are sorted by the main thread."""

    def __init__(self, inbox: queue.SimpleQueue[tuple[InboxMailbox, Any] | None]) -> None:
        self._inbox = inbox
        self.items: deque[Any] = deque()
        self.closed = False

    def put(self, item: Any) -> None:
        self._inbox.put((self, item))

    def close(self) -> None:
        self.closed = True
        self.items.clear()


class Inbox:
    def __init__(self, clock: Clock, *, one_signal_for_s: float = 0.0) -> None:
        """`one_signal_for_s`: seconds after a signal in which an equal signal is ignored as a duplicate."""
        self._clock = clock
        self._one_signal_for_s = one_signal_for_s
        self._last_signal = (0, 0.0)
        self._queue: queue.SimpleQueue[tuple[InboxMailbox, Any] | None] = queue.SimpleQueue()
        self._signals: deque[tuple[int, float]] = deque()
        """Numbers of signals, each with its time of arrival."""

    def mailbox(self) -> InboxMailbox:
        return InboxMailbox(self._queue)

    def note_signal(self, signal_number: int) -> None:
        """Records a signal. Safe in a signal handler: SimpleQueue.put is reentrant."""
        now_s = self._clock.now_s()
        last_number, last_s = self._last_signal
        if signal_number == last_number and now_s - last_s < self._one_signal_for_s:
            return
        self._last_signal = signal_number, now_s
        self._signals.append((signal_number, now_s))
        self._queue.put(None)

    def take_signal(self) -> int | None:
        """The number of the next signal, once; None: there is none."""
        return self._signals.popleft()[0] if self._signals else None

    @property
    def is_stuck(self) -> bool:
        """Whether a signal has been waiting for a second, so that the main thread is stuck."""
        return bool(self._signals) and self._clock.now_s() - self._signals[0][1] >= _STUCK_S

    def sort(self) -> None:
        """Moves the items that have arrived to their mailboxes. Later items are left, so that a flood of items cannot
        block this call.
        """
        for _ in range(self._queue.qsize()):
            self.sort_next(timeout_s=0)

    def sort_next(self, timeout_s: float) -> None:
        """Moves one item to its mailbox, if one comes within `timeout_s`."""
        try:
            delivery = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return
        if delivery is not None and not delivery[0].closed:
            delivery[0].items.append(delivery[1])


def catch_stop_signals(inbox: Inbox) -> Callable[[], None]:
    """Route SIGINT, SIGTERM and SIGHUP to the inbox. Returns a function that restores the old handlers.

    A signal that the parent ignores (`nohup`) stays ignored. If a signal finds the main thread stuck, it ends the
    process as it would without a handler: a second Ctrl-C must not wait for a call that never returns. A running
    command ends with its parent. A record that was being written is at most a torn line, which the next run repairs.
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
