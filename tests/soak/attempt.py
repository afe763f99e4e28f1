"""The planned answer to one request, and everything that it must lead to."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ralph.mock_api import Playable


class Fate(enum.Enum):
    ACCEPTED = "accepted"
    TRANSIENT = "transient"
    PERMANENT = "permanent"
    DAMAGED = "damaged"
    """A damaged answer. ralph sends the request of the turn again, at once and with the retries that are left. A third
    damaged answer ends the run.
    """


@dataclass(frozen=True)
class Attempt:
    fault: str
    """The name of the fault in the campaign's summary."""
    detail: str
    """Further facts that are needed to understand the fault in a report."""
    step: Playable
    fate: Fate = Fate.TRANSIENT
    message_id: str = ""
    """The id of the accepted message, or of a message that is discarded after its `message_start`. Otherwise
    empty.
    """
    content: tuple[dict[str, Any], ...] = ()
    """The blocks of the message that becomes part of the conversation."""
    status: int | None = None
    failure_kind: str = ""
    requested_s: float = 0.0
    """The seconds that the server asks ralph to wait before the next attempt."""
    clock: str | None = None
    """The clock that must fire, or None."""
    exit_code: int = 0
    """The exit code after a permanent failure or a third damaged answer."""
    is_recorded: bool = True
    """Whether the server records the request. It does not if the connection ends before the request was read."""
    ends_connection: bool = False
    """Whether the next request certainly uses a new connection."""
