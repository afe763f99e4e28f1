"""The clocks of one answer, and the next clock to fire. Pure: it takes moments and returns the nearest deadline. The
read timeout of an HTTP library cannot replace these clocks: it never fires on a stream of pings or on a slow drip.
"""

# No `from __future__ import annotations` here: the rows of settings are read from the annotations.

from typing import Annotated

from msgspec import Struct

from ralph.values.setting import SECONDS, SMALLER, Key


class ClockLimits(Struct, frozen=True):
    """The limit of each clock in seconds. A limit of 0 switches the clock off."""

    connect_s: Annotated[
        float,
        Key(
            SECONDS,
            "longest time for name lookup, TCP and TLS together; 0 switches it off, here and in the next five rows",
            in_repository=SMALLER,
        ),
    ] = 10.0
    """Longest time for name lookup, TCP and TLS together."""
    first_byte_s: Annotated[
        float,
        Key(
            SECONDS, "longest time from the open connection to the answer's first byte", in_repository=SMALLER
        ),
    ] = 180.0
    """Longest time from the open connection, sending included, to the first byte of the answer's body."""
    bytes_idle_s: Annotated[
        float, Key(SECONDS, "longest time between two reads of bytes; pings count", in_repository=SMALLER)
    ] = 90.0
    """Longest time between two reads of the body. Pings count as bytes."""
    progress_idle_s: Annotated[
        float,
        Key(
            SECONDS, "longest time between two events of an answer; pings do not count", in_repository=SMALLER
        ),
    ] = 300.0
    """Longest time between two stream events other than pings."""
    response_s: Annotated[
        float, Key(SECONDS, "longest time for one answer, from beginning to end", in_repository=SMALLER)
    ] = 1800.0
    """Longest time for one answer, from beginning to end."""


ERROR_BODY_S = 5.0


class Deadline(Struct, frozen=True):
    clock: str
    at_s: float
    after_s: float
    """The clock's limit in seconds."""


class ResponseClocks:
    """Notes when the parts of an answer came, on one monotonic clock, and computes the next deadline."""

    def __init__(self, limits: ClockLimits, now_s: float) -> None:
        self._limits = limits
        self._started_s = now_s
        self._connected_s: float | None = None
        self._byte_s: float | None = None
        self._progress_s: float | None = None

    def connected(self, now_s: float) -> None:
        self._connected_s = now_s

    def got_bytes(self, now_s: float) -> None:
        self._byte_s = now_s
        if self._progress_s is None:
            self._progress_s = now_s

    def got_progress(self, now_s: float) -> None:
        self._progress_s = now_s

    def error_body(self, now_s: float) -> Deadline:
        """The deadline for reading an error's body. It is short, because the status is already known and matters more
        than the body.
        """
        ends_s = now_s + ERROR_BODY_S
        if self._limits.response_s > 0:
            ends_s = min(ends_s, self._started_s + self._limits.response_s)
        return Deadline("error body", ends_s, ERROR_BODY_S)

    def next_deadline(self) -> Deadline | None:
        """The clock that fires first; None: all clocks are off."""
        limits = self._limits
        running = [("response", self._started_s, limits.response_s)]
        if self._byte_s is not None and self._progress_s is not None:
            running.append(("bytes idle", self._byte_s, limits.bytes_idle_s))
            running.append(("progress idle", self._progress_s, limits.progress_idle_s))
        elif self._connected_s is not None:
            running.append(("first byte", self._connected_s, limits.first_byte_s))
        else:
            running.append(("connect", self._started_s, limits.connect_s))
        deadlines = [
            Deadline(name, since_s + limit_s, limit_s) for name, since_s, limit_s in running if limit_s > 0
        ]
        return min(deadlines, key=lambda deadline: deadline.at_s, default=None)


CATCH_UP_S = 1.0
_WOKE_LATE_S = 0.2


class CatchUp:
    """Lets an item that is already there win over a deadline that has passed, but only for a moment.

    A stopped process or a laptop that slept wakes long after its deadline, and its reader thread must first read what
    came meanwhile. But a server that never stops sending must not postpone a deadline for ever.
    """

    def __init__(self) -> None:
        self._ends_s: float | None = None

    def wait_until_s(self, deadline: Deadline, now_s: float) -> float | None:
        """The moment until which the caller waits for an item; None: the clock has fired."""
        if now_s < deadline.at_s:
            self._ends_s = None
            return deadline.at_s
        if self._ends_s is None:
            self._ends_s = now_s + CATCH_UP_S
        return self._ends_s if now_s < self._ends_s else None

    @staticmethod
    def woke_late(deadline: Deadline, now_s: float) -> bool:
        """Whether a wait ended so long after its deadline that something may have arrived unread."""
        return now_s - deadline.at_s >= _WOKE_LATE_S
