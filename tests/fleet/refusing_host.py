"""A job of a fleet whose git host refuses or hangs, and disks and stores that fail, for tests of what is then kept."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from ralph.fleet.jobs import SetLimits
from ralph.machine.waiter import ONE_SIGNAL_S
from tests.fleet.scripted import DONE, SET, Asked, Place, bash
from tests.git.http_repository import HttpRepository
from tests.patience import PATIENCE_S, wait_until
from tests.processes.scripts import script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ralph.fleet.schema import JobRow
    from ralph.mock_api import Playable
    from tests.services.postgres import PostgresServer

BRANCH = "refs/heads/ralph/paid"
TAKES_BRANCHES_ONLY = "while read o n ref; do case $ref in refs/ralph/*) exit 1;; esac; done"
"""A hook of a git host."""


class Refused:
    """A place with one job, `paid`, whose repository is on the host `host`. Its model calls one tool, and ends."""

    def __init__(
        self, place: Place, host: HttpRepository, models: dict[str, Callable[[Asked], Playable]]
    ) -> None:
        self.place, self.host, self.models = place, host, models
        self.command = "echo paid >> kept.txt"
        self.at_the_end: Callable[[], object] = lambda: None
        """Is called before the model's last answer."""
        self.models |= {"paid": self.paid, "beside": lambda _asked: DONE}

    def paid(self, asked: Asked) -> Playable:
        if asked.said == 0:
            return bash(self.command)
        self.at_the_end()
        return DONE

    @property
    def row(self) -> JobRow:
        return self.place.row("paid")

    @property
    def state(self) -> str:
        return self.row.state.value

    @property
    def reason(self) -> str:
        return self.row.reason or ""

    @property
    def requests(self) -> int:
        return len(self.place.api.requests)

    def hook(self, text: str) -> Path:
        """Lets the git host call this script before it takes a push."""
        return script(self.place.repository / "hooks/pre-receive", text)

    def refuses(self, status: int = 403) -> None:
        """Lets the host refuse, from the end of the job's work on."""
        self.at_the_end = lambda: setattr(self.host, "status", status)

    def keeps(self, machine: str = "a") -> Path:
        """Does the job for a host that refuses the work. Returns the bundle in which it is kept."""
        self.refuses()
        assert self.place.worst(machine) == 77, self.place.log(machine)
        (bundle,) = self.bundles(machine)
        return bundle

    def is_delivered(self) -> None:
        """Lets the host take what it has refused, without another request."""
        asked, self.host.status = self.requests, 200
        assert self.place.store.retry(SET, ["paid"]) == 1
        assert self.place.worst("a") == 0, self.place.log("a")
        assert (self.state, self.requests) == ("done", asked), "the model was asked again"
        assert self.place.refs()[BRANCH] == self.row.commit

    def hangs(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """Starts a worker that does the job for a host which is silent from the end of the work on."""
        self.at_the_end = lambda: setattr(self.host, "is_silent", True)
        worker = self.place.work("a", *words, **environment)
        wait_until(lambda: self.requests == 2 and self.is_pushing())
        return worker

    def is_pushing(self) -> bool:
        return "receive-pack" in self.host.asked[-1]

    def sql(self, statement: str) -> Any:
        with self.place.store._engine.begin() as connection:
            found = connection.exec_driver_sql(statement)
            return found.all() if found.returns_rows else None

    def hurry(self) -> None:
        """Lets the job's next attempt begin now."""
        schema = "ralph_fleet." if self.place.is_postgres else ""
        self.sql(f"UPDATE {schema}jobs SET not_before = 0")

    def bundles(self, machine: str = "a") -> list[Path]:
        return list((self.place.state(machine) / "fleet/undelivered").glob("*/*/*/work.bundle"))

    def has_ended(self) -> bool:
        """Whether the job's process has ended in its first claim."""
        work = self.place.state("a") / "fleet/work"
        names = ("result.json", "state/loops/*/*/loop.json")
        texts = [path.read_text() for name in names for path in list(work.glob(f"*/night/paid.1/{name}"))]
        return any('"exit_code"' in text and '"ended": null' not in text for text in texts)


@contextmanager
def refusing(folder: Path, url: str = "", until: str | None = None, **limits: Any) -> Iterator[Refused]:
    models: dict[str, Callable[[Asked], Playable]] = {}
    with Place(folder, models, url) as place, HttpRepository(place.repository) as host:
        refused = Refused(place, host, models)
        place.submit(place.job("paid", repository=host.url, until=until), limits=SetLimits(**limits))
        yield refused


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill_all(processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):  # it has ended with its supervisor
            os.kill(process, signal.SIGKILL)


def stop(worker: subprocess.Popen[bytes]) -> None:
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 0


def ends_after_another_signal(worker: subprocess.Popen[bytes]) -> bool:
    """Sends a signal that no worker takes for a repetition of the one before."""
    if worker.poll() is None:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(1.5 * ONE_SIGNAL_S)
        except subprocess.TimeoutExpired:
            return False
    return True


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of two megabytes and few files at `folder`."""
    folder.mkdir(parents=True)
    options = "size=2m,nr_inodes=2000,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path, most_files: int = 10_000) -> Path:
    """Fills the disk of a folder, so that not even a folder can be made, and returns the folder that fills it."""
    filler = folder / "filler"
    filler.mkdir()
    with (filler / "file").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1 << 9):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    with suppress(OSError):
        for number in range(most_files):
            (filler / str(number)).touch()
    return filler


class Unanswering(ExitStack):
    """A store that answers nothing about the jobs, from `begin` until it is closed."""

    def __init__(self, postgres: PostgresServer, url: str, how: str) -> None:
        super().__init__()
        self._postgres, self._url, self._how = postgres, url, how

    def begin(self) -> None:
        if self._how == "stopped":
            self._postgres.stop()
            self.callback(self._postgres.start)
        elif self._how == "frozen":
            server = int((self._postgres.data / "postmaster.pid").read_text().split()[0])
            for pid in (server, *children_of(server)):
                os.kill(pid, signal.SIGSTOP)
                self.enter_context(suppress(ProcessLookupError))
                self.callback(os.kill, pid, signal.SIGCONT)
        else:
            held = self.enter_context(closing(psycopg.connect(self._url)))
            held.execute("SELECT 1 FROM ralph_fleet.jobs FOR UPDATE")
