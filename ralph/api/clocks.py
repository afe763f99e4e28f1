"""The time limits for one answer, and the deadlines that follow from these limits. No I/O happens here.

The read timeout of an HTTP library is not enough. A stream of pings never exceeds such a timeout, and neither does a
stream that arrives very slowly.
"""

# There is no `from __future__ import annotations` here, because the definitions of settings are read from the
# annotations when the program runs.

from typing import TYPE_CHECKING, Self

from msgspec import Struct
from msgspec.structs import replace

from ralph.values.setting import lower_only

if TYPE_CHECKING:
    from typing import Annotated
else:
    from ralph.values.setting import Declared as Annotated


class ClockLimits(Struct, frozen=True):
    """The time limits in seconds. If a limit is 0, there is no such limit."""

    connect_s: Annotated[
        float,
        lower_only(
            "longest time for name lookup, TCP and TLS together; 0 switches it off, here and in the next five rows"
        ),
    ] = 10.0
    first_byte_s: Annotated[
        float, lower_only("longest time from the open connection to the answer's first byte")
    ] = 180.0
    bytes_idle_s: Annotated[float, lower_only("longest time between two reads of bytes; pings count")] = 90.0
    progress_idle_s: Annotated[
        float, lower_only("longest time between two events of an answer; pings do not count")
    ] = 300.0
    response_s: Annotated[float, lower_only("longest time for one answer, from beginning to end")] = 1800.0

    def for_whole_answer(self) -> Self:
        """The limits for an answer that comes in one piece at its end. Once the connection is open, only `response_s` counts."""
        return replace(self, first_byte_s=0.0, bytes_idle_s=0.0, progress_idle_s=0.0)


ERROR_BODY_S = 5.0


class Deadline(Struct, frozen=True):
    clock: str
    """The name of the time limit, such as "first byte"."""
    at_s: float
    """The time on the run's clock, in seconds, at which the time limit is reached."""
    after_s: float
    """The length of the time limit, in seconds."""


class ResponseClocks:
    """Stores when the parts of an answer arrived, in seconds of the run's clock, and computes the next deadline."""

    def __init__(self, limits: ClockLimits, now_s: float) -> None:
        self._limits = limits
        self._started_s = now_s
        self._connected_s: float | None = None
        self._byte_s: float | None = None
        self._progress_s: float | None = None

    def connected(self, now_s: float | None) -> None:
        """Stores when the connection was open. None means that it was open at the start."""
        self._connected_s = self._started_s if now_s is None else now_s

    def got_bytes(self, now_s: float) -> None:
        self._byte_s = now_s
        if self._progress_s is None:
            self._progress_s = now_s

    def got_progress(self, now_s: float) -> None:
        """Stores the time of a stream event. Must be called for each event that is not a ping."""
        self._progress_s = now_s

    def error_body(self, now_s: float) -> Deadline:
        """The deadline for reading the body of an error. It is near, because the status is already known and
        matters more.
        """
        ends_s = now_s + ERROR_BODY_S
        if self._limits.response_s > 0:
            ends_s = min(ends_s, self._started_s + self._limits.response_s)
        return Deadline("error body", ends_s, ERROR_BODY_S)

    def next_deadline(self) -> Deadline | None:
        """The earliest deadline of the limits that apply now. None if no limit applies."""
        limits = self._limits
        later: tuple[tuple[str, float, float], ...]
        if self._byte_s is not None and self._progress_s is not None:
            later = (
                ("bytes idle", self._byte_s, limits.bytes_idle_s),
                ("progress idle", self._progress_s, limits.progress_idle_s),
            )
        elif self._connected_s is not None:
            later = (("first byte", self._connected_s, limits.first_byte_s),)
        else:
            later = (("connect", self._started_s, limits.connect_s),)
        # This is done for each piece of an answer, so only the earliest becomes a Deadline.
        name, since_s, limit_s = "response", self._started_s, limits.response_s
        for each in later:
            if each[2] > 0 and (limit_s <= 0 or each[1] + each[2] < since_s + limit_s):
                name, since_s, limit_s = each
        return Deadline(name, since_s + limit_s, limit_s) if limit_s > 0 else None


CATCH_UP_S = 1.0
"""The seconds after a late wake-up in which data may still be read, although a deadline has passed."""
_WOKE_LATE_S = 0.2


class CatchUp:
    """Allows data to be read for a short time after a deadline has passed.

    If the process was stopped or the machine slept, data may have arrived in time and still be unread. The time is
    short, so that a server that never stops sending cannot postpone the deadline.
    """

    def __init__(self) -> None:
        self._ends_s: float | None = None

    def wait_until_s(self, deadline: Deadline, now_s: float) -> float | None:
        """The time until which the caller may wait for data. If the deadline has just passed, it is `now_s`: only
        data that has already arrived may be taken. None if the caller must stop waiting.
        """
        if now_s < deadline.at_s:
            self._ends_s = None
            return deadline.at_s
        if self._ends_s is None:
            if not self.woke_late(deadline, now_s):
                return now_s
            self._ends_s = now_s + CATCH_UP_S
        return self._ends_s if now_s < self._ends_s else None

    @staticmethod
    def woke_late(deadline: Deadline, now_s: float) -> bool:
        """Whether a wait ended so long after its deadline that the process was probably stopped during the wait."""
        return now_s - deadline.at_s >= _WOKE_LATE_S
