"""Receives a server's description of its model: one small JSON document, within one span of time, or nothing.

Never fails and never retries: any other answer, or none, counts as no description.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.api.exchange import BodyEnd, Exchange, Failed, ResponseHead
from ralph.conversation.model_description import ModelDescription, description_of
from ralph.values.ports import TIMED_OUT
from ralph.values.strict_json import strict_json

if TYPE_CHECKING:
    from ralph.values.ports import Clock

DESCRIPTION_S = 5.0
"""Seconds for all of it, from name lookup to last byte: a run can do without."""
DESCRIPTION_BYTES = 256 * 1024


def receive_description(
    exchange: Exchange, clock: Clock, *, until_s: float, waiting_for: str
) -> ModelDescription | None:
    """The description; None: the server gives none. Raises only `Interrupted`. The exchange is over in any case;
    a body that was read to its end leaves its connection usable.
    """
    try:
        body = _body_of_success(exchange, clock, until_s, waiting_for)
    finally:
        exchange.abort()
    try:
        return None if body is None else description_of(strict_json(body.decode()))
    except (ValueError, RecursionError):
        return None


def _body_of_success(exchange: Exchange, clock: Clock, until_s: float, waiting_for: str) -> bytes | None:
    """The body of a success; None: the answer is an error, or not whole within the bounds."""
    is_success = False
    body = bytearray()
    # A wait prefers an item that is there to its deadline: a server that never stops sending would put it off for
    # ever.
    while clock.now_s() < until_s:
        item = exchange.next_item(until_s, waiting_for)
        if item is TIMED_OUT or isinstance(item, Failed):
            return None
        if isinstance(item, BodyEnd):
            return bytes(body) if is_success else None
        if isinstance(item, ResponseHead):
            is_success = 200 <= item.status < 300
        if isinstance(item, bytes):
            body += item
            if len(body) > DESCRIPTION_BYTES:
                return None
    return None
