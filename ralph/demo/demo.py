"""`ralph demo`: a broken project, a loopback server that misbehaves, and the ordinary `ralph run` against it.

Nothing here is a special path of the loop: it prepares a directory and a server, calls the same command that
users call, looks whether the tests pass now, and adds up what happened.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from importlib.resources import as_file, files
from pathlib import Path

from ralph.core.events import Event, RetryScheduled, RunEnded, ToolFinished
from ralph.core.outcome import Outcome
from ralph.demo.script import DemoScript
from ralph.mock_api import MockApi
from ralph.run_command import RunCommand
from ralph.run_options import RunOptions
from ralph.run_session import SessionOptions

TASK = "A test of this project fails. Find out why, fix the code (not the test), run the tests, and commit."
MODEL = "claude-sonnet-5-5"

INTRODUCTION = """\
ralph demo: an agent fixes a failing test in {directory}

  scripted   what the model says, and the API's behaviour: it rate-limits (429), is overloaded (529) and
             cuts one answer off inside a tool call
  real       the loop, the HTTP connection (127.0.0.1:{port}), the retries and their waits{speed}, the tools,
             the files, the tests, git

Task: {task}
"""

# It takes about 6 s; a machine on which it hangs should hear of it.
LONGEST_S = 300

# Nothing of the user's reaches the demo: their key, their endpoint, their settings.
_FOREIGN_PREFIXES = ("ANTHROPIC_", "RALPH_", "BASH_DEFAULT_", "BASH_MAX_", "GIT_")


def run_demo(*, speed: float, keep: bool) -> int:
    """Play the demo; the run's exit code, or 1 when the tests do not pass afterwards. Takes about 6 s."""
    room = Path(tempfile.mkdtemp(prefix="ralph-demo-"))
    try:
        return _play(room, speed)
    finally:
        os.chdir("/")
        if keep:
            _say(f"\nKept: {room / 'invoice'}")
        else:
            shutil.rmtree(room, ignore_errors=True)


def _play(room: Path, speed: float) -> int:
    project = room / "invoice"
    has_git = shutil.which("git") is not None
    environment = _environment(room)
    _make_project(project, environment, has_git=has_git)
    summary = _Summary()
    with MockApi(script=DemoScript(has_git)) as server:
        sped = f" (divided by {speed:g})" if speed != 1 else ""
        introduction = INTRODUCTION.format(directory=project, port=server.port, speed=sped, task=TASK)
        _say(introduction)
        command = RunCommand(
            RunOptions(
                prompt=TASK,
                directory=str(project),
                session=SessionOptions(directory=room / "sessions"),
                settings={
                    "model.base_url": server.base_url,
                    "model.name": MODEL,
                    "limits.max_time_s": LONGEST_S,
                },
                speed=speed,
                reads_stdin=False,
            ),
            environment,
        )
        command.on_event = summary.saw
        code = command.execute()
        requests = len(server.requests)
    ended = command.ended
    if ended is None or ended.outcome is not Outcome.COMPLETED:
        return code
    tests_pass = _tests_pass(project, environment)
    _say(summary.text(ended, requests, tests_pass=tests_pass))
    return code if tests_pass else Outcome.TASK_FAILED.exit_code()


class _Summary:
    """Counts what happened from the run's events."""

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()
        self._tools: Counter[str] = Counter()

    def saw(self, event: Event) -> None:
        if isinstance(event, RetryScheduled):
            self._failures[str(event.status or event.kind)] += 1
        elif isinstance(event, ToolFinished):
            self._tools[event.call.name] += 1

    def text(self, ended: RunEnded, requests: int, *, tests_pass: bool) -> str:
        tokens = ended.usage.tokens
        return "\n".join(
            [
                "",
                f"  turns              {ended.num_turns}",
                f"  requests           {requests}",
                f"  retries survived   {ended.retries}  ({_counted(self._failures)})",
                f"  seconds waited     {ended.waited_s:.1f}",
                f"  tool calls         {sum(self._tools.values())}  ({_counted(self._tools)})",
                f"  tokens             {tokens.prompt:,} in, {tokens.output:,} out (scripted)",
                f"  time               {ended.duration_s:.1f} s",
                f"  tests              {'pass' if tests_pass else 'FAIL'} (run once more, by the demo itself)",
                "",
                'Now your own task: set ANTHROPIC_API_KEY, then  ralph "..."',
                '(not installed? in the clone:  python3 quickstart.py run "...")',
            ]
        )


def _say(text: str) -> None:
    with suppress(BrokenPipeError):  # a reader that left does not stop the demo
        print(text, flush=True)  # noqa: T201 - a command's own words


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} x{number}" if number > 1 else name for name, number in counter.items())


def _make_project(project: Path, environment: dict[str, str], *, has_git: bool) -> None:
    with as_file(files("ralph.demo") / "project") as template:
        shutil.copytree(template, project, ignore=shutil.ignore_patterns("__pycache__"))
    (project / ".gitignore").write_text("__pycache__/\n")
    if not has_git:
        return
    for arguments in (
        ["init", "-q"],
        ["config", "user.name", "ralph demo"],
        ["config", "user.email", "demo@localhost"],
        ["config", "commit.gpgsign", "false"],
        ["config", "core.hooksPath", "/dev/null"],
        ["add", "-A"],
        ["commit", "-qm", "An invoice program with a failing test"],
    ):
        subprocess.run(["git", *arguments], cwd=project, env=environment, check=True, capture_output=True)


def _environment(room: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN_PREFIXES)}
    return {**kept, "XDG_CONFIG_HOME": str(room / "config")}


def _tests_pass(project: Path, environment: dict[str, str]) -> bool:
    ran = subprocess.run(
        [sys.executable, "-m", "unittest", "-q"],
        cwd=project,
        env=environment,
        check=False,
        capture_output=True,
    )
    return ran.returncode == 0
