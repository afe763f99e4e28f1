"""Plays one run of the real program against the scripted server: starts it, watches it, and collects what it left.
Judges nothing.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.mock_api import MockApi
from tests.processes.fork_server import REPOSITORY, start_ralph
from tests.processes.owned import OWNER
from tests.soak.answers import EFFECTS_FILE, NOTES, NOTES_FILE
from tests.soak.leftovers import Gauge, connections_of, processes_left, settled, temporary_files
from tests.soak.plan import MAX_RETRIES
from tests.soak.stalls import CLOCKS_S

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from ralph.mock_api import RecordedRequest
    from tests.soak.plan import RunPlan

LONGEST_RUN_S = 180.0
"""A run that takes more seconds than this counts as hanging."""
_SAMPLE_S = 0.05
_SETTINGS = """
[retry]
policy = "custom"
max_retries = {max_retries}
base_delay_s = {base_delay_s}
[tools]
max_output_bytes = 2000
"""


class StoppedError(Exception):
    """The campaign was stopped in the middle of this run. Nothing is known about the run."""


@dataclass(frozen=True)
class Observed:
    exit_code: int | None
    """The exit code, or None if the run hung and was killed."""
    stdout: str
    stderr: str
    requests: tuple[RecordedRequest, ...]
    lines: list[str]
    """The lines of the effects file."""
    files: dict[str, str]
    """The text of every other file in the working directory, by its name."""
    left: list[str]
    """Processes, connections and temporary files that should be gone."""
    gauge: Gauge
    took_s: float


def observe(plan: RunPlan, stopping: threading.Event) -> Observed:
    """Plays the plan. Raises `StoppedError` if `stopping` is set before the end."""
    with tempfile.TemporaryDirectory(prefix="soak-") as name, MockApi(plan.scenario()) as server:
        directory = _furnished(Path(name), plan)
        marker = f"{os.getpid()}-{directory.name}"
        started_s = time.monotonic()
        with _ralph(directory, server.base_url, marker) as process:
            gauge = Gauge(process.pid)
            exit_code = _wait(process, gauge, started_s + LONGEST_RUN_S, stopping)
        took_s = time.monotonic() - started_s
        files = {path.name: path.read_text() for path in (directory / "work").iterdir()}
        return Observed(
            exit_code,
            (directory / "stdout").read_text(),
            (directory / "stderr").read_text(),
            server.requests,
            files.pop(EFFECTS_FILE, "").splitlines(),
            files,
            [
                *settled(lambda: processes_left(marker)),
                *settled(lambda: connections_of(server.port)),
                *temporary_files(directory / "tmp"),
            ],
            gauge,
            took_s,
        )


def _furnished(directory: Path, plan: RunPlan) -> Path:
    for name in ("work", "home", "tmp"):
        (directory / name).mkdir()
    settings = _SETTINGS.format(max_retries=MAX_RETRIES, base_delay_s=plan.base_delay_s)
    if plan.has_stalls:
        settings += "\n".join(["[clocks]", *(f"{name} = {limit_s}" for name, limit_s in CLOCKS_S.items())])
    user_settings = directory / "home" / ".config" / "ralph" / "config.toml"
    user_settings.parent.mkdir(parents=True)
    user_settings.write_text(settings)
    (directory / "work" / NOTES_FILE).write_text(NOTES)
    return directory


@contextmanager
def _ralph(directory: Path, base_url: str, marker: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(REPOSITORY),  # the ralph beside these files, wherever another one is installed
        "HOME": str(directory / "home"),
        "TMPDIR": str(directory / "tmp"),
        "ANTHROPIC_API_KEY": "sk-ant-soak-0123456789",
        "ANTHROPIC_BASE_URL": base_url,
        OWNER: marker,
    }
    words = ["-p", "Go on until told.", "--output-format", "stream-json"]
    with (directory / "stdout").open("wb") as stdout, (directory / "stderr").open("wb") as stderr:
        process = start_ralph(
            words,
            directory / "work",
            environment,
            afresh=True,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C is for the soak
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _wait(
    process: subprocess.Popen[bytes], gauge: Gauge, until_s: float, stopping: threading.Event
) -> int | None:
    while process.poll() is None:
        gauge.sample()
        if stopping.wait(_SAMPLE_S):
            raise StoppedError
        if time.monotonic() > until_s:
            return None
    return process.returncode
