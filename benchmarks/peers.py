"""Compares ralph with other agents, which all talk to the same scripted server. Measures one turn, the gap between
two turns, and an answer of 20,000 deltas. Prints a Markdown table of medians.

The other agents are `claude`, `codex exec` and `pi` in the versions of `PACKAGES`, which npm installs into `.peers`. Codex
speaks OpenAI's Responses API, the others the Messages API. Each program runs one prompt without a person, in an empty
directory and with an empty home directory. Updates and telemetry are turned off, and nothing is sent to a real API. The
programs are measured by turns.
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
PACKAGES = {
    "claude": ("@anthropic-ai/claude-code", "2.1.332"),
    "codex": ("@openai/codex", "0.171.0"),
    "pi": ("@mariozechner/pi-coding-agent", "0.73.1"),
}
"""Each agent's package of npm, with its version."""
MODEL = "claude-sonnet-4-5"
CODEX_MODEL = "gpt-5.3-codex"
SHELLS = {"claude": "Bash", "codex": "exec_command", "pi": "bash"}
"""The name that each agent gives to the tool that runs a command."""
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
    # The server of the deltas speaks the Messages API alone.
    streams = _in_turn([one for one in programs if one.name != "codex"], _stream, STREAM_RUNS)
    print(f"\n{datetime.now(tz=UTC):%Y-%m-%d}, medians of {RUNS} runs (deltas: {STREAM_RUNS}):\n")
    print("| | one turn: wall | CPU | memory | gap, `echo` | 20,000 deltas: wall | CPU |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for program in programs:
        wall_s, cpu_s, peak_mb = turns[program]
        deltas = (
            " | ".join(f"{took_s:.2f} s" for took_s in streams[program]) if program in streams else "- | -"
        )
        print(
            f"| {program.name} {program.version}".rstrip()
            + f" | {wall_s:.2f} s | {cpu_s:.2f} s | {peak_mb:.0f} MB | {gaps[program][0]:.1f} ms | {deltas} |"
        )


def installed_peers(names: Sequence[str] = tuple(PACKAGES)) -> Iterator[Program]:
    """Yields the other agents, and installs them if necessary. If one cannot be installed, leaves it out and prints
    the reason to standard error.
    """
    npm = shutil.which("npm")
    for name, (package, version) in PACKAGES.items():
        if name not in names:
            continue
        if _installed_version(package) != version:
            if npm is None:
                print(f"{name} is left out: there is no npm on PATH", file=sys.stderr)
                continue
            install = [
                npm,
                "install",
                "--no-audit",
                "--no-fund",
                "--prefix",
                str(FOLDER),
                f"{package}@{version}",
            ]
            FOLDER.mkdir(exist_ok=True)
            done = subprocess.run(install, check=False, capture_output=True, text=True)
            if done.returncode:
                print(f"{name} is left out: {done.stderr.strip()[-500:]}", file=sys.stderr)
                continue
        yield Program(name, version, _command_of(name), SHELLS[name])


def _installed_version(package: str) -> str | None:
    about = FOLDER / "node_modules" / package / "package.json"
    return str(json.loads(about.read_text(encoding="utf-8"))["version"]) if about.exists() else None


def _command_of(name: str) -> tuple[str, ...]:
    env = [shutil.which("env") or "/usr/bin/env", *(f"{key}={value}" for key, value in _QUIET.items())]
    program = [*env, str(FOLDER / "node_modules" / ".bin" / name)]
    if name == "claude":
        return (*program, "-p", "hi", "--model", MODEL, "--allowedTools", "Bash")
    if name == "codex":
        return (*program, "exec", "--skip-git-repo-check", "hi")
    return (*program, "-p", "--provider", "anthropic", "--model", MODEL, "--thinking", "off", "hi")


def call_of(tool: str, command: str) -> ToolUse:
    """The call with which an agent runs a command by its tool of this name."""
    if tool == SHELLS["codex"]:
        return ToolUse(tool, {"cmd": command})
    return ToolUse(tool, {"command": command, "description": "run it"})


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
    """Writes the server's address into files, because pi and codex read it from there and not from the environment."""
    models = {"providers": {"anthropic": {"baseUrl": place.base_url}}}
    _write(place.home / ".pi" / "agent" / "models.json", json.dumps(models))
    provider = f'name = "local"\nwire_api = "responses"\nbase_url = "{place.base_url}/v1"\nenv_key = "ANTHROPIC_API_KEY"\n'
    _write(
        place.home / ".codex" / "config.toml",
        f'model = "{CODEX_MODEL}"\nmodel_provider = "local"\ncheck_for_update_on_startup = false\n'
        f"[analytics]\nenabled = false\n[model_providers.local]\n{provider}",
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")


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
        number = sum(message["role"] == "assistant" for message in request.messages())
        return Turn("Done.") if number >= commands else Turn([call_of(tool, f"echo {number}")])

    with MockApi(script=play) as server:
        pipe.send(server.base_url)
        while pipe.recv():
            pipe.send([request.monotonic_s for request in server.requests if request.body_bytes])


def _stream_apart(pipe: Connection, _tool: str, _commands: int) -> None:
    send_apart(pipe)


if __name__ == "__main__":
    main()
