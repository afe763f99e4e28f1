#!/usr/bin/env python3
"""Makes a virtual environment for ralph beside this file and runs ralph in it. Needs only Python >= 3.11.

    python3 quickstart.py demo       set up, and watch the main job
    python3 quickstart.py test       set up, and pass the tests
    python3 quickstart.py test-busy  set up, and pass the tests while six busy programs run beside them
    python3 quickstart.py check      set up, and lint and type-check
    python3 quickstart.py soak       set up, and play thousands of broken turns (minutes)
    python3 quickstart.py nemesis    set up, and kill hundreds of runs and resume them (minutes)
    python3 quickstart.py run "..."  set up, and do a task: `ralph run "..."`
    python3 quickstart.py doctor     set up, and run any other ralph command: doctor, sessions ls, mock-api, ...

The environment is made once, with uv if that is installed, and again when pyproject.toml changes.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
OLDEST_PYTHON = (3, 11)
SIGN_OF_LIFE_S = 15

# Three processes for two processors, because many tests wait for something. They disturb each other a little: a third one on
# two processors takes a sixth more CPU time. Each also collects all tests, for five seconds.
SIDE_BY_SIDE = ["-n", str(min(max(3 * (os.cpu_count() or 1) // 2, 2), 6)), "--dist", "worksteal"]

# The script that pip 23 writes for a command imports `re`, a quarter of the time of `ralph --version`. That of pip 26 does
# not, and benchmarks measure what users have. Where no newer pip is to be had, the older one does.
NEWEST_PIP = "pip>=26"

# These need what developers need.
DEVELOPER_COMMANDS = {
    "test": [["-m", "pytest", *SIDE_BY_SIDE]],
    "test-busy": [["-m", "tests.busy", *SIDE_BY_SIDE]],
    "soak": [["-m", "tests.soak"]],
    "nemesis": [["-m", "tests.nemesis"]],
    "check": [["-m", "ruff", "check", "."], ["-m", "ruff", "format", "--check", "."], ["-m", "mypy"]],
}


RALPH_COMMANDS = (
    "run",
    "loop",
    "doctor",
    "demo",
    "mock-api",
    "sessions",
    "report",
    "fleet",
    "help",
    "completion",
)


class SetupError(Exception):
    """The virtual environment could not be made. The message is one line that contains advice."""


def main() -> int:
    """Makes the virtual environment that the first argument needs, runs the command and returns its exit
    code.
    """
    if sys.version_info < OLDEST_PYTHON:
        return complain(
            f"ralph needs Python 3.11 or newer; this is {sys.version.split()[0]} ({sys.executable})"
        )
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())  # noqa: T201
        return 0 if len(sys.argv) > 1 else 2
    word, rest = sys.argv[1], sys.argv[2:]
    if not (word in DEVELOPER_COMMANDS or word in RALPH_COMMANDS or word.startswith("-")):
        words = (*DEVELOPER_COMMANDS, *RALPH_COMMANDS)
        near = difflib.get_close_matches(word, words, n=1)
        advice = f"did you mean {near[0]}?" if near else 'a task is: quickstart.py run "..."'
        complain(f"{word!r} is none of {', '.join(words)}; {advice}")
        return 2
    commands = DEVELOPER_COMMANDS.get(word)
    try:
        python = set_up(
            HERE / (".venv-run" if commands is None else ".venv-dev"), developer=commands is not None
        )
    except SetupError as error:
        return complain(str(error))
    if commands is None:
        become([str(Path(python).with_name("ralph")), word, *rest])
    os.chdir(HERE)
    *first, last = commands
    if word == "test" and not rest:
        tell("running all tests takes 5 to 30 minutes; `quickstart.py test tests/retry` runs a folder")
    for command in first:
        if code := subprocess.call([python, *command, *rest]):
            return code
    return become([python, *last, *rest])


def become(command: list[str]) -> NoReturn:
    """Replaces this process by the command, so that signals and the exit code are the command's."""
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def set_up(directory: Path, *, developer: bool) -> str:
    """Makes the virtual environment if it is missing or outdated, and returns the path of its Python. Raises
    SetupError.
    """
    python = directory / "bin" / "python"
    stamp = directory / "ready"
    try:
        project = (HERE / "pyproject.toml").read_bytes()
    except FileNotFoundError:
        raise SetupError(f"{HERE} has no pyproject.toml: run quickstart.py inside a clone of ralph") from None
    wanted = hashlib.sha256(project + sys.version.encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    if Path(sys.prefix).resolve() == directory:
        raise SetupError(f"{directory.name} is outdated, and its own Python cannot replace it: use python3")
    tell(f"setting up {directory.name} (once, one to five minutes)")
    shutil.rmtree(directory, ignore_errors=True)
    package = f"{HERE}[dev]" if developer else str(HERE)
    for command in commands_to_make(directory, python, package):
        if run_alone(command) != 0 and command[-1] != NEWEST_PIP:
            raise SetupError(
                f"{directory.name} could not be made; the reason is in the lines above, which this command printed "
                f"(if pip reached no package index, check the network): {' '.join(command)}"
            )
    stamp.write_text(wanted)
    return str(python)


def run_alone(command: list[str]) -> int:
    """Runs a command that Ctrl-C does not reach: it would print a traceback. It is killed instead, with its children."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        began_s = time.monotonic()
        try:
            while True:
                try:
                    return process.wait(SIGN_OF_LIFE_S)
                except subprocess.TimeoutExpired:
                    tell(f"still setting up, {time.monotonic() - began_s:.0f} s so far")
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def commands_to_make(directory: Path, python: Path, package: str) -> list[list[str]]:
    """The commands that make the virtual environment: with uv if it is installed, otherwise with venv and
    pip.
    """
    uv = shutil.which("uv")
    if uv is not None:
        return [
            [uv, "venv", "--quiet", "--python", sys.executable, str(directory)],
            [uv, "pip", "install", "--quiet", "--python", str(python), "--editable", package],
        ]
    if importlib.util.find_spec("ensurepip") is None:
        raise SetupError(
            "this Python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv"
        )
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    return [
        [sys.executable, "-m", "venv", str(directory)],
        [*pip, "--upgrade", NEWEST_PIP],
        [*pip, "--editable", package],
    ]


def tell(message: str) -> None:
    """Prints one line for the user, at once."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201


def complain(message: str) -> int:
    """Prints one line for the user. Returns the exit code of a failure."""
    tell(f"quickstart: {message}")
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        complain("stopped; the next start begins anew")
        sys.exit(130)
