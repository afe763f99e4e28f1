"""Draws on a terminal what changes: the status line of a run, and for `Screen` a list of lines.

The status line stands under the lines for people and shows the turn, the running tool, for how long, and the cost
so far. It is drawn again at most once a second, and never remains on the screen. `live_after` makes what it shows, the
present moment of a run, from the events of the run.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.starting import facts_of
from ralph.output.narration import describe_call
from ralph.output.standard_streams import CLEAR_LINE, ReaderLeftError, print_bytes
from ralph.values import events as ev
from ralph.values.events import Event, StreamReceived
from ralph.values.screen_text import columns_of, cut_to_columns, dollars, duration, in_one_line
from ralph.values.usage import cost_usd, total_usd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from ralph.output.writer import Writer
    from ralph.values.ports import Clock

FEWEST_COLUMNS = 40
"""The width of the narrowest terminal that gets the line."""
_EVERY_S = 1.0
_STDERR = 2
_SHORTEST_TEXT = 8


class StatusLine:
    """An `Events` sink that draws the line when the main thread calls `look`, which it does while it waits."""

    def __init__(
        self,
        writer: Writer,
        clock: Clock,
        redact: Callable[[str], str],
        *,
        wake: Callable[[], None],
        is_iteration: bool,
    ) -> None:
        """`wake` is as in `erase_before_suspension`. `is_iteration` is True if `ralph loop` started this run. The line is then drawn while the loop is in the
        foreground of its terminal.
        """
        self._writer = writer
        self._clock = clock
        self._redact = redact
        self._is_iteration = is_iteration
        self._live = LiveRun(clock.now_s())
        self._next_s = clock.now_s() + _EVERY_S
        erase_before_suspension(wake, writer.forget_status)

    def emit(self, event: Event) -> None:
        if isinstance(event, StreamReceived):  # first, because these come by the thousand
            return
        self._live = live_after(self._live, event, self._clock.now_s(), self._redact)
        if self._live.has_ended:
            self._writer.show_status("")

    def look(self) -> None:
        """Draws the line if it is due. Calls in between cost little."""
        now_s = self._clock.now_s()
        if now_s < self._next_s or not self._live.turn or self._live.has_ended:
            return
        self._next_s = now_s + _EVERY_S
        if not _is_in_foreground(is_iteration=self._is_iteration):
            self._writer.forget_status()  # the line on the screen is the shell's now
            return
        columns, _ = terminal_size(_STDERR)
        self._writer.show_status(status_text(self._live, now_s, columns))


def status_text(live: LiveRun, at_s: float, columns: int) -> str:
    """The line at the time `at_s`, for a terminal of `columns`. If there is too little room, the name of the tool
    and its argument are cut. Empty if the terminal is too narrow.
    """
    if columns < FEWEST_COLUMNS:
        return ""
    what, how_long = doing(live, at_s)
    head, tail = f"[now] turn {live.turn}, ", f", {how_long}, {dollars(live.cost_usd)}"
    # A character in the last column would make some terminals wrap the line.
    room = columns - 1 - columns_of(head) - columns_of(tail)
    return cut_to_columns(f"{head}{cut_to_columns(what, max(room, _SHORTEST_TEXT))}{tail}", columns - 1)


def erase_before_suspension(wake: Callable[[], None], forget: Callable[[], None] | None = None) -> None:
    """Erases the current line of the terminal when Ctrl-Z suspends this process. `forget` is called before, and `wake`
    (`Inbox.wake`) when the process continues. Must be called on the main thread. Does nothing if Ctrl-Z is ignored or
    handled already.
    """

    def suspend(number: int, _frame: FrameType | None) -> None:
        if forget is not None:
            forget()
        with suppress(OSError):
            os.write(_STDERR, CLEAR_LINE)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # the process stops here, until it is continued
        signal.signal(number, suspend)
        wake()

    if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, suspend)


def _is_in_foreground(*, is_iteration: bool) -> bool:
    """Whether the user's shell waits for this run, so that nobody types on the line. An iteration has a session of
    its own, so the question is whether its loop is in the foreground. False on systems without /proc, where that is
    not known.
    """
    with suppress(OSError):  # it is not the controlling terminal of this process
        return os.tcgetpgrp(_STDERR) == os.getpgrp()
    if not is_iteration:
        return True
    loop = facts_of(os.getppid())
    if loop is None or loop.is_stopped:
        return False
    return not loop.has_terminal or loop.foreground_group == loop.group


# --- A list of lines, drawn again and again in the same place

# ECMA-48: ED, EL, CUP. DEC: DECTCEM.
_HOME, _CLEAR_BELOW, _CLEAR_TO_END = "\x1b[H", "\x1b[J", "\x1b[K"
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_USUAL_SIZE = (80, 24)


def fit_to_screen(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """The lines as a terminal of this size can show them: long lines are cut, and so is the list."""
    return [cut_to_columns(line, columns) for line in lines[:rows]]


def terminal_size(descriptor: int) -> tuple[int, int]:
    """The columns and lines of the terminal. Usual values if it does not say."""
    with suppress(OSError):
        size = os.get_terminal_size(descriptor)
        return size.columns or _USUAL_SIZE[0], size.lines or _USUAL_SIZE[1]
    return _USUAL_SIZE


class Screen:
    """Draws lines at the top of the terminal at standard output. Each drawing replaces the last one, also after the
    terminal's size has changed. The cursor is hidden until `close`.
    """

    def __init__(self) -> None:
        self._lines: Sequence[str] = ()

    def draw(self, lines: Sequence[str]) -> None:
        """Draws the lines, fitted to the terminal. Raises ReaderLeftError and OSError."""
        self._lines = lines
        columns, rows = terminal_size(1)
        self._write(_HIDE_CURSOR + _HOME, fit_to_screen(lines, columns - 1, max(rows - 1, 1)))

    def close(self) -> None:
        """Writes the last lines once more and as a whole, and shows the cursor again."""
        with suppress(ReaderLeftError, OSError):
            self._write(_SHOW_CURSOR + _HOME, self._lines)

    @staticmethod
    def _write(before: str, lines: Sequence[str]) -> None:
        text = before + "".join(f"{line}{_CLEAR_TO_END}\n" for line in lines) + _CLEAR_BELOW
        print_bytes(text.encode("utf-8", "replace"))


# --- The present moment of a run


class RunningTool(Struct, frozen=True):
    id: str
    text: str
    """The name of the tool and its most important argument, in one line. Known credentials are removed."""
    since_s: float


class LiveWait(Struct, frozen=True):
    """A wait before a request is sent again."""

    reason: str
    """The HTTP status of the failed request, or the name of the error's class."""
    until_s: float


class LiveRun(Struct, frozen=True):
    since_s: float
    """The time when ralph began to wait for the model, or to wait before it sends a request again."""
    model: str = ""
    turn: int = 0
    """The number of the turn within the run, counted from 1. 0 before the first turn."""
    answered: int = 0
    """The number of turns in which the model has answered."""
    tools: tuple[RunningTool, ...] = ()
    """The tools that are running, the oldest first."""
    background: tuple[RunningTool, ...] = ()
    """The commands that run in the background, the oldest first."""
    wait: LiveWait | None = None
    """The present or last wait. It is over when its `until_s` has passed."""
    cost_usd: float | None = 0.0
    """The cost of this run so far in US dollars, or None if it is unknown."""
    tokens_in: int = 0
    tokens_out: int = 0
    has_ended: bool = False


def live_after(live: LiveRun, event: ev.Event, at_s: float, redact: Callable[[str], str]) -> LiveRun:
    """The present moment after an event at the time `at_s`. `redact` removes credentials from texts. If the event
    changes nothing, as parts of an answer do, `live` itself is returned.
    """
    match event:
        case ev.StreamReceived():
            return live
        case ev.RunStarted(model=model):
            return replace(live, model=model, since_s=at_s)
        case ev.TurnStarted(turn=turn):
            return replace(live, turn=turn, tools=(), wait=None, since_s=at_s, has_ended=False)
        case ev.ToolStarted(call=call):
            tool = RunningTool(call.id, redact(in_one_line(describe_call(call, redact))), at_s)
            return replace(live, tools=(*live.tools, tool), wait=None)
        case ev.ToolFinished(call=call):
            left = tuple(tool for tool in live.tools if tool.id != call.id)
            return replace(live, tools=left, since_s=live.since_s if left else at_s)
        case ev.BackgroundStarted(id=command_id, command=command):
            started = RunningTool(command_id, redact(in_one_line(command)), at_s)
            return replace(live, background=(*live.background, started))
        case ev.BackgroundEnded(id=command_id):
            return replace(live, background=tuple(one for one in live.background if one.id != command_id))
        case ev.AttemptEnded():
            return _after_attempt(live, event)
        case ev.RetryScheduled(wait_s=wait_s):
            reason = event.error_class if event.status is None else str(event.status)
            return replace(live, wait=LiveWait(reason, at_s + wait_s), since_s=at_s)
        case ev.RunEnded():
            return replace(live, tools=(), wait=None, has_ended=True)
        case _:
            return live


def _after_attempt(live: LiveRun, event: ev.AttemptEnded) -> LiveRun:
    return replace(
        live,
        answered=event.turn if event.kind is None else live.answered,
        wait=None,
        cost_usd=total_usd((live.cost_usd, cost_usd(event.facts, event.tokens))),
        tokens_in=live.tokens_in + event.tokens.prompt,
        tokens_out=live.tokens_out + event.tokens.output,
    )


def doing(live: LiveRun, at_s: float) -> tuple[str, str]:
    """Two texts: what the run does at the time `at_s`, and for how long, such as `42s`. During a wait, the second
    text is the rest of the wait.
    """
    if live.wait is not None and live.wait.until_s > at_s:
        return f"waiting after {live.wait.reason}", f"{duration(live.wait.until_s - at_s)} left"
    if live.tools:
        first, *others = live.tools
        more = f" (and {len(others)} more)" if others else ""
        return f"{first.text}{more}", duration(max(at_s - first.since_s, 0.0))
    since_s = live.since_s if live.wait is None else live.wait.until_s
    return "the model works", duration(max(at_s - since_s, 0.0))
