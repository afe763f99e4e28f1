"""Waits, on the main thread, for bytes, results of tools, control lines and signals, up to a deadline. All of these
arrive through one inbox. Interrupted is raised in this module and never in a signal handler, so that no write is
interrupted halfway. The real clocks, with which it measures, are defined here too.
"""

from __future__ import annotations

import math
import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from ralph.machine.inbox import Inbox, InboxMailbox
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
