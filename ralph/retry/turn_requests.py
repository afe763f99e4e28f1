"""Counts the requests of a turn, and decides whether a turn asks again after an answer that came damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.values.classify import is_damaged

if TYPE_CHECKING:
    from ralph.values.errors import AgentError

MOST_ASKS = 3
"""The maximum number of times that a turn or a summary asks on account of damage, the first time included. The last time
it asks for a whole answer: a server whose streams are broken may still have that."""
RECENT_ANSWERS = 10
MOST_RECENT_DAMAGE = 8
"""If that many of the last `RECENT_ANSWERS` answers of a run came damaged, it ends."""
MOST_WHOLE_TOKENS = 16_000
"""The longest answer in tokens that is asked for without a stream. Servers refuse longer ones, or cut them after some
minutes."""


class TurnRequests:
    """Counts the requests of one turn. One turn may call `send_with_retry` several times."""

    def __init__(self, turn: int, recent: tuple[bool, ...] = ()) -> None:
        """`recent` is as in `RetryState`."""
        self.turn = turn
        self.recent = recent
        self.attempts = 0
        self.took_s = 0.0
        """The seconds spent on requests and on waits between them. The time of tools is not included."""
        self.damaged_asks = 0
        """The number of asks of this turn, or of the current summary, whose answer came damaged."""
        self.goes_on = False
        """True if the next call of `send_with_retry` asks again on account of damage."""

    @property
    def is_whole(self) -> bool:
        """Whether the next answer is asked for as one JSON object."""
        return self.damaged_asks >= MOST_ASKS - 1

    def ask_again_after(self, error: AgentError) -> bool:
        """Whether the turn may ask again on account of damage, if an ask has ended with `error`. Counts the ask."""
        if not is_damaged(error):
            return False
        self.damaged_asks += 1
        self.goes_on = self.damaged_asks < MOST_ASKS and sum(self.recent) < MOST_RECENT_DAMAGE
        return self.goes_on
