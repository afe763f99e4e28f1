"""Compares ralph with other agents, which all talk to the same scripted server. Measures one turn, the gap between
two turns, and an answer of 20,000 deltas. Prints a Markdown table of medians.

The other agents are `claude` (`@anthropic-ai/claude-code`) and `pi` (`@mariozechner/pi-coding-agent`), which npm
installs into `.peers`. Each program runs one prompt without a person, in an empty directory and with an empty home
directory. Updates and telemetry are turned off, and nothing is sent to a real API. The programs are measured by
turns.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from benchmarks.harness import PYTHON, figure, ralph, workplace
from benchmarks.stream import send_apart
from ralph import __version__
from ralph.mock_api import MockApi, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from benchmarks.harness import Workplace
    from ralph.mock_api import RecordedRequest

FOLDER = Path(__file__).parents[1] / ".peers"
PACKAGES = {"claude": "@anthropic-ai/claude-code", "pi": "@mariozechner/pi-coding-agent"}
MODEL = "claude-sonnet-4-5"
RUNS = 9
STREAM_RUNS = 3
COMMANDS = 20
_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "PI_OFFLINE": "1",
}


class Program(NamedTuple):
    name: str
    version: str
    command: tuple[str, ...]
    tool: str
    """The name that this program gives to the tool that runs a command."""


class Line(NamedTuple):
    wall_s: float
    cpu_s: float
    peak_mb: float
    gap_ms: float
    stream_wall_s: float
    stream_cpu_s: float


def main() -> None:
    programs = [
        Program("ralph", __version__, ralph("run", "hi"), "Bash"),
        # The commands of the others have no sandbox.
        Program("ralph --sandbox off", __version__, ralph("run", "hi", "--sandbox", "off"), "Bash"),
        Program("the floor", "", (PYTHON, str(Path(__file__).with_name("floor.py")), "hi"), "Bash"),
        *installed_peers(),
    ]
    turns = _in_turn(programs, _one_turn, RUNS)
    gaps = _in_turn(programs, lambda program: [gap_ms(program)], RUNS)
    streams = _in_turn(programs, _stream, STREAM_RUNS)
    print(f"\n{datetime.now(tz=UTC):%Y-%m-%d}, medians of {RUNS} runs (deltas: {STREAM_RUNS}):\n")
    print("| | one turn: wall | CPU | memory | gap, `echo` | 20,000 deltas: wall | CPU |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for program in programs:
        line = Line(*turns[program], *gaps[program], *streams[program])
        print(
            f"| {program.name} {program.version}".rstrip()
            + f" | {line.wall_s:.2f} s | {line.cpu_s:.2f} s | {line.peak_mb:.0f} MB | {line.gap_ms:.1f} ms"
            f" | {line.stream_wall_s:.2f} s | {line.stream_cpu_s:.2f} s |"
        )


def installed_peers(names: Sequence[str] = tuple(PACKAGES)) -> Iterator[Program]:
    """Yields the other agents, and installs them if necessary. If one cannot be installed, leaves it out and prints
    the reason to standard error.
    """
    npm = shutil.which("npm")
    for name, package in PACKAGES.items():
        if name not in names:
            continue
        home = FOLDER / "node_modules" / package
        if npm is None and not home.exists():
            print(f"{name} is left out: there is no npm on PATH", file=sys.stderr)
            continue
        if not home.exists():
            install = [npm or "npm", "install", "--no-audit", "--no-fund", "--prefix", str(FOLDER), package]
            FOLDER.mkdir(exist_ok=True)
            done = subprocess.run(install, check=False, capture_output=True, text=True)
            if done.returncode:
                print(f"{name} is left out: {done.stderr.strip()[-500:]}", file=sys.stderr)
                continue
        version = json.loads((home / "package.json").read_text(encoding="utf-8"))["version"]
        yield Program(name, version, _command_of(name), {"claude": "Bash", "pi": "bash"}[name])


def _command_of(name: str) -> tuple[str, ...]:
    env = [shutil.which("env") or "/usr/bin/env", *(f"{key}={value}" for key, value in _QUIET.items())]
    program = [*env, str(FOLDER / "node_modules" / ".bin" / name), "-p"]
    if name == "claude":
        return (*program, "hi", "--model", MODEL, "--allowedTools", "Bash")
    return (*program, "--provider", "anthropic", "--model", MODEL, "--thinking", "off", "hi")


def _in_turn(
    programs: Sequence[Program], measure: Callable[[Program], list[float]], runs: int
) -> dict[Program, list[float]]:
    """The medians of each program's figures. The programs take turns, and the first run of each does not count."""
    taken: dict[Program, list[list[float]]] = {program: [] for program in programs}
    for _ in range(runs + 1):
        for program in programs:
            taken[program].append(measure(program))
    return {
        program: [figure(column).median for column in zip(*rows[1:], strict=True)]
        for program, rows in taken.items()
    }


def _one_turn(program: Program) -> list[float]:
    with _Server(_answer, program.tool, 0) as server, workplace(server.base_url) as place:
        configure(place)
        measured = place.measure(program.command)
    return [measured.wall_s, measured.cpu_s, measured.peak_mb]


def gap_ms(program: Program, prepare: Callable[[Workplace], object] = lambda _: None) -> float:
    """The median time in ms from one request of the conversation to the next. One command runs in between, and all
    commands are different. `prepare` is called before the program starts.
    """
    with conversation(program, COMMANDS) as (server, place):
        prepare(place)
        place.measure(program.command)
        times_s = server.times_s()
    gaps_ms = [(after - before) * 1000 for before, after in pairwise(times_s)]
    if len(gaps_ms) != COMMANDS:
        raise SystemExit(f"{program.name} sent {len(times_s)} requests, not {COMMANDS + 1}")
    return figure(gaps_ms[1:]).median


@contextmanager
def conversation(program: Program, commands: int) -> Iterator[tuple[_Server, Workplace]]:
    """A server that makes the program run so many commands, and a place for that."""
    with _Server(_answer, program.tool, commands) as server, workplace(server.base_url) as place:
        configure(place)
        yield server, place


def _stream(program: Program) -> list[float]:
    with _Server(_stream_apart, program.tool, 0) as server, workplace(server.base_url) as place:
        configure(place)
        measured = place.measure(program.command)
    return [measured.wall_s, measured.cpu_s]


def configure(place: Workplace) -> None:
    """Writes the server's address into a file, because `pi` reads it from there and not from the environment."""
    folder = place.home / ".pi" / "agent"
    folder.mkdir(parents=True)
    models = {"providers": {"anthropic": {"baseUrl": place.base_url}}}
    (folder / "models.json").write_text(json.dumps(models), encoding="utf-8")


class _Server:
    """A server in a process of its own, in which `serve` runs."""

    def __init__(self, serve: Callable[[Connection, str, int], None], tool: str, commands: int) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=serve, args=(theirs, tool, commands), daemon=True)
        self._process.start()
        theirs.close()
        address = self._pipe.recv()
        self.base_url = address if isinstance(address, str) else f"http://127.0.0.1:{address}"

    def times_s(self) -> list[float]:
        """The time at which each request of the conversation arrived, on the system-wide monotonic clock."""
        self._pipe.send("times")
        times_s: list[float] = self._pipe.recv()
        return times_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def _answer(pipe: Connection, tool: str, commands: int) -> None:
    """Serves answers that call one command each, and after `commands` of them a final answer. The number of answers
    in a request's conversation decides which answer is next. Requests cannot be counted for that, because some
    programs send other requests as well.
    """

    def play(request: RecordedRequest, _index: int) -> Turn:
        number = sum(message["role"] == "assistant" for message in request.json()["messages"])
        if number >= commands:
            return Turn("Done.")
        return Turn([ToolUse(tool, {"command": f"echo {number}", "description": "say a number"})])

    with MockApi(script=play) as server:
        pipe.send(server.base_url)
        while pipe.recv():
            pipe.send([request.monotonic_s for request in server.requests if request.body_bytes])


def _stream_apart(pipe: Connection, _tool: str, _commands: int) -> None:
    send_apart(pipe)


if __name__ == "__main__":
    main()
