"""One request's planned answer and everything that is known beforehand about what it must lead to."""

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
    """Asked for once more in its turn, at once and with retries of its own; the second ends the run."""


@dataclass(frozen=True)
class Attempt:
    fault: str
    """Its name in the summary."""
    detail: str
    """What else is needed to understand it in a report."""
    step: Playable
    fate: Fate = Fate.TRANSIENT
    message_id: str = ""
    """Of the answer that is accepted, or of the one that is discarded after its `message_start`; else empty."""
    content: tuple[dict[str, Any], ...] = ()
    """Blocks of the message that is committed."""
    status: int | None = None
    failure_kind: str = ""
    wish_s: float = 0.0
    """What the server asks for before the next attempt."""
    clock: str | None = None
    """The clock that has to fire."""
    exit_code: int = 0
    """Of a permanent failure, and of a second damaged answer."""
    is_recorded: bool = True
    """False: the connection ends before the request was read."""
    ends_connection: bool = False
    """True: the next request certainly comes on a new connection."""
