"""The parts that all measurements share: a clean environment, processes to measure, a mock API in its own process,
and tables. Does not judge the results. Shows both median and minimum. On a busy machine, the minimum is closest to
the program's own cost, and its distance from the median shows how much other programs disturbed the measurement.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from ralph.mock_api import MockApi, Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from types import TracebackType

RUNS = 15
"""The number of counted runs of each measurement. One more run comes before them, because it writes the bytecode and
fills the disk cache."""

LAUNCHER = Path(__file__).with_name("launcher.py")
PYTHON = sys.executable
BARE_PYTHON = (PYTHON, "-c", "pass")


def ralph(*arguments: str) -> tuple[str, ...]:
    """The command line as users start it: the script beside this interpreter, or `python -m ralph` if there is none."""
    script = Path(PYTHON).with_name("ralph")
    return (str(script), *arguments) if script.exists() else (PYTHON, "-m", "ralph", *arguments)


class Request(NamedTuple):
    monotonic_s: float
    """The time of arrival on the system-wide monotonic clock, which is the same in all processes."""
    body_bytes: int
    body: bytes | None


class MockProcess:
    """A `MockApi` in its own process. If it ran in this process, it would compete with the measurement for the
    interpreter lock.
    """

    def __init__(self, scenario: Scenario, *, keep_requests: int | None = 1, keep_bodies: int = 0) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        arguments = (scenario, keep_requests, keep_bodies, theirs)
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=arguments, daemon=True
        )
        self._process.start()
        theirs.close()
        self.base_url: str = self._pipe.recv()

    def requests(self) -> list[Request]:
        """The requests that are still stored, the oldest first."""
        self._pipe.send("requests")
        requests: list[Request] = self._pipe.recv()
        return requests

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join()


def _serve(scenario: Scenario, keep_requests: int | None, keep_bodies: int, pipe: Connection) -> None:
    with MockApi(scenario, keep_requests=keep_requests, keep_bodies=keep_bodies) as server:
        pipe.send(server.base_url)
        while True:
            try:
                pipe.recv()
            except EOFError:
                return
            pipe.send([Request(one.monotonic_s, one.body_bytes, one.body) for one in server.requests])


@dataclass(frozen=True)
class Measured:
    """The measurements of one process."""

    started_s: float
    """When the process started, on the system-wide monotonic clock."""
    wall_s: float
    cpu_s: float
    """User and system time in seconds, of the process and of the children that it waited for."""
    peak_mb: float
    """The largest resident memory in MB, of the process or of one of those children."""


@contextmanager
def workplace(base_url: str = "", certificate: str | None = None) -> Iterator[Workplace]:
    """Makes an empty directory to work in, and an environment without the user's settings."""
    with tempfile.TemporaryDirectory(prefix="ralph-benchmark-") as top:
        place = Workplace(Path(top, "work"), Path(top, "home"), base_url, certificate)
        place.directory.mkdir()
        place.home.mkdir()
        yield place


@dataclass(frozen=True)
class Workplace:
    directory: Path
    home: Path
    base_url: str
    certificate: str | None = None
    """The file with the certificate of the server. None without TLS."""

    def environment(self) -> dict[str, str]:
        """The environment variables for the measured process. PYTHON* variables are left out, because they may forbid
        bytecode, without which the start would take twice as long.
        """
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
        own = {"HOME": str(self.home), "ANTHROPIC_API_KEY": "sk-ant-benchmark-0001"}
        if self.certificate is not None:
            own["SSL_CERT_FILE"] = self.certificate
        return kept | own | ({"ANTHROPIC_BASE_URL": self.base_url} if self.base_url else {})

    def measure(self, command: Sequence[str], *, exit_code: int = 0) -> Measured:
        """Runs the command once and measures it. Its standard output and standard error are discarded. A wrong exit
        code ends the benchmark.
        """
        completed = subprocess.run(
            (PYTHON, "-I", "-S", str(LAUNCHER), *command),
            cwd=self.directory,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
        )
        figures = json.loads(completed.stdout)
        if figures.pop("exit_code") != exit_code:
            raise SystemExit(f"{' '.join(command)} did not exit with {exit_code}")
        return Measured(**figures)


@dataclass(frozen=True)
class Figure:
    """The median and the minimum of several runs."""

    median: float
    minimum: float

    def __str__(self) -> str:
        return f"{self.median:8.1f} {self.minimum:8.1f}"


def figure(values: Sequence[float]) -> Figure:
    return Figure(statistics.median(values), min(values))


def repeat(measure: Callable[[], float], *, runs: int = RUNS) -> Figure:
    """Calls `measure` once without counting it, then `runs` times. Returns the figure of the counted values."""
    measure()
    return figure([measure() for _ in range(runs)])


class Row(NamedTuple):
    name: str
    figure: Figure
    target: str = ""


def show(title: str, rows: Sequence[Row], *, unit: str, bare: Figure | None = None) -> None:
    """Prints a table. `bare` is the time that an empty Python program takes, for the column of ratios."""
    print(f"\n{title}")
    print(f"{'':44}{'median':>8} {'minimum':>8} {unit:4}{'x bare Python':>14}  target")
    for row in rows:
        ratio = f"{row.figure.median / bare.median:.1f}" if bare else ""
        print(f"{row.name:44}{row.figure} {unit:4}{ratio:>14}  {row.target}".rstrip())
