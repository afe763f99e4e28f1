"""The one place where the main thread waits: for bytes, tools, control lines and signals, through one inbox and with a
deadline. `Interrupted` is raised here and never by a signal handler, so that no write is torn in the middle.
"""

from __future__ import annotations

import math
from collections import deque
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

# A timed wait of the interpreter counts on a clock that stops in suspend, and it does not see a signal that comes
# in the very moment before it: look again this often.
_LONGEST_SLICE_S = 0.2


class Heartbeats:
    """Emits a heartbeat when nothing was shown for `interval_s` (0: never).

    An `Events` sink: shown events restart the interval.
    """

    def __init__(
        self,
        clock: Clock,
        interval_s: float,
        *,
        shows_deltas: bool = False,
        shows_lines: bool = True,
    ) -> None:
        """`shows_deltas`: the reader sees each piece of an answer as it comes. `shows_lines`: the reader sees each
        whole line.
        """
        self._clock = clock
        self._interval_s = interval_s
        self._shows_deltas = shows_deltas
        self._shows_lines = shows_lines
        self._last_sign_s = clock.now_s()
        self._last_beat_s = self._last_sign_s
        self._is_held = False  # text of a retry is shown once its chain is closed

    def emit(self, event: Event) -> None:
        """Restarts the interval at an event that a reader can see. Pings do not count."""
        if isinstance(event, RetryScheduled | RetryRecovered | RetryExhausted):
            self._is_held = isinstance(event, RetryScheduled) and not self._shows_deltas
        if isinstance(event, SHOWABLE) or (isinstance(event, StreamReceived) and self._shows(event.event)):
            self._last_sign_s = self._last_beat_s = self._clock.now_s()

    def beat(self, waiting_for: str) -> Heartbeat | None:
        """The heartbeat, if one is due; None: none is due. The silence that it reports may span several waits."""
        now_s = self._clock.now_s()
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
        """`inbox`: the place for signals and items of other threads; None: the waiter makes its own. `events` receives
        the heartbeats that `heartbeats` finds due. `driver` takes control lines during every wait for something else.
        `run_ends_s`: the end of the run's time limit, on the clock; None: no limit. `on_first_stop` is called outside
        any signal handler, before the first `Interrupted` is raised. `on_tick` is called several times a second in a
        sleep, with the text of the wait and the seconds left (0: it is over). `on_look` is called as often in every
        wait.
        """
        self.inbox = inbox or Inbox(clock)
        self.was_stopped = False
        """A signal or the time limit has ended the run."""
        self._clock = clock
        self._events = events
        self._heartbeats = heartbeats
        self._driver = driver
        self._run_ends_s = run_ends_s
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
            self._wait(nobody, self._clock.now_s() + seconds, waiting_for, on_tick=self._on_tick)
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
    ) -> Any:
        assert isinstance(mailbox, InboxMailbox)  # noqa: S101 - only this waiter's mailboxes reach it
        lines = self._control_lines_beside(mailbox)
        while True:
            self._stop_if_asked()
            self._give_signs(waiting_for)
            if on_tick is not None and until_s is not None:
                on_tick(waiting_for, max(until_s - self._clock.now_s(), 0.0))
            self.inbox.sort()
            has_line = bool(lines) and self._driver is not None and self._driver.can_take()
            if has_line and self._driver is not None:
                # One at a time: neither a flood of lines nor one of other items leaves the other waiting.
                self._driver.handle(lines.popleft(), waiting_for=waiting_for)
                self.inbox.sort()
            if mailbox.items:
                return mailbox.items.popleft()
            left_s = _LONGEST_SLICE_S if until_s is None else until_s - self._clock.now_s()
            if left_s <= 0:
                return TIMED_OUT
            if not has_line:
                slice_s = min(left_s, self.time_left_s(), _LONGEST_SLICE_S)
                self.inbox.sort_next(timeout_s=max(slice_s, 0.0))

    def time_left_s(self) -> float:
        return math.inf if self._run_ends_s is None else self._run_ends_s - self._clock.now_s()

    def _give_signs(self, waiting_for: str) -> None:
        """Emits a due heartbeat, even if an item has arrived: pings and hidden thinking are not shown."""
        if self._heartbeats is not None and self._events is not None:
            beat = self._heartbeats.beat(waiting_for)
            if beat is not None:
                self._events.emit(beat)
        if self._on_look is not None:
            self._on_look()

    def _stop_if_asked(self) -> None:
        signal_number = self.inbox.take_signal()
        if signal_number is not None:
            self._stop(SignalReceived(signal_number))
        if self.time_left_s() <= 0:
            self._stop(TimeIsUp("the time limit (--max-time) is used up"))

    def _stop(self, stop: Interrupted) -> NoReturn:
        """Raises `stop`. It first switches off the run's time limit, because only clean-up follows."""
        self._run_ends_s = None
        is_first, self.was_stopped = not self.was_stopped, True
        if is_first and self._on_first_stop is not None:
            self._on_first_stop(stop)
        raise stop

    def _control_lines_beside(self, awaited: InboxMailbox) -> deque[Any]:
        """The mailbox of control lines; empty if the caller is waiting for these lines itself."""
        if self._driver is None or self._driver.mailbox is awaited:
            return deque()
        assert isinstance(self._driver.mailbox, InboxMailbox)  # noqa: S101 - as in _wait
        return self._driver.mailbox.items
