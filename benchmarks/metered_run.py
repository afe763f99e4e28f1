"""Runs `ralph` and measures how much CPU time each turn took, and how much of it was used to send the request.
`turns.py` starts this program as `metered_run.py FIGURES.json ARGUMENTS...`. Measuring wraps the transport, takes
microseconds per turn, and changes nothing else.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.api import transport as transports
from ralph.api.transport import httpx
from ralph.cli.command_line import run_cli

if TYPE_CHECKING:
    from collections.abc import Callable


class Meter:
    """For each request, the process's CPU time when it began, the CPU time to send it, and the size of its body."""

    def __init__(self) -> None:
        self.starts_s: list[float] = []
        self.sending_s: list[float] = []
        self.body_bytes: list[int] = []
        self._sending_since_s = 0.0

    def attach(self, request: httpx.Request) -> None:
        """Adds a trace to a request. It is called in the thread that sends the request."""
        self.body_bytes.append(int(request.headers["content-length"]))
        ralphs_own = request.extensions["trace"]

        def trace(event: str, info: dict[str, Any]) -> None:
            ralphs_own(event, info)
            if event == "http11.send_request_headers.started":
                self.starts_s.append(time.process_time())
                self._sending_since_s = time.thread_time()
            elif event == "http11.send_request_body.complete":
                self.sending_s.append(time.thread_time() - self._sending_since_s)

        request.extensions["trace"] = trace


class MeteredTransport(httpx.BaseTransport):
    def __init__(self, transport: httpx.BaseTransport, meter: Meter) -> None:
        self._transport = transport
        self._meter = meter

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._meter.attach(request)
        return self._transport.handle_request(request)


def metered(build: Callable[..., httpx.BaseTransport], meter: Meter) -> Callable[..., MeteredTransport]:
    return lambda *arguments, **options: MeteredTransport(build(*arguments, **options), meter)


def main() -> int:
    figures, *arguments = sys.argv[1:]
    meter = Meter()
    transports.build_transport = metered(transports.build_transport, meter)
    code = run_cli(arguments)
    Path(figures).write_text(
        json.dumps([meter.starts_s, meter.sending_s, meter.body_bytes]), encoding="utf-8"
    )
    return code


if __name__ == "__main__":
    raise SystemExit(main())
