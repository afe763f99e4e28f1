"""Runs `ralph` and measures how much CPU time each turn took, and how much of it was used to send the request.
`turns.py` starts this program as `metered_run.py FIGURES.json ARGUMENTS...`. Measuring uses hooks of httpx, takes
microseconds per turn, and changes nothing else.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.api import http_client
from ralph.cli.app import run_cli

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx


class Meter:
    """For each request, the process's CPU time when it began, the CPU time to send it, and the size of its body."""

    def __init__(self) -> None:
        self.starts_s: list[float] = []
        self.sending_s: list[float] = []
        self.body_bytes: list[int] = []
        self._sending_since_s = 0.0

    def attach(self, request: httpx.Request) -> None:
        """Adds a trace to a request. httpx calls this before each request, in the thread that sends the request."""
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


def metered(build: Callable[..., httpx.Client], meter: Meter) -> Callable[..., httpx.Client]:
    def build_metered(*arguments: Any, **options: Any) -> httpx.Client:
        client = build(*arguments, **options)
        client.event_hooks = {"request": [meter.attach]}
        return client

    return build_metered


def main() -> int:
    figures, *arguments = sys.argv[1:]
    meter = Meter()
    http_client.build_http_client = metered(http_client.build_http_client, meter)
    code = run_cli(arguments)
    Path(figures).write_text(
        json.dumps([meter.starts_s, meter.sending_s, meter.body_bytes]), encoding="utf-8"
    )
    return code


if __name__ == "__main__":
    raise SystemExit(main())
