"""A fleet in one folder: a bare repository, a store, a mock API, and workers that have a home and a state directory
each, like machines of their own. It starts processes and sends signals, and judges nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psycopg

from ralph.mock_api import MockApi
from tests.nemesis.process import StoppedError
from tests.patience import within_s
from tests.processes.fork_server import REPOSITORY, start_ralph
from tests.processes.owned import OWNER, processes_of
from tests.services.postgres import temporary

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from ralph.mock_api import RecordedRequest, Script

LINES_FILE = "lines.txt"
FIRST_LINE = "the first line"
BRANCH = "main"
_PROC = Path("/proc")
_STUCK_S = 300.0
"""The number of seconds after which something is taken never to happen."""
_POLL_S = 0.05


class StuckError(Exception):
    """Something without which a scenario cannot continue has not happened. The message says what."""


@dataclass
class Worker:
    """A machine with one `ralph fleet work` process at a time."""

    cluster: FleetCluster
    number: int
    slots: int
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    @property
    def name(self) -> str:
        return f"machine-{self.number}"

    @property
    def home(self) -> Path:
        return self.cluster.folder / self.name

    @property
    def state(self) -> Path:
        return self.home / "state"

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code, or minus the number of a signal. None while the process runs."""
        return None if self.process is None else self.process.returncode

    @property
    def told(self) -> str:
        """Everything that the worker's processes have written to standard output and standard error."""
        return self.log.read_text(errors="replace")

    def start(self, *words: str) -> None:
        """Starts the process. The state directory is that of the last one, as after a crash of the program."""
        if not self.home.is_dir():
            self.state.mkdir(parents=True)
            (self.home / ".gitconfig").write_text(
                f"[user]\n\tname = {self.name}\n\temail = {self.name}@nemesis.example\n"
            )
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = start_ralph(
                ["fleet", "work", "-j", str(self.slots), *words],
                self.home,
                self.cluster.environment(self.home, self.state),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the campaign
            )

    @property
    def slot_pids(self) -> list[int]:
        return children_of(self.pid)

    def signal(self, number: signal.Signals, pids: Iterable[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@dataclass
class FleetCluster:
    """Use it as a context manager. At its end it kills all processes that carry its marker."""

    url: str
    script: Script
    stopping: threading.Event
    # Commands in the sandbox have a /tmp of their own, in which the home of a worker would be missing.
    folder: Path = field(
        default_factory=lambda: Path(tempfile.mkdtemp(prefix="nemesis-fleet-", dir=temporary()))
    )
    workers: list[Worker] = field(default_factory=list)
    status: str = ""
    """The progress, for people."""

    def __post_init__(self) -> None:
        self.marker = f"{os.getpid()}-{self.folder.name}"
        self.repository = self.folder / "repository.git"
        self.api = MockApi(script=self.script)
        self._admin = self.folder / "admin"

    def __enter__(self) -> Self:
        (self._admin / "state").mkdir(parents=True)
        self.api.start()
        first = self.folder / "first"
        self.git("init", "-q", "-b", BRANCH, str(first), cwd=self.folder)
        (first / LINES_FILE).write_text(f"{FIRST_LINE}\n")
        self.git("add", "-A", cwd=first)
        self.git("commit", "-qm", "The first commit", cwd=first)
        self.git("clone", "-q", "--bare", str(first), str(self.repository), cwd=self.folder)
        self.git("config", "core.logAllRefUpdates", "always", cwd=self.repository)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline_s = time.monotonic() + 30
        while (left := self.processes()) and time.monotonic() < deadline_s:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        for worker in self.workers:
            if worker.process is not None:
                worker.process.wait()
        self.api.close()

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self, home: Path, state: Path) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY),
            "HOME": str(home),
            "RALPH_STATE_DIR": str(state),
            "RALPH_FLEET_DB": self.url,
            "ANTHROPIC_API_KEY": "sk-ant-nemesis-0123456789",
            "ANTHROPIC_BASE_URL": self.api.base_url,
            OWNER: self.marker,
        }

    def add_workers(self, count: int, slots: int, *words: str) -> list[Worker]:
        for number in range(1, count + 1):
            worker = Worker(self, number, slots)
            self.workers.append(worker)
            worker.start(*words)
        return self.workers

    def start_fleet(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts `ralph fleet` with these words, on a machine without a worker."""
        return start_ralph(
            ["fleet", *words],
            self._admin,
            self.environment(self._admin, self._admin / "state"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def fleet(self, *words: str, exit_code: int | None = 0) -> str:
        """Runs `ralph fleet` with these words. Returns its standard output. Raises StuckError if it ends with another
        exit code; None means that any will do.
        """
        process = self.start_fleet(*words)
        out, err = process.communicate(timeout=within_s(_STUCK_S))
        if exit_code is not None and process.returncode != exit_code:
            raise StuckError(
                f"ralph fleet {' '.join(words)}: exit {process.returncode}: {err.decode().strip()[-500:]}"
            )
        return out.decode()

    def write_jobs(self, name: str, jobs: Sequence[dict[str, Any]]) -> Path:
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(job) + "\n" for job in jobs))
        return path

    def submit(self, name: str, jobs: Sequence[dict[str, Any]], *words: str) -> None:
        """Submits the jobs as a set of this name."""
        self.fleet("submit", str(self.write_jobs(name, jobs)), *words)

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a statement about the store."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(statement.encode(), values).fetchall()

    def git(self, *words: str, cwd: Path | None = None) -> str:
        """Runs git, in the bare repository unless `cwd` names another directory. Returns its standard output. Raises
        StuckError.
        """
        who = {"GIT_AUTHOR_NAME": "first", "GIT_AUTHOR_EMAIL": "first@nemesis.example"}
        who |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in who.items()}
        ran = subprocess.run(
            ["git", *words],
            cwd=cwd or self.repository,
            env={"PATH": os.environ["PATH"], "HOME": str(self._admin), **who},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise StuckError(f"git {' '.join(words)}: {ran.stderr.strip()}")
        return ran.stdout

    def processes(self) -> dict[int, str]:
        """The processes that carry the cluster's marker and have not ended, with their command lines."""
        return processes_of({OWNER: self.marker})

    def run_processes(self) -> dict[int, str]:
        """The processes that belong to jobs: all but a worker's supervisor, its slots, and the fork servers that the slots have
        in a test, which live as long as these.
        """
        return {pid: words for pid, words in self.processes().items() if "ralph fleet work" not in words}

    def requests_of(self) -> dict[str, list[RecordedRequest]]:
        """The requests to the mock API by the job that sent them."""
        found: dict[str, list[RecordedRequest]] = {}
        for request in self.api.requests:
            found.setdefault(job_of(request), []).append(request)
        return found

    def unfinished(self) -> int:
        """The number of jobs that have not ended."""
        [(count,)] = self.rows("SELECT count(*) FROM ralph_fleet.jobs WHERE ended_at IS NULL")
        return int(count)

    def wait(self, fact: Callable[[], object], what: str, seconds: float = _STUCK_S) -> None:
        """Waits until `fact` is true. Raises StuckError after `seconds`, and StoppedError."""
        deadline_s = time.monotonic() + within_s(seconds)
        while not fact():
            if time.monotonic() > deadline_s:
                raise StuckError(f"after {seconds:.0f} s: {what}")
            self.pause(_POLL_S)

    def pause(self, seconds: float) -> None:
        """Waits. Raises StoppedError if the campaign ends."""
        if self.stopping.wait(seconds):
            raise StoppedError

    def wait_for_jobs(self) -> None:
        """Waits until all jobs have ended. Raises StuckError if none ends for a long time."""
        left = self.unfinished()
        while left:
            self.status = f"{left} jobs are left"
            self.wait(self._fewer_than(left), f"still {left} jobs are left")
            left = self.unfinished()

    def _fewer_than(self, jobs: int) -> Callable[[], bool]:
        return lambda: self.unfinished() < jobs

    def wait_for_workers(self) -> list[str]:
        """Waits until all workers have ended by themselves. Returns a sentence for each that ended with a code that no job
        has.
        """
        found = []
        for worker in self.workers:
            self.wait(worker.has_ended, f"{worker.name} has not ended")
            codes = {code for (code,) in self.rows("SELECT DISTINCT exit_code FROM ralph_fleet.jobs")}
            if worker.exit_code not in codes | {0}:
                found.append(f"{worker.name} ended with {worker.exit_code}: {worker.told[-500:]}")
        return found


def children_of(pid: int) -> list[int]:
    """The process ids of the children of a process."""
    found: list[int] = []
    for one in _PROC.glob(f"{pid}/task/*/children"):
        with suppress(OSError):
            found += [int(word) for word in one.read_text().split()]
    return found


def tree_of(pid: int) -> list[int]:
    """A process and all its descendants, parents first."""
    return [pid, *(one for child in children_of(pid) for one in tree_of(child))]


_JOB_IN_PROMPT = re.compile(rb"Write the line ([a-z0-9-]+-\d{4})\.")


def prompt_for(job: str) -> str:
    return f"Write the line {job}."


def job_of(request: RecordedRequest) -> str:
    """The job whose run has sent this request. Its prompt names it."""
    found = _JOB_IN_PROMPT.search(request.body or b"")
    assert found is not None, "a request of no job"
    return found[1].decode()
