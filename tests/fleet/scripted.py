"""Machines with workers of a fleet, a bare repository, and a model that answers each job as a test wrote it down. A
machine is a home with a state directory. All machines have one store.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Self

from ralph.fleet.claims import Claims
from ralph.fleet.database import database_of, prepare
from ralph.fleet.jobs import Job, SetLimits
from ralph.mock_api import Fault, MockApi, Step, Text, ToolUse, Turn
from tests.patience import PATIENCE_S, wait_until
from tests.processes.fork_server import REPOSITORY, start_ralph
from tests.processes.owned import OWNER, processes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from ralph.fleet.schema import JobRow, StoredCheckpoint
    from ralph.mock_api import Playable, RecordedRequest

SET = "night"
KEY = "sk-ant-canary-0123456789abcdef"
_JOB = re.compile(r"Job ([a-z-]+):")
NEVER = Step(Turn("Wait."), Fault(stall_after_events=2))
"""An answer that begins and does not end."""
DONE = Turn("Done.")


class Asked(NamedTuple):
    """A request, as the model of a job sees it."""

    said: int
    """The number of answers that the conversation has already."""
    times: int
    """The number of requests of the job with so many answers, this one included."""
    text: str
    """The request's body."""


def bash(command: str) -> Turn:
    return Turn([Text("I call a tool."), ToolUse("Bash", {"command": command})])


class Place:
    """Use it as a context manager. It kills all its processes at the end."""

    def __init__(
        self, folder: Path, models: Mapping[str, Callable[[Asked], Playable]], url: str = ""
    ) -> None:
        """`models` has the model of each job. `url` names the store. The default is the file of machine a."""
        self.folder = folder
        self._models = models
        self._asked: dict[tuple[str, int], int] = {}
        self._url = url
        self.is_postgres = bool(url) and not url.startswith("sqlite")
        self.repository = folder / "repository.git"
        self.api = MockApi(script=self._answer)
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.api.start()
        self.git("init", "-q", "--bare", "--template=", "-b", "main", str(self.repository), cwd=self.folder)
        self.commit_first(
            "main", {"kept.txt": "kept\n", "doomed.txt": "doomed\n", ".gitignore": "*.ignored\n"}
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        def are_gone() -> bool:
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return all(worker.poll() is not None for worker in self._workers) and not self.processes()

        if error is not None:
            for log in sorted(self.folder.glob("*/log")):
                print(f"--- the workers of {log.parent.name}\n{log.read_text()}")  # noqa: T201 - pytest shows it
        wait_until(are_gone)
        self.store.close()
        self.api.close()

    def state(self, machine: str) -> Path:
        return self.folder / machine / "state"

    def environment(self, machine: str) -> dict[str, str]:
        home = self.folder / machine
        home.mkdir(exist_ok=True)
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY),
            "HOME": str(home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "RALPH_STATE_DIR": str(self.state(machine)),
            "RALPH_FLEET_DB": self._url or f"sqlite:///{self.state('a')}/fleet/fleet.db",
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": self.api.base_url,
            OWNER: str(self.folder),
        }

    @functools.cached_property
    def store(self) -> Claims:
        database = database_of(None, self.environment("a"))
        prepare(database)
        store = Claims(database)
        store.create()
        return store

    def submit(self, *jobs: Job, limits: SetLimits | None = None) -> None:
        self.store.submit(SET, limits or SetLimits(), jobs)

    def job(self, name: str, prompt: str = "Do it.", **fields: object) -> Job:
        """A job whose model finds its name in the prompt."""
        values = {"repository": str(self.repository), "sandbox": "off", **fields}
        return Job(id=name, prompt=f"Job {name}: {prompt}", **values)  # type: ignore[arg-type]

    def row(self, job: str) -> JobRow:
        row = self.store.job_row(SET, job)
        assert row is not None
        return row

    def checkpoint(self, job: str) -> StoredCheckpoint | None:
        return self.store.checkpoint(SET, job)

    def log(self, machine: str) -> str:
        """The output of the workers of a machine."""
        return (self.folder / machine / "log").read_text()

    def work(self, machine: str, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """Starts a worker."""
        variables = self.environment(machine) | environment
        with (self.folder / machine / "log").open("ab") as log:
            worker = start_ralph(
                ["fleet", "work", *words],
                self.folder / machine,
                variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._workers.append(worker)
        return worker

    def finish(self, machine: str, *words: str, **environment: str) -> None:
        """Works until all jobs have ended, with 0."""
        assert self.worst(machine, *words, **environment) == 0, self.log(machine)

    def worst(self, machine: str, *words: str, **environment: str) -> int:
        """Works until all jobs have ended, and returns the worker's exit code."""
        return self.work(machine, "--until-done", *words, **environment).wait(PATIENCE_S)

    def git(self, *words: str, cwd: Path | None = None, stdin: str = "") -> str:
        """Runs git, in the bare repository unless `cwd` names another directory."""
        who = {
            f"GIT_{role}_{what}": "a@b.example"
            for role in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        ran = subprocess.run(
            ["git", *words],
            cwd=cwd or self.repository,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1", **who},
            input=stdin,
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout.strip()

    def commit_first(self, branch: str, files: Mapping[str, str]) -> str:
        """Makes a branch with one commit of these files. Returns the commit."""
        stream = f"commit refs/heads/{branch}\nmark :1\ncommitter A <a@b.example> 0 +0000\ndata 7\nby hand\n"
        for name, text in files.items():
            stream += f"M 100644 inline {name}\ndata {len(text.encode())}\n{text}\n"
        return self.git("fast-import", "--quiet", stdin=f"{stream}get-mark :1\n")

    def refs(self) -> dict[str, str]:
        """The commit of each reference of the repository."""
        lines = self.git("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        return dict(line.split() for line in lines)

    def asked(self, job: str, said: int) -> int:
        """The number of requests of a job whose conversation had so many answers."""
        return self._asked.get((job, said), 0)

    def processes(self) -> dict[int, str]:
        """The command lines of the processes of this place that run now: workers, runs and commands."""
        return processes_of({OWNER: str(self.folder)})

    def _answer(self, request: RecordedRequest, _index: int) -> Playable:
        job = job_of(request)
        said = sum(message["role"] == "assistant" for message in request.json()["messages"])
        times = self._asked[job, said] = self.asked(job, said) + 1
        return self._models[job](Asked(said, times, (request.body or b"").decode()))


def job_of(request: RecordedRequest) -> str:
    found = _JOB.search(str(request.json()["messages"]))
    assert found is not None, "a request of no job"
    return found[1]
