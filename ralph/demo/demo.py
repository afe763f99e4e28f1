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
from contextlib import suppress
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.core.outcome import Outcome
from ralph.demo.stages import STAGES
from ralph.demo.summary import Summary
from ralph.run_command import RunCommand
from ralph.run_options import RunOptions
from ralph.run_session import SessionOptions

if TYPE_CHECKING:
    from ralph.core.events import Event
    from ralph.demo.stages import Stage

TASK = "A test of this project fails. Find out why, fix the code (not the test), run the tests, and commit."

INTRODUCTION = """\
ralph demo: an agent fixes a failing test in {directory}

{about}
Task: {task}
"""

# It takes 10 s at most; a machine on which it hangs should hear of it.
LONGEST_S = 300

# Nothing of the user's reaches the demo: their key, their endpoint, their settings.
_FOREIGN_PREFIXES = ("ANTHROPIC_", "RALPH_", "BASH_DEFAULT_", "BASH_MAX_", "GIT_")


def run_demo(*, scenario: str = "fix", speed: float, keep: bool) -> int:
    """Play the demo; the run's exit code, or 1 when the tests do not pass afterwards. Takes 4 to 10 s.

    `scenario`: one of `STAGES`.
    """
    room = Path(tempfile.mkdtemp(prefix="ralph-demo-"))
    try:
        return _play(scenario, room, speed)
    finally:
        os.chdir("/")
        if keep:
            _say(f"\nKept: {room / 'invoice'}")
        else:
            shutil.rmtree(room, ignore_errors=True)


def _play(scenario: str, room: Path, speed: float) -> int:
    project = room / "invoice"
    has_git = shutil.which("git") is not None
    environment = _environment(room)
    _make_project(project, environment, has_git=has_git)
    summary = Summary()
    with STAGES[scenario](room, speed, has_git) as stage:
        _say(INTRODUCTION.format(directory=project, about=stage.about, task=TASK))
        command = RunCommand(_options(stage, room, project), {**environment, **stage.environment})

        def saw(event: Event) -> None:
            summary.saw(event)
            stage.on_event(event)

        command.on_event = saw
        code = command.execute()
    ended = command.ended
    if ended is None or ended.outcome is not Outcome.COMPLETED:
        return code
    tests_pass = _tests_pass(project, environment)
    unsped_wait_s = ended.waited_s * stage.speed if stage.stands_for_a_night else None
    _say(summary.text(ended, stage.request_count, tests_pass=tests_pass, unsped_wait_s=unsped_wait_s))
    return code if tests_pass else Outcome.TASK_FAILED.exit_code()


def _options(stage: Stage, room: Path, project: Path) -> RunOptions:
    return RunOptions(
        prompt=TASK,
        directory=str(project),
        config_file=str(stage.config_file) if stage.config_file is not None else None,
        session=SessionOptions(directory=room / "sessions"),
        settings={**stage.settings, "limits.max_time_s": LONGEST_S},
        speed=stage.speed,
        reads_stdin=False,
    )


def _say(text: str) -> None:
    with suppress(BrokenPipeError):  # a reader that left does not stop the demo
        print(text, flush=True)  # noqa: T201 - a command's own words


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
