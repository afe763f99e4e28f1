"""An OTLP endpoint on the loopback interface. It receives spans like a real collector, and gives them to tests as
simple values.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_NS = 1_800_000_000_000_000_000
"""The wall-clock time in nanoseconds that counts as second 0 in `from_s` and `to_s` of a span."""


@dataclass
class Span:
    name: str
    parent: str | None
    """The name of the parent span, or None if no such span was received."""
    trace_id: str
    parent_id: str
    kind: int
    from_s: float
    to_s: float
    status: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]


class Collector(ThreadingHTTPServer):
    """A server that answers every request with `status`. If `status` is None, it reads the request and never
    answers.
    """

    daemon_threads = True

    def __init__(self, status: int | None = 200) -> None:
        self.status = status
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.was_asked = threading.Event()
        self.released = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def exports(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for _, _, body in self.received]

    def spans(self) -> list[Span]:
        raw = [
            span
            for export in self.exports()
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        names = {span.span_id: span.name for span in raw}
        return [
            Span(
                span.name,
                names.get(span.parent_span_id),
                span.trace_id.hex(),
                span.parent_span_id.hex(),
                span.kind,
                (span.start_time_unix_nano - FIRST_NS) / 1e9,
                (span.end_time_unix_nano - FIRST_NS) / 1e9,
                span.status.code,
                plain(span.attributes),
                [(event.name, plain(event.attributes)) for event in span.events],
            )
            for span in raw
        ]

    def span(self, name: str) -> Span:
        [found] = [span for span in self.spans() if span.name == name]
        return found

    def resource(self) -> dict[str, Any]:
        return plain(self.exports()[0].resource_spans[0].resource.attributes)


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received.append((self.path, headers, body))
        self.server.was_asked.set()
        if self.server.status is None:
            self.server.released.wait()
            return
        self.send_response(self.server.status)
        self.send_header("location", "http://127.0.0.1:9/")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Prints nothing, because tests check what is written to standard error."""


def plain(attributes: Any) -> dict[str, Any]:
    return {one.key: plain_value(one.value) for one in attributes}


def plain_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain_value(part) for part in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting(status: int | None = 200) -> Iterator[Collector]:
    collector = Collector(status)
    thread = threading.Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        collector.released.set()
        collector.shutdown()
        thread.join()
        collector.server_close()
        for one in threading.enumerate():
            if one.name == "ralph-traces":
                one.join(5)
