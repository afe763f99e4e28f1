"""Plays `ralph demo`: ralph repairs a broken project while a local server simulates faults of the API.

The demo prepares a directory and a server, and runs the same command that users run. Then it checks whether the
project's tests pass, and shows a summary of the events. A run has no special code for the demo, except that
`RunOptions.speed` shortens the waits of the run.
"""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.demo.loop_play import PROJECT as LOOP_PROJECT
from ralph.demo.loop_play import play_loop
from ralph.demo.stages import STAGES
from ralph.demo.summary import Summary
from ralph.demo.workplace import has_git, make_environment, make_project, tests_pass
from ralph.machine.inbox import STOP_SIGNALS
from ralph.machine.trees import remove_tree_if_possible
from ralph.run.command import run_command
from ralph.run.options import RunOptions, SessionOptions
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from ralph.demo.stages import Stage

PROJECT = "invoice"
LOOP = "loop"
SCENARIOS = (*STAGES, LOOP)

TASK = "A test of this project fails. Find out why, fix the code (not the test), run the tests, and commit."

INTRODUCTION = """\
ralph demo: an agent fixes a failing test in {directory}

{about}
Task: {task}
"""

_IS_GONE = "\nThe demo's directory is removed, so there is nothing to go on with (--keep leaves it)."

# The time limit of the demo's run, in seconds. The run takes 10 s at most, unless something hangs.
LONGEST_S = 300


class _Stopped(BaseException):
    """A signal arrived at a time when no ralph command was running that could handle the signal."""

    def __init__(self, signal_number: int) -> None:
        super().__init__()
        self.exit_code = 128 + signal_number


def run_demo(*, scenario: str = "fix", speed: float, keep: bool, say: Callable[[str], None]) -> int:
    """Plays the demo. This takes 4 to 10 s. Returns the exit code of the command. If the command succeeds but the
    project's tests do not pass, returns 1. `scenario` is one of `SCENARIOS`. `say` prints a text on standard output.
    """
    project = LOOP_PROJECT if scenario == LOOP else PROJECT
    try:
        with _room(project if keep else None, say) as room:
            code = play_loop(room, speed, say) if scenario == LOOP else _play(scenario, room, speed, say)
    except _Stopped as stop:
        code = stop.exit_code
    if code and not keep:
        say(_IS_GONE)
    return code


@contextmanager
def _room(keeps: str | None, say: Callable[[str], None]) -> Iterator[Path]:
    """A context manager that creates a temporary directory. At the end, it removes the directory, even after a
    signal.

    Inside the context, a signal raises `_Stopped`. `keeps` is the name of an entry in the directory. If it is not
    None, nothing is removed at the end, and the user is told the path of that entry.
    """

    def stop(signal_number: int, _frame: FrameType | None) -> None:
        raise _Stopped(signal_number)

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    heard = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    room = Path(tempfile.mkdtemp(prefix="ralph-demo-"))
    try:
        for number in heard:
            signal.signal(number, stop)
        yield room
    finally:
        for number in heard:  # signals are ignored during the cleanup, which takes only a moment
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")
        if keeps is not None:
            say(f"\nKept: {room / keeps}")
        else:
            remove_tree_if_possible(room)
        for number in heard:
            signal.signal(number, before[number] or signal.SIG_DFL)


def _play(scenario: str, room: Path, speed: float, say: Callable[[str], None]) -> int:
    project = room / PROJECT
    environment = make_environment(room)
    make_project("project", project, environment)
    summary = Summary()
    with STAGES[scenario](room, speed, has_git()) as stage:
        say(INTRODUCTION.format(directory=project, about=stage.about, task=TASK))
        options = _options(stage, room, project)
        code = run_command(options, {**environment, **stage.environment}, summary, *stage.watchers)
    ended = summary.ended
    if code or ended is None:
        return code
    passes = tests_pass(project, environment)
    unsped_wait_s = ended.waited_s * stage.speed if stage.stands_for_a_night else None
    say(summary.text(ended, stage.request_count, tests_pass=passes, unsped_wait_s=unsped_wait_s))
    return code if passes else Outcome.TASK_FAILED.exit_code()


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
