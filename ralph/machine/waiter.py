"""The one place where the main thread waits: one inbox for bytes, tools, control lines and signals, with a deadline.

Signal handlers only note the signal and wake the inbox; `Interrupted` is raised here, in the open, so that
nothing is torn in the middle of a write. Worker threads put items into mailboxes and never wait for us.
"""

from __future__ import annotations

import math
import os
import queue
import signal
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

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

# A timed wait of the interpreter counts on a clock that stops in suspend, and it does not see a signal that comes
# in the very moment before it: look again this often.
_LONGEST_SLICE_S = 0.2

# A main thread that has not looked for so long is in no wait of ours: in a call that may never return.
_STUCK_S = 1.0

ONE_SIGNAL_S = 1.0
"""In a loop: a signal that comes to all its processes, or twice by a hasty finger, is one within so long."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InboxMailbox:
    """A waiter's mailbox. Items travel through the shared inbox and are sorted by the main thread."""

    def __init__(self, inbox: queue.SimpleQueue[tuple[InboxMailbox, Any] | None]) -> None:
        self._inbox = inbox
        self.items: deque[Any] = deque()
        self.closed = False

    def put(self, item: Any) -> None:
        self._inbox.put((self, item))

    def close(self) -> None:
        self.closed = True
        self.items.clear()


class InboxWaiter:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.heartbeats: Heartbeats | None = None
        """Set once there is somebody to tell; None: waits are silent."""
        self.on_first_stop: Callable[[Interrupted], None] | None = None
        """Called, in the open, before the first `Interrupted` is raised."""
        self.run_ends_s: float | None = None
        """When the run's time limit passes, on the clock; None: never, or it is no longer waited for."""
        self.steering: Driven | None = None
        """Takes control lines during every wait for something else. None: nobody drives this run."""
        self.on_tick: Callable[[str, float], None] | None = None
        """Called in a sleep, several times a second, with what it waits for and the seconds left; 0: it is over."""
        self.on_look: Callable[[], None] | None = None
        """Called in every wait, several times a second."""
        self.was_stopped = False
        """A signal or the time limit has ended the run."""
        self.one_signal_for_s = 0.0
        """So long after a signal the same one says nothing new: it came by two ways."""
        self._last_signal = (0, 0.0)
        self._inbox: queue.SimpleQueue[tuple[InboxMailbox, Any] | None] = queue.SimpleQueue()
        self._signals: deque[tuple[int, float]] = deque()
        """Numbers, and when each came."""

    def mailbox(self) -> InboxMailbox:
        return InboxMailbox(self._inbox)

    def note_signal(self, signal_number: int) -> None:
        """Safe in a signal handler: SimpleQueue.put is reentrant."""
        now_s = self._clock.now_s()
        last_number, last_s = self._last_signal
        if signal_number == last_number and now_s - last_s < self.one_signal_for_s:
            return
        self._last_signal = signal_number, now_s
        self._signals.append((signal_number, now_s))
        self._inbox.put(None)

    @property
    def is_stuck(self) -> bool:
        """A signal that came a second ago has not been heard yet."""
        return bool(self._signals) and self._clock.now_s() - self._signals[0][1] >= _STUCK_S

    def wait(self, mailbox: Mailbox, *, until_s: float | None, waiting_for: str) -> Any:
        return self._wait(mailbox, until_s, waiting_for, on_tick=None)

    def sleep(self, seconds: float, *, waiting_for: str) -> None:
        nobody = self.mailbox()
        try:
            self._wait(nobody, self._clock.now_s() + seconds, waiting_for, on_tick=self.on_tick)
        finally:
            if self.on_tick is not None:
                self.on_tick(waiting_for, 0.0)

    def _wait(
        self,
        mailbox: Mailbox,
        until_s: float | None,
        waiting_for: str,
        *,
        on_tick: Callable[[str, float], None] | None,
    ) -> Any:
        assert isinstance(mailbox, InboxMailbox)  # noqa: S101 - only this waiter's mailboxes reach it
        lines = self._control_lines_beside(mailbox)
        while True:
            self._stop_if_asked()
            if self.heartbeats is not None:
                # Also when something came: pings and hidden thinking must not keep us silent.
                self.heartbeats.beat(waiting_for)
            if self.on_look is not None:
                self.on_look()
            if on_tick is not None and until_s is not None:
                on_tick(waiting_for, max(until_s - self._clock.now_s(), 0.0))
            self._sort_what_came()
            has_line = bool(lines) and self.steering is not None and self.steering.can_take()
            if has_line and self.steering is not None:
                # One at a time: neither a flood of lines nor one of other items leaves the other waiting.
                self.steering.handle(lines.popleft(), waiting_for=waiting_for)
                self._sort_what_came()
            if mailbox.items:
                return mailbox.items.popleft()
            left_s = _LONGEST_SLICE_S if until_s is None else until_s - self._clock.now_s()
            if left_s <= 0:
                return TIMED_OUT
            if not has_line:
                slice_s = min(left_s, self.time_left_s(), _LONGEST_SLICE_S)
                self._sort_next(timeout_s=max(slice_s, 0.0))

    def time_left_s(self) -> float:
        return math.inf if self.run_ends_s is None else self.run_ends_s - self._clock.now_s()

    def _stop_if_asked(self) -> None:
        if self._signals:
            self._stop(SignalReceived(self._signals.popleft()[0]))
        if self.time_left_s() <= 0:
            self._stop(TimeIsUp("the time limit (--max-time) is used up"))

    def _stop(self, stop: Interrupted) -> NoReturn:
        """Once something stops the run, the limit has nothing left to stop: what follows is cleaning up."""
        self.run_ends_s = None
        self.was_stopped = True
        tell, self.on_first_stop = self.on_first_stop, None
        if tell is not None:
            tell(stop)
        raise stop

    def _control_lines_beside(self, awaited: InboxMailbox) -> deque[Any]:
        """Empty where the lines themselves are awaited: they are the caller's."""
        if self.steering is None or self.steering.mailbox is awaited:
            return deque()
        assert isinstance(self.steering.mailbox, InboxMailbox)  # noqa: S101 - as in _wait
        return self.steering.mailbox.items

    def _sort_what_came(self) -> None:
        """Sort the items that are in the inbox at this moment: a flood of them does not keep us here."""
        for _ in range(self._inbox.qsize()):
            self._sort_next(timeout_s=0)

    def _sort_next(self, timeout_s: float) -> None:
        """Move one item from the inbox to its mailbox, if one comes in time."""
        try:
            delivery = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return
        if delivery is not None and not delivery[0].closed:
            delivery[0].items.append(delivery[1])


class Heartbeats:
    """Says what is being waited for when nothing has been shown for `interval_s` (0: never)."""

    def __init__(
        self,
        events: Events,
        clock: Clock,
        interval_s: float,
        *,
        shows_deltas: bool = False,
        shows_lines: bool = True,
    ) -> None:
        """How the text of an answer is shown while it comes: `shows_deltas`, each piece; `shows_lines`, each line."""
        self._events = events
        self._clock = clock
        self._shows_deltas = shows_deltas
        self._shows_lines = shows_lines
        self.interval_s = interval_s
        self._last_sign_s = clock.now_s()
        self._last_beat_s = self._last_sign_s
        self._is_held = False  # text of a retry is shown once its chain is closed

    def emit(self, event: Event) -> None:
        """An event went out; one that a reader can see counts as a sign of life. Pings do not."""
        if isinstance(event, RetryScheduled | RetryRecovered | RetryExhausted):
            self._is_held = isinstance(event, RetryScheduled) and not self._shows_deltas
        if isinstance(event, SHOWABLE) or (isinstance(event, StreamReceived) and self._shows(event.event)):
            self._last_sign_s = self._last_beat_s = self._clock.now_s()

    def beat(self, waiting_for: str) -> None:
        """Called at every turn of a wait. What a heartbeat counts is the silence, over all waits within it."""
        now_s = self._clock.now_s()
        if self.interval_s > 0 and now_s - self._last_beat_s >= self.interval_s:
            self._last_beat_s = now_s
            self._events.emit(Heartbeat(waiting_for, now_s - self._last_sign_s))

    def _shows(self, event: dict[str, Any]) -> bool:
        delta = event.get("delta")
        if self._is_held or event.get("type") != "content_block_delta" or not isinstance(delta, dict):
            return False
        text = str(delta.get("text") or "")
        return bool(text) if self._shows_deltas else self._shows_lines and "\n" in text


def catch_stop_signals(waiter: InboxWaiter) -> Callable[[], None]:
    """Route SIGINT, SIGTERM and SIGHUP to the waiter; returns what puts the old handlers back.

    A signal that the parent ignores (`nohup`) stays ignored. One that finds the main thread stuck ends the process as
    if nobody caught it: whoever asks a second time shall not wait for a call that never returns. A command that runs
    ends with its parent, and a record that was being written is a torn line at most, which the next run mends.
    """

    def note(signal_number: int, _frame: FrameType | None) -> None:
        if waiter.is_stuck:
            signal.signal(signal_number, signal.SIG_DFL)
            os.kill(os.getpid(), signal_number)
        waiter.note_signal(signal_number)

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    caught = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    for number in caught:
        signal.signal(number, note)

    def restore() -> None:
        for number in caught:
            signal.signal(number, before[number] or signal.SIG_DFL)

    return restore
