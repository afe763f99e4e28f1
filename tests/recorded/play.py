"""Plays a scene with real processes in a directory of its own, against scripted servers. Returns everything that is
recorded.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ralph.loop.record import FileRecord, RecordError
from ralph.loop.state import state_text
from ralph.mock_api import MockApi, RecordedRequest, Scenario
from tests.patience import PATIENCE_S
from tests.processes.fork_server import REPOSITORY, start_ralph
from tests.recorded.scene import Await, AwaitFile, AwaitRequest, Say, Scene, Send
from tests.recorded.scenes import PIXEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.recorded.scene import Action, Run

KEY = "sk-ant-recorded-0123456789"
_GIT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_DATE": "@0 +0000", "GIT_COMMITTER_DATE": "@0 +0000"}


@dataclass
class PlayedRun:
    """One process of a scene."""

    words: Sequence[str]
    code: int
    stdout: str
    stderr: str
    requests: list[tuple[str, RecordedRequest]]
    """The requests, each with the name of the server that received it."""


@dataclass
class Recording:
    """One played scene. Paths in `files` are relative to the scene's directory."""

    directory: Path
    servers: Mapping[str, str]
    """The URL of each server by its name."""
    runs: list[PlayedRun] = field(default_factory=list)
    journals: dict[str, bytes] = field(default_factory=dict)
    """The journals in the order in which they were begun."""
    loops: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    history: str = ""
    """The commits of a git checkout, the newest first."""
    is_brief: bool = False


def play(scene: Scene) -> Recording:
    """Plays all runs of a scene in order. The name of the directory always has the same length, because ralph
    limits texts by their size in bytes.
    """
    directory = Path(tempfile.mkdtemp(prefix="ralph-play-", dir="/var/tmp"))
    try:
        with _Stage(directory, scene) as stage:
            for run in scene.runs:
                stage.play(run)
            return stage.recording()
    finally:
        shutil.rmtree(directory)


class _Stage:
    """A directory with a home directory, a working directory and two servers."""

    def __init__(self, directory: Path, scene: Scene) -> None:
        self.directory = directory
        self.work, self.home = directory / "work", directory / "home"
        self._scene = scene
        self._main = MockApi(Scenario(scene.answers))
        self._spare = MockApi(Scenario(scene.spare))
        self._told: dict[str, int] = {"main": 0, "spare": 0}
        self._runs: list[PlayedRun] = []
        self.environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._main.start()
        self._spare.start()
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.directory / "tmp"),
            "PYTHONPATH": str(REPOSITORY),
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": self._main.base_url,
            **_GIT,
        }
        for path in (self.work, self.home, self.directory / "tmp"):
            path.mkdir()
        self._write_files()
        return self

    def __exit__(self, *_: object) -> None:
        self._main.close()
        self._spare.close()

    @property
    def _servers(self) -> dict[str, str]:
        return {"main": self._main.base_url, "spare": self._spare.base_url}

    def _write_files(self) -> None:
        files = {"notes.txt": "one\ntwo\nthree\n", "pixel.png": PIXEL, **self._scene.files}
        settings = self._scene.settings.format(**self._servers)
        if not self._scene.is_boxed:
            settings = f"sandbox.mode = 'off'\n{settings}"
        if settings:
            files["../home/.config/ralph/config.toml"] = settings
        for name, content in files.items():
            path = self.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif content.startswith("-> "):
                path.symlink_to(content[3:])
            else:
                path.write_text(content)
        if self._scene.is_checkout:
            self._git("init", "-q", "-b", "main")
            with (self.work / ".git/config").open("a") as config:
                config.write("[user]\n\tname = Tester\n\temail = tester@example.com\n")
            self._git("add", "-A")
            self._git("commit", "-q", "-m", "begin")
        if self._scene.has_remote:
            self._git("clone", "-q", "--bare", ".", "../remote.git")
            self._git("remote", "add", "origin", "../remote.git")
            self._git("fetch", "-q")

    def _git(self, *words: str) -> str:
        ran = subprocess.run(
            ["git", *words], cwd=self.work, env=self.environment, capture_output=True, text=True, check=True
        )
        return ran.stdout

    def start(
        self, words: Sequence[str], stdin: int, stdout: Path, stderr: Path | None = None, **more: str | None
    ) -> subprocess.Popen[bytes]:
        """Starts `ralph` with these words. Its output goes into files, so that nobody has to read it meanwhile."""
        environment = {
            name: self._filled(value) for name, value in {**self.environment, **more}.items() if value
        }
        out = os.open(stdout, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        err = out if stderr is None else os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            filled = [self._filled(word) for word in words]
            return start_ralph(filled, self.work, environment, stdin=stdin, stdout=out, stderr=err)
        finally:
            for descriptor in {out, err}:
                os.close(descriptor)

    def _filled(self, text: str) -> str:
        for name, value in {"work": str(self.work), **self._servers}.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    def play(self, run: Run) -> None:
        words = run.words
        if words[0] == "sh":
            subprocess.run(words, cwd=self.work, check=True)
            return
        number = len(self._runs)
        out, err = self.directory / f"out{number}", self.directory / f"err{number}"
        if run.stdin is None and not any(isinstance(action, Say) for action in run.actions):
            process = self.start(
                words, subprocess.DEVNULL, out, None if run.combined else err, **run.environment
            )
            self._act(run.actions, process, out, None)
        else:
            reading, writing = os.pipe()
            process = self.start(words, reading, out, err, **run.environment)
            os.close(reading)
            os.write(writing, run.stdin or b"")
            self._act(run.actions, process, out, writing)
            os.close(writing)
        code = self._ended(process)
        stderr = err.read_text() if err.exists() else ""
        self._runs.append(PlayedRun(words, code, out.read_text(), stderr, self._new_requests()))

    def _ended(self, process: subprocess.Popen[bytes]) -> int:
        timer = threading.Timer(PATIENCE_S, process.send_signal, [signal.SIGKILL])
        timer.start()
        try:
            return process.wait()
        finally:
            timer.cancel()

    def _act(
        self, actions: Sequence[Action], process: subprocess.Popen[bytes], out: Path, stdin: int | None
    ) -> None:
        for action in actions:
            match action:
                case Say(line):
                    assert stdin is not None
                    text = line if isinstance(line, str) else json.dumps(line)
                    os.write(stdin, f"{text}\n".encode())
                case Await(fields, nth):
                    self._until(lambda f=fields, n=nth: _count_of(out, f) >= n, action)
                case AwaitRequest(count):
                    before = self._told["main"]
                    self._until(lambda n=count + before: self._main.request_count >= n, action)
                case AwaitFile(path):
                    self._until((self.work / path).exists, action)
                case Send(name):
                    process.send_signal(signal.Signals[name])

    def _until(self, condition: Any, action: Action) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{self._scene.name}: {action} did not come in time"
            time.sleep(0.005)

    def _new_requests(self) -> list[tuple[str, RecordedRequest]]:
        """The requests since the last run, in the order in which they arrived."""
        found = []
        for name, server in (("main", self._main), ("spare", self._spare)):
            requests = server.requests
            found += [(name, request) for request in requests[self._told[name] :]]
            self._told[name] = len(requests)
        return sorted(found, key=lambda pair: pair[1].monotonic_s)

    def _journals(self) -> list[Path]:
        found = [*self.home.rglob("sessions/*/*.jsonl"), *self.directory.glob("kept/**/*.jsonl")]
        return sorted(found, key=_began_at)

    def recording(self) -> Recording:
        made = Recording(self.directory, self._servers, self._runs, is_brief=self._scene.is_brief)
        for path in self._journals():
            made.journals[str(path.relative_to(self.directory))] = path.read_bytes()
        for path in sorted(self.home.rglob("loop.json")):
            with suppress(RecordError):  # the scene has damaged it
                made.loops.append(state_text(FileRecord(path.parent).load()))
        made.files = dict(self._new_files())
        if self._scene.is_checkout and self._scene.is_brief:
            made.history = "\n".join(self._branches())
        elif self._scene.is_checkout:
            made.history = self._git("log", "--format=%s%n%b", "--stat=60")
        return made

    def _branches(self) -> Iterator[str]:
        """The uncommitted files, and the branches here and at the remote with their commits, the newest first."""
        yield from self._git("status", "--porcelain", "--branch").splitlines()
        for place in (".", "../remote.git")[: 1 + self._scene.has_remote]:
            for branch in self._git("-C", place, "branch", "--format=%(refname:short)").splitlines():
                subjects = self._git("-C", place, "log", "--format=%s", branch).splitlines()
                yield f"{place} {branch}: {' < '.join(subjects)}"

    def _new_files(self) -> Iterator[tuple[str, bytes]]:
        """Yields the files in the scene's directory that the scene did not put there or that have changed. Leaves
        out git's own files and ralph's state.
        """
        untouched = {"notes.txt": b"one\ntwo\nthree\n", "pixel.png": PIXEL}
        given = {
            name: text.encode() if isinstance(text, str) else text for name, text in self._scene.files.items()
        }
        before = {
            os.path.normpath(Path("work", name)): content for name, content in {**untouched, **given}.items()
        }
        for path in sorted(self.directory.rglob("*")):
            name = str(path.relative_to(self.directory))
            is_own = name.startswith(("work/.git/", "remote.git/", "home/", "tmp/", "kept/", "out", "err"))
            if not is_own and path.is_file() and not path.is_symlink():
                content = path.read_bytes()
                if before.get(name) != content:
                    yield name, content
        for name in before:
            if not (self.directory / name).exists():
                yield name, b"<removed>"


def _count_of(out: Path, fields: Mapping[str, Any]) -> int:
    """The number of complete lines so far that have these fields."""
    count = 0
    for line in out.read_bytes().split(b"\n")[:-1]:
        with suppress(ValueError):
            told = json.loads(line)
            found = {**told, **(told.get("response") or {}), "type": told.get("type")}
            count += all(found.get(name) == value for name, value in fields.items())
    return count


def _began_at(path: Path) -> str:
    first = json.loads(path.read_bytes().split(b"\n")[0])
    return str(first["created_at"])
