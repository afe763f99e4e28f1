"""Tools for tests of faults: turns with an effect that can be counted, and a run without long waits."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Text, ToolUse, Turn, as_events, encode_events
from tests.api.harness import http_answer
from tests.processes.memory import peak_kib

if TYPE_CHECKING:
    from ralph.mock_api import Playable

HELLO = Turn("Hello there.")
DONE = Turn("All done.")
# A call whose effect can be counted; a broken answer that holds it must not leave a line.
APPEND = Turn([Text("Let me write."), ToolUse("Bash", {"command": "echo line >> effects"})])


def stream(turn: Turn) -> bytes:
    return http_answer(encode_events(as_events(turn)))


def effects(ralph) -> list[str]:
    path = ralph.cwd / "effects"
    return path.read_text().splitlines() if path.exists() else []


def run_with(ralph, serve, *steps: Playable, **options: object) -> tuple[int, int, str]:
    """Runs `ralph` without long waits. Returns the exit code, the number of requests, and standard error."""
    ralph.retry_quickly()
    server = serve(*steps, **options)
    ran = ralph("hi")
    return ran.code, len(server.requests), ran.stderr


def peak_mb(ralph, *arguments: str) -> tuple[int, float]:
    """Runs `ralph` in an interpreter of its own. Returns the exit code, and the peak of its memory in MiB."""
    process = replace(ralph, starts_afresh=True).start(*arguments)
    peak = 0
    reader = threading.Thread(target=process.communicate)
    reader.start()
    while reader.is_alive():
        with suppress(OSError, IndexError):
            peak = max(peak, peak_kib(process.pid))
        time.sleep(0.01)
    return process.returncode, peak / 1024


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
