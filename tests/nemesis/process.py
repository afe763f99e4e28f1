"""Plays one session with real processes: starts it, kills it, and resumes it until it ends. Collects what it left,
and judges nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.mock_api import MockApi
from tests.nemesis.journal_text import Line, note_line, place_of, readable_lines, whole_lines
from tests.nemesis.task import FILE_TOOLS, LOG_FILE, LOG_HEAD, PROMPT
from tests.patience import within_s
from tests.processes.fork_server import REPOSITORY, start_ralph
from tests.processes.owned import OWNER
from tests.soak.leftovers import processes_left, settled

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from ralph.mock_api import RecordedRequest
    from tests.nemesis.plan import Kill, SessionPlan

LONGEST_LIFE_S = within_s()
"""A process that lives longer than this many seconds counts as hanging."""
USUAL_RECORDS = 34
"""About the number of records in a whole session."""
_POLL_S = 0.001
_COMPLETED, _NOTHING_TO_RESUME, _DAMAGED = 0, 2, 74
_NULS = 512


class StoppedError(Exception):
    """The campaign was stopped in the middle of this session. Nothing is known about the session."""


@dataclass(frozen=True)
class Life:
    """One process of a session, and what it left."""

    session_id: str
    exit_code: int | None
    """The exit code, or None if the process was killed as planned."""
    place: str
    """The step at which the kill hit. Empty if the process ended by itself."""
    journal: bytes
    added: bytes
    """The bytes that were added to the journal after the kill, like a power failure."""
    stdout: str
    stderr: str


@dataclass
class Observed:
    cluster: Path
    lives: list[Life] = field(default_factory=list)
    requests: tuple[RecordedRequest, ...] = ()
    torn: tuple[bytes, ...] = ()
    """The incomplete lines that were cut off the last session's journal, in order."""
    left: list[str] = field(default_factory=list)
    """Processes that should have ended."""
    guesses: list[str] = field(default_factory=list)
    """Sentences about processes that did anything but refuse a journal that ends in NUL bytes."""

    @property
    def kills(self) -> int:
        return sum(life.exit_code is None for life in self.lives)

    @property
    def work(self) -> Path:
        return self.cluster / "work"

    def journal_of(self, session_id: str) -> Path | None:
        return next((self.cluster / "state").rglob(f"{session_id}.jsonl"), None)


def observe(plan: SessionPlan, usual_s: float, stopping: threading.Event) -> Observed:
    """Plays the plan. The caller must remove the directory `cluster`. `usual_s` is the time in seconds that a session
    takes if nobody kills it. Raises `StoppedError` if `stopping` is set.
    """
    seen = Observed(Path(tempfile.mkdtemp(prefix="nemesis-")))
    for name in ("work", "state", "home", "tmp"):
        (seen.cluster / name).mkdir()
    (seen.work / LOG_FILE).write_text(LOG_HEAD)
    marker = f"{os.getpid()}-{seen.cluster.name}"
    try:
        with _served(plan, seen.cluster) as (words, environment, servers):
            _Lives(plan, seen, words, environment | {OWNER: marker}, usual_s, stopping).play()
            seen.requests = tuple(request for server in servers for request in server.requests)
    except StoppedError:
        shutil.rmtree(seen.cluster, ignore_errors=True)
        raise
    last = seen.journal_of(seen.lives[-1].session_id)
    if last is not None:
        beside = [
            last.with_suffix(".torn"),
            *(last.with_suffix(f".{number}.torn") for number in range(2, 100)),
        ]
        seen.torn = tuple(path.read_bytes() for path in beside if path.exists())
    seen.left = settled(lambda: processes_left(marker))
    return seen


@contextmanager
def _served(plan: SessionPlan, cluster: Path) -> Iterator[tuple[list[str], dict[str, str], list[MockApi]]]:
    """The vendors of the session, and the arguments and the variables that name them to ralph."""
    task, outage = plan.task, plan.outage
    keys = {"ANTHROPIC_API_KEY": "sk-ant-nemesis-0123456789"}
    if outage is None:
        with MockApi(script=task.step) as server:
            yield ["--retry", "off"], keys | {"ANTHROPIC_BASE_URL": server.base_url}, [server]
        return
    with (
        MockApi(script=lambda request, _: outage.first_vendor(task, request)) as first,
        MockApi(script=lambda request, _: outage.second_vendor(task, request)) as second,
    ):
        settings = cluster / "config.toml"
        settings.write_text(outage.settings(first.base_url, second.base_url))
        yield ["--config", str(settings)], keys | {"SECOND_KEY": "sk-second-0123456789"}, [first, second]


@dataclass
class _Lives:
    """Starts the processes of one session, one after the other."""

    plan: SessionPlan
    seen: Observed
    words: list[str]
    """The arguments that all processes get."""
    environment: dict[str, str]
    usual_s: float
    stopping: threading.Event

    def play(self) -> None:
        """Plays the session until a process ends by itself, or until it cannot be resumed."""
        kills, ids = list(self.plan.kills), list(self.plan.session_ids)
        session_id, continues = ids.pop(0), False
        while True:
            life = self._live(session_id, kills.pop(0) if kills else None, continues=continues)
            self.seen.lives.append(life)
            continues = life.exit_code is None
            if life.exit_code == _NOTHING_TO_RESUME and not has_message(life.journal):
                session_id = ids.pop(0)
            elif not continues:
                return

    def _live(self, session_id: str, kill: Kill | None, *, continues: bool) -> Life:
        number = len(self.seen.lives)
        out, err = self.seen.cluster / f"stdout-{number}", self.seen.cluster / f"stderr-{number}"
        words = ["--resume", session_id] if continues else ["--session-id", session_id, PROMPT]
        with self._process(words, out, err) as process:
            is_killed = self._watch(process, session_id, kill)
        path = self.seen.journal_of(session_id)
        journal, added = path.read_bytes() if path else b"", b""
        if is_killed and kill and path and journal.endswith(b"\n"):
            added = _torn(kill, journal)
            path.write_bytes(journal + added)
            if kill.torn == "nul":
                self._look_for_guess(session_id, path, journal)
        exit_code = None if is_killed else process.returncode
        place = place_of(readable_lines(journal)) if is_killed else ""
        return Life(session_id, exit_code, place, journal, added, out.read_text(), err.read_text())

    def _look_for_guess(self, session_id: str, path: Path, journal: bytes) -> None:
        """Adds NUL bytes to the journal and checks that a process refuses it. Restores the journal for the next
        process.
        """
        damaged = journal + bytes(_NULS)
        path.write_bytes(damaged)
        out, err = self.seen.cluster / "stdout-nul", self.seen.cluster / "stderr-nul"
        with self._process(["--resume", session_id], out, err) as process:
            code = process.wait(LONGEST_LIFE_S)
        if (code, path.read_bytes()) != (_DAMAGED, damaged):
            self.seen.guesses.append(f"NUL bytes behind {len(journal)} bytes: exit {code}, {err.read_text()}")
        path.write_bytes(journal)

    @contextmanager
    def _process(self, words: list[str], out: Path, err: Path) -> Iterator[subprocess.Popen[bytes]]:
        cluster = self.seen.cluster
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY),  # the ralph beside these files, wherever another one is installed
            "HOME": str(cluster / "home"),
            "TMPDIR": str(cluster / "tmp"),
            "RALPH_STATE_DIR": str(cluster / "state"),
            **self.environment,
        }
        command = [*words, *self.words, "--output-format", "stream-json"]
        with out.open("wb") as stdout, err.open("wb") as stderr:
            # A fork begins to work at once, so a kill by time hits its work and not its imports.
            process = start_ralph(
                command,
                self.seen.work,
                environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is for the campaign
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def _watch(self, process: subprocess.Popen[bytes], session_id: str, kill: Kill | None) -> bool:
        """Waits for the end of the process, or kills it at the planned moment. Returns True if that kill hit. Kills
        a process that lives too long too, but returns False.
        """
        started_s = time.monotonic()
        moment = _KillClock(kill, lambda: self.seen.journal_of(session_id), self.usual_s) if kill else None
        while process.poll() is None:
            if moment and moment.has_come():
                process.kill()
                return process.wait() < 0
            if self.stopping.wait(_POLL_S if moment else 0.01):
                raise StoppedError
            if time.monotonic() - started_s > LONGEST_LIFE_S:
                process.kill()
        return False


class _KillClock:
    """The moment of a kill: some time after the start, some time after a number of records, or when a file is about
    to be written.
    """

    def __init__(self, kill: Kill, find_journal: Callable[[], Path | None], usual_s: float) -> None:
        self._kill = kill
        self._find_journal = find_journal
        self._due_s: float | None = None
        self._path: Path | None = None
        self._bytes = self._records = 0
        self._last: Line = {}
        self._look()
        left = max(4, USUAL_RECORDS - self._records)
        self._wanted = self._records + 1 + int(kill.share * left)
        if kill.by == "time":
            self._due_s = time.monotonic() + kill.share * usual_s * max(0.3, left / USUAL_RECORDS)

    def has_come(self) -> bool:
        if self._due_s is None:
            self._look()
            is_writing = self._last.get("kind") == "tool_intent" and self._last["name"] in FILE_TOOLS
            if self._records < self._wanted or (self._kill.by == "write" and not is_writing):
                return False
            self._due_s = time.monotonic() + self._kill.delay_s
        return time.monotonic() >= self._due_s

    def _look(self) -> None:
        """Reads the new records of the journal."""
        self._path = self._path or self._find_journal()
        if self._path is None or self._path.stat().st_size == self._bytes:
            return
        with self._path.open("rb") as file:
            file.seek(self._bytes)
            new = whole_lines(file.read())
        self._bytes += len(new)
        told = [line for line in readable_lines(new) if line["kind"] not in ("event", "run")]
        self._records += len(told)
        self._last = told[-1] if told else self._last


def has_message(journal: bytes) -> bool:
    return b'"kind":"user"' in journal


def _torn(kill: Kill, journal: bytes) -> bytes:
    """The bytes that are written behind the journal when the power fails in the middle of the next record."""
    if b'"kind":"delivery"' in journal[journal.rstrip(b"\n").rfind(b"\n") + 1 :]:
        return b""  # a run writes nothing after the record about the delivery of its result
    line = note_line(journal.count(b"\n"))
    match kill.torn:
        case "part":
            return line[: 1 + int(kill.share * 1e6) % (len(line) - 1)]
        case "whole":
            return line
    return b""
