"""Fixtures that start `ralph` as users do: as a real process with its own environment, and with a real server on
the loopback interface.

Commands run without a sandbox, unlike those of users, because namespaces take a third of the CPU time of a run with
commands. Tests of the sandbox, and some tests of whole stories, have the mark `sandboxed`; then nothing is added to
their command lines. A test that names `--sandbox` itself gets what it names.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.cli.command_line import COMMANDS, IN_LOOP
from ralph.loop.record import FileRecord
from ralph.loop.state import state_text
from ralph.mock_api import MockApi, Turn
from tests.api.harness import RawServer, read_request
from tests.patience import PATIENCE_S
from tests.processes import owned
from tests.processes.fork_server import REPOSITORY, start_ralph

if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from ralph.mock_api import Playable, RecordedRequest
    from tests.git.repositories import Repository
    from tests.program.driver import Driver

KEY = "sk-ant-test-0123456789abcdef"


@dataclass
class Finished:
    code: int
    stdout: str
    stderr: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def result(self) -> dict[str, Any]:
        (result,) = [entry for entry in self.objects if entry["type"] == "result"]
        assert self.objects[-1] is not None
        assert self.objects[-1]["type"] == "result"
        return result

    @property
    def last_line(self) -> str:
        return self.stderr.splitlines()[-1]

    def of(self, subtype: str) -> list[dict[str, Any]]:
        """The objects of this subtype."""
        return [one for one in self.objects if one.get("subtype") == subtype]

    @property
    def notices(self) -> list[str]:
        return [one["text"] for one in self.of("notice")]

    def having(self, code: int | None) -> Finished:
        """Itself, if it ended with this exit code."""
        assert code in (None, self.code), self.stderr
        return self


@dataclass
class Ralph:
    """Starts `python -m ralph` in `cwd`. The process gets no variable of the developer's environment except
    PATH.
    """

    cwd: Path
    environment: dict[str, str] = field(default_factory=dict)
    starts_afresh: bool = False
    """Whether each start uses a new interpreter. This is for tests about the start itself."""
    is_sandboxed: bool = False
    """Whether commands run in the sandbox that users have. Otherwise each run gets `--sandbox off`."""

    @property
    def user_file(self) -> Path:
        """The user's own settings file, which a test may write."""
        path = Path(self.environment["HOME"], ".config", "ralph", "config.toml")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def retry_quickly(self) -> None:
        """Sets a retry policy with four retries that hardly wait."""
        self.user_file.write_text("[retry]\npolicy = 'custom'\nbase_delay_s = 0.01\n")

    def run_first(self, code: str) -> None:
        """Makes each start run this code before it runs ralph. It gets a new interpreter."""
        (self.cwd.parent / "sitecustomize.py").write_text(code)
        self.environment["PYTHONPATH"] = f"{self.cwd.parent}:{self.environment['PYTHONPATH']}"

    def start(self, *arguments: str, **popen: Any) -> subprocess.Popen[bytes]:
        popen.setdefault("stdin", subprocess.DEVNULL)
        popen.setdefault("stdout", subprocess.PIPE)
        popen.setdefault("stderr", subprocess.PIPE)
        words = as_prompt(arguments if self.is_sandboxed else without_sandbox(arguments))
        return start_ralph(words, self.cwd, self.environment, afresh=self.starts_afresh, **popen)

    def __call__(self, *arguments: str, stdin: bytes | None = None, code: int | None = None) -> Finished:
        """Runs ralph to its end, which must have this exit code, if one is given."""
        process = self.start(*arguments, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE)
        return self.finish(process, stdin).having(code)

    def finish(self, process: subprocess.Popen[bytes], stdin: bytes | None = None) -> Finished:
        try:
            stdout, stderr = process.communicate(stdin, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return Finished(process.returncode, (stdout or b"").decode(), (stderr or b"").decode())

    def to_full_disk(self, *arguments: str) -> Finished:
        """Runs ralph with a standard output that takes nothing. There is no such device on some systems."""
        with Path("/dev/full").open("wb") as full:
            return self.finish(self.start(*arguments, stdout=full))

    def stopped_by(
        self, process: subprocess.Popen[bytes], number: signal.Signals, code: int | None = None
    ) -> Finished:
        """Sends the signal and waits for the end of the process."""
        process.send_signal(number)
        return self.finish(process).having(code)


_WITHOUT_RUNS = {
    "sessions",
    "report",
    "fleet",
    "doctor",
    "demo",
    "mock-api",
    "--version",
    "-v",
    "--help",
    "-h",
}
"""First words of command lines that start no run."""
_ABOUT_SANDBOXES = ("--sandbox", "--net", "--allow-host", "--unix-sockets", "--restricted")


def without_sandbox(arguments: Sequence[str]) -> list[str]:
    """The command line with `--sandbox off`, unless it starts no run or says something about the sandbox itself."""
    words = [*arguments]
    if (words[:1] and words[0] in _WITHOUT_RUNS) or any(word.startswith(_ABOUT_SANDBOXES) for word in words):
        return words
    if words[:1] == ["loop"] and not {"init", "--status", "--continue"}.isdisjoint(words):
        return words  # no new loop: one that is resumed keeps its options
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], "--sandbox", "off", *words[at:]]


def as_prompt(arguments: Sequence[str]) -> list[str]:
    """The command line with `-p` if a lone word in it may be a prompt, such as `go`, which ralph would refuse."""
    words = [*arguments]
    at = 1 if words[:1] == ["loop"] else 0
    named = {*_WITHOUT_RUNS, *COMMANDS, *IN_LOOP, "--complete"}
    rest = words[at : at + 1] if at else words
    if (
        words[at : at + 1]
        and words[at] not in named
        and any(re.fullmatch("[a-z][a-z-]*", one) for one in rest)
    ):
        words.insert(at, "-p")
    return words


@pytest.fixture
def ralph(tmp_path: Path, request: pytest.FixtureRequest) -> Ralph:
    return ralph_in(tmp_path, is_sandboxed=request.node.get_closest_marker("sandboxed") is not None)


def ralph_in(directory: Path, *, is_sandboxed: bool = False) -> Ralph:
    """Makes a home directory and a working directory in `directory`, and an object that starts ralph with them."""
    work = directory / "work"
    work.mkdir()
    home = directory / "home"
    home.mkdir()
    temporary = directory / "tmp"  # the system's directory may hold sessions of other programs
    temporary.mkdir()
    return Ralph(
        work,
        {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "ANTHROPIC_API_KEY": KEY,
            # The tree that these tests belong to, whatever is installed.
            "PYTHONPATH": str(REPOSITORY),
        },
        is_sandboxed=is_sandboxed,
    )


@pytest.fixture
def ralph_here(ralph: Ralph, monkeypatch, capfd) -> Callable[..., Finished]:
    """Runs the command line in the test's own process. This is for commands that end before a request is sent, and
    for commands about sessions.

    It is not for whole runs, because only the end of a process closes everything that a run has opened. Other tests
    show that a process prints the same and exits with the same code. `of` is the `Ralph` whose directory and
    environment are used. With `as_typed`, a lone word is not made a prompt. It must end with `code`, if one is given.
    """
    from ralph.cli.command_line import run_cli  # only tests that ask for it

    def run(*arguments: str, of: Ralph = ralph, as_typed: bool = False, code: int | None = None) -> Finished:
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(of.cwd)
            patch.setattr(
                tempfile, "tempdir", None
            )  # it is found once for the process, and TMPDIR is another
            for name in set(os.environ) - set(of.environment):
                patch.delenv(name)
            for name, value in of.environment.items():
                patch.setenv(name, value)
            ended = run_cli([*(arguments if as_typed else as_prompt(arguments))])
        return Finished(ended, *capfd.readouterr()).having(code)

    return run


@pytest.fixture
def drive(ralph: Ralph) -> Iterator[Callable[..., Driver]]:
    """Starts a run that takes its messages from the test."""
    from tests.program.driver import Driver  # it imports this module

    with ExitStack() as drivers:
        yield lambda *arguments: drivers.enter_context(closing(Driver(ralph, *arguments)))


@pytest.fixture
def tell_base_url(ralph: Ralph) -> Callable[[str], None]:
    return lambda url: ralph.environment.update(ANTHROPIC_BASE_URL=url)


@pytest.fixture
def answer_with(ralph) -> Iterator[Callable[..., RawServer]]:
    """Starts a server that answers each request with the next of these bytes, or by calling the next function. The
    last one is repeated.
    """
    servers: list[RawServer] = []

    def start(*answers: bytes | Callable[[socket.socket], None]) -> RawServer:
        def serve(sock: socket.socket) -> None:
            server.requests.append(read_request(sock))
            answer = answers[min(len(server.requests), len(answers)) - 1]
            if isinstance(answer, bytes):
                sock.sendall(answer)
            else:
                answer(sock)

        server = RawServer(serve)
        servers.append(server)
        ralph.environment["ANTHROPIC_BASE_URL"] = server.base_url
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def checkout(ralph: Ralph) -> Repository:
    """Makes `ralph` work in a git checkout with one commit. Its remote `origin` is a bare repository beside it."""
    from tests.git.repositories import cloned  # it makes repositories, which few tests need

    work, home = ralph.cwd, Path(ralph.environment["HOME"])
    work.rmdir()
    ralph.environment["GIT_CONFIG_NOSYSTEM"] = "1"
    return cloned(work, home)


@pytest.fixture
def iterations(serve: Callable[..., MockApi]) -> Callable[..., MockApi]:
    """Starts a server with one list of steps for each iteration of a loop. After the last step of a list, and in
    further iterations, it sends a final answer.

    The answers in a request's conversation decide which step is next, not the number of requests. So a repeated
    request gets the same answer, unless the step is a function.
    """

    def start(*stories: Sequence[Playable | Callable[[], Playable]]) -> MockApi:
        def play(request: RecordedRequest, _index: int) -> Playable:
            messages = request.json()["messages"]
            number, answered = iteration_of(request), sum(one["role"] == "assistant" for one in messages)
            steps = stories[number - 1] if number <= len(stories) else ()
            step = steps[answered] if answered < len(steps) else Turn("All done.")
            return step() if callable(step) else step

        return serve(script=play)

    return start


def in_turn(*steps: Playable) -> Callable[[], Playable]:
    """A step for `iterations` that plays the next of these steps at each call, and repeats the last one."""
    left = iter(steps[:-1])
    return lambda: next(left, steps[-1])


def first_prompt(request: RecordedRequest) -> str:
    """The prompt of the iteration that sent this request."""
    content = request.json()["messages"][0]["content"]
    return content if isinstance(content, str) else "\n".join(block["text"] for block in content)


def iteration_of(request: RecordedRequest) -> int:
    found = re.search(r"\[ralph loop (\d+)", first_prompt(request))
    assert found is not None
    return int(found[1])


def loop_folder(ralph: Ralph) -> Path:
    """The folder of the newest loop. The path need not exist."""
    state = Path(ralph.environment["HOME"], ".local", "state", "ralph", "loops")
    return max(state.glob(f"{ralph.cwd.name}-*/[0-9]*"), default=state / "none")


def loop_record(ralph: Ralph) -> dict[str, Any]:
    """The current record of the newest loop."""
    record: dict[str, Any] = json.loads(state_text(FileRecord(loop_folder(ralph)).load()))
    return record


def is_loop_waiting(ralph: Ralph) -> bool:
    """Whether the record of the newest loop says that the loop is waiting."""
    record = loop_folder(ralph) / "loop.json"
    return record.exists() and '"phase": "waiting"' in record.read_text()


def loop_lines(ran: Finished) -> list[str]:
    """The lines that the loop itself printed, without heartbeats, which depend on the speed of the machine."""
    told = [line.removeprefix("[loop] ") for line in ran.stderr.splitlines() if line.startswith("[loop] ")]
    return [line for line in told if not re.fullmatch(r"\S+ for the check", line)]


def processes_of(ralph: Ralph) -> dict[int, str]:
    """The command lines of all running processes that this `ralph` started, directly or not. Works on Linux only."""
    return owned.processes_of(ralph.environment)


def iteration_of_loop(ralph: Ralph) -> int:
    """The process id of the loop's current iteration. Works on Linux only."""
    [iteration] = [pid for pid, words in processes_of(ralph).items() if "--iteration" in words]
    return iteration
