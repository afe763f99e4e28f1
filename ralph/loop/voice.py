"""The loop's own lines on standard error, each beginning with `[loop]`. What iterations say is theirs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ralph.loop import words
from ralph.settings.tables import LoopSettings
from ralph.values.events import Heartbeat
from ralph.values.screen_text import in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from ralph.loop.ports import LoopVoice
    from ralph.loop.rules import Share
    from ralph.loop.state import LoopState
    from ralph.loop.values import CheckResult, IterationResult, Setback
    from ralph.retry.backoff import Wait
    from ralph.values.events import Event

_YELLOW, _GREEN, _RED, _DIM = 33, 32, 31, 2


class StandardErrorVoice:
    def __init__(
        self,
        *,
        redact: Callable[[str], str],
        has_color: bool,
    ) -> None:
        self.redact = redact
        """Takes credentials out of what is written; replaced once more of them are known."""
        self.is_quiet = False
        """Only ends and what went wrong are told."""
        self.schedule = LoopSettings()
        """How long outages are waited for."""
        self._has_color = has_color

    def emit(self, event: Event) -> None:
        """The waits of the loop itself (the check, git, an outage) tell that they last; iterations do so themselves."""
        if isinstance(event, Heartbeat) and not event.waiting_for.startswith("iteration"):
            self.tell(f"{event.since_s:.0f}s for {event.waiting_for}", _DIM)

    def checked_first(self, result: CheckResult) -> None:
        self.tell(f"check before the first iteration: {result.words}")

    def begins(self, state: LoopState, granted: Share) -> None:
        self.tell(words.beginning_line(state, granted))

    def taken_up(self, state: LoopState, *, is_anew: bool) -> None:
        self.tell(words.taken_up_line(state, is_anew=is_anew))

    def waits(self, state: LoopState, wait: Wait, until: datetime, setback: Setback, number: int) -> None:
        self.warn(words.waiting_line(state, wait, until, setback, number, schedule=self.schedule))

    def branch_changed(self, state: LoopState, before: str | None, after: str | None) -> None:
        self.warn(words.branch_line(state, before, after))

    def git_changed(self, state: LoopState, names: Sequence[str]) -> None:
        self.warn(words.git_line(state, names))

    def pushed(self, commits: int) -> None:
        self.tell(f"pushed {words.counted(commits, 'commit')}")

    def iteration_ended(self, state: LoopState) -> None:
        """Quiet loops say it too: it is an outcome."""
        assert state.last is not None  # noqa: S101 - one has just ended
        color = _GREEN if state.last.made_progress else _YELLOW
        self._write(words.iteration_line(state.last, state), color)

    def iteration_cut_off(self, state: LoopState, result: IterationResult) -> None:
        self._write(words.cut_off_line(state, result), _YELLOW)

    def warn(self, text: str) -> None:
        self._write(text, _YELLOW)

    def tell(self, text: str, color: int | None = None) -> None:
        if not self.is_quiet:
            self._write(text, color)

    def tell_end(self, text: str, *, is_error: bool) -> None:
        self._write(text, _RED if is_error else _GREEN)

    def _write(self, text: str, color: int | None) -> None:
        """Writes in one piece, so that an iteration's lines do not tear it. A reader that left changes
        nothing.
        """
        line = f"[loop] {' '.join(self.redact(in_one_line(text)).split())}"
        if self._has_color and color is not None:
            line = f"\x1b[{color}m{line}\x1b[0m"
        try:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        except OSError:
            sys.stderr = open("/dev/null", "w")  # noqa: SIM115, PTH123 - lives as long as the process


if TYPE_CHECKING:

    def _fits(voice: StandardErrorVoice) -> LoopVoice:
        return voice
