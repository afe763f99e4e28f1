"""The Messages API over HTTP: send one request, once, and give back a whole answer or one of the five errors.

It never retries, never follows a redirect and knows no policy. An `Exchange` carries the bytes, a `Reception`
makes an answer of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from ralph.core.clocks import ClockLimits, ResponseClocks
from ralph.core.errors import Api, NetworkCause
from ralph.effects.exchange import Wire
from ralph.effects.reception import Reception

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.core.answer import Answer
    from ralph.core.conversation import RequestBody
    from ralph.ports import Clock, Events, Waiter

API_VERSION = "2026-10-21"

# A connect that our clock has given up goes on in its thread for so long: the clock must be the first.
_CONNECT_GRACE_S = 1.0


@dataclass(frozen=True)
class Endpoint:
    """Where requests go. `headers` hold the credential and are never shown."""

    base_url: str
    headers: tuple[tuple[str, str], ...]

    @property
    def url(self) -> str:
        return f"{self.base_url}/v1/messages"

    @property
    def host(self) -> str:
        return httpx.URL(self.base_url).netloc.decode("ascii", "replace")


class MessagesApi:
    """A `Client` for one endpoint. `redact` cleans every text that leaves this module inside an error."""

    def __init__(
        self,
        endpoint: Endpoint,
        http: httpx.Client,
        *,
        limits: ClockLimits,
        waiter: Waiter,
        clock: Clock,
        events: Events,
        redact: Callable[[str], str],
    ) -> None:
        self._endpoint = endpoint
        self._wire = Wire(http, waiter)
        self._limits = limits
        self._clock = clock
        self._events = events
        self._redact = redact

    def send_message(self, body: RequestBody) -> Answer:
        """Send `body` once. Raises only `AgentError`, and `Interrupted` when a signal ends the wait."""
        request = self._request(body)
        reception = Reception(
            self._wire.start(request),
            ResponseClocks(self._limits, self._clock.now_s()),
            self._clock,
            events=self._events,
            redact=self._redact,
            host=self._endpoint.host,
        )
        try:
            answer = reception.receive()
        except BaseException:
            reception.exchange.abort()
            raise
        reception.exchange.leave()
        return answer

    def close(self) -> None:
        self._wire.close()

    def _request(self, body: RequestBody) -> httpx.Request:
        connect_s = self._limits.connect_s
        timeout = httpx.Timeout(None, connect=connect_s + _CONNECT_GRACE_S if connect_s > 0 else None)
        try:
            return self._wire.http.build_request(
                "POST", self._endpoint.url, content=body, headers=self._request_headers(body), timeout=timeout
            )
        except httpx.InvalidURL as error:
            raise Api(NetworkCause.BAD_URL, self._redact(str(error))) from error

    def _request_headers(self, body: RequestBody) -> list[tuple[bytes, bytes]]:
        own = {
            "accept": "text/event-stream, application/json",
            # A proxy that may compress also buffers; a stream must not wait in its buffer.
            "accept-encoding": "identity",
            "anthropic-version": API_VERSION,
            "content-type": "application/json",
        }
        # A header that the user names is the user's last word.
        named = {name.lower(): value for name, value in self._endpoint.headers}
        # Without its length a body in pieces would be sent chunked.
        headers = {**own, **named, "content-length": str(sum(map(len, body)))}
        # httpx would encode text as ASCII.
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
