"""Sends finished spans to an OTLP endpoint from a thread, and counts the spans that are lost. The run never waits for
this thread, except for a limited time at its end. The queue of spans has a maximum length.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExportResult
from urllib3.util import connection as connections

from ralph.machine.network.connecting import connect
from ralph.machine.network.proxies import choose_address
from ralph.machine.starting import start_thread
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

# The SDK's own defaults for its batches: 2,048 spans wait, 512 go at once, after 5 s at the latest.
MOST_WAITING_SPANS = 2048
_BATCH_SPANS = 512
_INTERVAL_S = 5.0


class SpanDelivery(SpanProcessor):
    """A span processor. It replaces the SDK's own processor, which does not report lost spans and can take 30 s to
    close.
    """

    def __init__(self, endpoint: str) -> None:
        self.taken = 0
        """The number of spans that this processor has received."""
        self.delivered = 0
        """The number of spans that the endpoint has accepted."""
        self._endpoint = endpoint
        choose_address(endpoint)
        connections.create_connection = _connected  # type: ignore[assignment]  # requests has no parameter for it
        self._session = _Session()
        self._exporter = OTLPSpanExporter(endpoint=endpoint, session=self._session)
        # The oldest span is dropped, because the newest spans of a trace hold its totals.
        self._waiting: deque[ReadableSpan] = deque(maxlen=MOST_WAITING_SPANS)
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_abandoned = False
        self._thread: threading.Thread | None = None
        self._start_thread()

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._changed:
            if not self._is_closing:
                self.taken += 1
                self._waiting.append(span)
                self._changed.notify()
        self._start_thread()

    def close(self, timeout_s: float) -> str | None:
        """Sends the remaining spans. Waits for that at most `timeout_s` seconds. Returns the reason why spans were
        lost, or None if all spans arrived.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._start_thread()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._changed:
            self._is_abandoned = True
            is_late = self._thread is not None and self._thread.is_alive()
            lost = self.taken - self.delivered
        with suppress(Exception):
            # Ends the wait for a retry if the thread is waiting for one.
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK has no types for it
        if lost == 0:
            return None
        why = self._session.problem or (f"no answer within {timeout_s:g}s" if is_late else "not accepted")
        return f"{lost} of {self.taken} spans could not be delivered to {_shown(self._endpoint)}: {why}"

    def _start_thread(self) -> None:
        """Starts the thread if it is not running. If the machine has no thread left, the spans are kept, and the
        thread is started later.
        """
        if self._thread is None:
            try:
                self._thread = start_thread(self._work, name="ralph-traces")
            except ShortageError as error:
                self._session.problem = str(error)

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            is_delivered = self._send(batch)
            with self._changed:
                if is_delivered and not self._is_abandoned:
                    self.delivered += len(batch)

    def _next_batch(self) -> list[ReadableSpan] | None:
        """Waits for a full batch of spans. After some time, returns a batch that is not full.

        When `close` has been called, returns the remaining spans without waiting. Returns None when no spans are
        left, or when the time limit of `close` is over.
        """
        with self._changed:
            ends_s = time.monotonic() + _INTERVAL_S
            while not self._is_closing and len(self._waiting) < _BATCH_SPANS:
                left_s = ends_s - time.monotonic()
                if left_s <= 0 and self._waiting:
                    break
                self._changed.wait(left_s if left_s > 0 else None)
            if self._is_abandoned or not self._waiting:
                return None
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH_SPANS))]

    def _send(self, batch: Sequence[ReadableSpan]) -> bool:
        try:
            result = self._exporter.export(batch)
        except Exception as error:  # noqa: BLE001 - a thread that dies prints a traceback
            self._session.problem = type(error).__name__
            return False
        return result is SpanExportResult.SUCCESS and self._session.problem is None


class _Session(requests.Session):
    """An HTTP session that stores in `problem` why the last request failed. The text contains no addresses and no
    headers. It is None if the request succeeded.
    """

    problem: str | None = None

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        try:
            response = super().send(request, **kwargs)
        except Exception as error:
            self.problem = type(error).__name__
            raise
        # The exporter follows no redirect, and would take one for success.
        self.problem = None if response.status_code < 300 else f"HTTP {response.status_code}"
        return response


def _connected(address: tuple[str, int], timeout: Any = None, **_: Any) -> socket.socket:
    """Replaces urllib3's own function, which connects to each address of a name."""
    opened = connect(address[0].strip("[]"), address[1], timeout)
    opened.settimeout(timeout)
    return opened


def _shown(endpoint: str) -> str:
    """The endpoint without user, password and query, because these may contain a key."""
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
