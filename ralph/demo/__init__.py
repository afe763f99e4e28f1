"""Plays `ralph demo`: runs the same command that users run on a broken project, while a local server simulates faults
of the API, and sums up the run from its events. `RunOptions.speed` alone is special: it shortens waits.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.demo.loop_play import PROJECT as LOOP_PROJECT
from ralph.demo.loop_play import play_loop
from ralph.demo.stages import STAGES, has_git, make_environment, make_project, tests_pass
from ralph.machine.files.trees import remove_tree_if_possible
from ralph.machine.waiter import STOP_SIGNALS
from ralph.run.command import run_command
from ralph.run.options import RunOptions, SessionOptions
from ralph.values.events import (
    AttemptEnded,
    Event,
    ModelFallback,
    ModelFallbackRecovered,
    RetryScheduled,
    RunEnded,
    RunStarted,
    ToolFinished,
)
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


class Summary:
    def __init__(self) -> None:
        self._has_targets = False
        self._failures: Counter[str] = Counter()
        self._retried: Counter[str] = Counter()
        self._tools: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._changes: list[str] = []
        self._key_changes: Counter[str] = Counter()
        self._failed: AttemptEnded | None = None
        self.ended: RunEnded | None = None

    def emit(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._has_targets = bool(event.targets)
            case AttemptEnded():
                before, self._failed = self._failed, event if event.kind else None
                # If an attempt at the same target follows a failed one without a retry between them, it used another key.
                if before is not None and before.target == event.target:
                    self._key_changes[event.target] += 1
                if event.kind is None:
                    self._turns[f"{event.target} ({event.model})"] += 1
                else:
                    self._failures[f"{event.target} {event.status or event.kind}"] += 1
            case RetryScheduled():
                self._retried[str(event.status or event.kind)] += 1
                self._failed = None
            case ToolFinished():
                self._tools[event.call.name] += 1
            case ModelFallback():
                self._changes.append(f"{event.from_target} -> {event.to_target} ({event.reason})")
            case ModelFallbackRecovered():
                self._changes.append(f"back on {event.target}")
            case RunEnded():
                self.ended = event

    def text(
        self, ended: RunEnded, requests: int, *, tests_pass: bool, unsped_wait_s: float | None = None
    ) -> str:
        """`unsped_wait_s` are the seconds of the waits without `speed`. None leaves them out."""
        tokens = ended.usage.tokens
        longer = f"  ({unsped_wait_s:.0f} in reality)" if unsped_wait_s is not None else ""
        return "\n".join(
            [
                "",
                f"  turns              {ended.num_turns}",
                f"  requests           {requests}",
                *self._of_targets(),
                f"  retries survived   {ended.retries}{_in_brackets(self._retried)}",
                f"  seconds waited     {ended.waited_s:.1f}{longer}",
                f"  tool calls         {sum(self._tools.values())}{_in_brackets(self._tools)}",
                f"  tokens             {tokens.prompt:,} in, {tokens.output:,} out (scripted)",
                f"  time               {ended.duration_s:.1f} s",
                f"  tests              {'pass' if tests_pass else 'FAIL'} (run once more, by the demo itself)",
                "",
                'Now your own task: set ANTHROPIC_API_KEY, then  ralph "..."',
                '(not installed? in the clone:  python3 quickstart.py run "...")',
            ]
        )

    def _of_targets(self) -> Iterator[str]:
        if not self._has_targets:
            return
        yield f"  turns answered by  {_counted(self._turns)}"
        yield f"  failures survived  {sum(self._failures.values())}{_in_brackets(self._failures)}"
        yield f"  changes of target  {len(self._changes)}  ({', '.join(self._changes)})"
        yield f"  changes of key     {sum(self._key_changes.values())}{_in_brackets(self._key_changes)}"


def _in_brackets(counter: Counter[str]) -> str:
    return f"  ({_counted(counter)})" if counter else ""


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} x{number}" if number > 1 else name for name, number in counter.items())


PROJECT = "invoice"
LOOP = "loop"
SCENARIOS = (*STAGES, LOOP)

TASK = "A test of this project fails. Find out why, fix the code (not the test), run the tests, and commit."

INTRODUCTION = """\
ralph demo: an agent fixes a failing test in {directory}

{about}
Task: {task}
"""

_IS_GONE = "\nThe demo's directory is removed, so there is nothing to resume (--keep leaves it)."

# The time limit of the demo's run, in seconds. The run takes 10 s at most, unless something hangs.
LONGEST_S = 300


class _Stopped(BaseException):
    """A signal arrived at a time when no ralph command was running that could handle the signal."""

    def __init__(self, signal_number: int) -> None:
        super().__init__()
        self.exit_code = 128 + signal_number


def run_demo(*, scenario: str = "fix", speed: float, keep: bool, say: Callable[[str], None]) -> int:
    """The exit code of the command, or 1 if it succeeds and the project's tests do not pass. Takes 4 to 10 s."""
    project = LOOP_PROJECT if scenario == LOOP else PROJECT
    try:
        with _directory(project if keep else None, say) as directory:
            code = (
                play_loop(directory, speed, say)
                if scenario == LOOP
                else _play(scenario, directory, speed, say)
            )
    except _Stopped as stop:
        code = stop.exit_code
    if code and not keep:
        say(_IS_GONE)
    return code


@contextmanager
def _directory(keeps: str | None, say: Callable[[str], None]) -> Iterator[Path]:
    """A temporary directory, in which a signal raises `_Stopped`. It is removed at the end, also after a signal,
    unless `keeps` names an entry of it: then the user is told its path.
    """

    def stop(signal_number: int, _frame: FrameType | None) -> None:
        raise _Stopped(signal_number)

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    heard = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    directory = Path(tempfile.mkdtemp(prefix="ralph-demo-"))
    try:
        for number in heard:
            signal.signal(number, stop)
        yield directory
    finally:
        for number in heard:  # signals are ignored during the cleanup, which takes only a moment
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")
        if keeps is not None:
            say(f"\nKept: {directory / keeps}")
        else:
            remove_tree_if_possible(directory)
        for number in heard:
            signal.signal(number, before[number] or signal.SIG_DFL)


def _play(scenario: str, directory: Path, speed: float, say: Callable[[str], None]) -> int:
    project = directory / PROJECT
    environment = make_environment(directory)
    make_project("project", project, environment)
    summary = Summary()
    with STAGES[scenario](directory, speed, has_git()) as stage:
        say(INTRODUCTION.format(directory=project, about=stage.about, task=TASK))
        options = RunOptions(
            prompt=TASK,
            directory=str(project),
            config_file=str(stage.config_file) if stage.config_file is not None else None,
            session=SessionOptions(directory=directory / "sessions"),
            settings={**stage.settings, "limits.max_time_s": LONGEST_S},
            speed=stage.speed,
            reads_stdin=False,
        )
        code = run_command(options, {**environment, **stage.environment}, summary, *stage.watchers)
    ended = summary.ended
    if code or ended is None:
        return code
    passes = tests_pass(project, environment)
    unsped_wait_s = ended.waited_s * stage.speed if stage.stands_for_hours else None
    say(summary.text(ended, stage.request_count, tests_pass=passes, unsped_wait_s=unsped_wait_s))
    return code if passes else Outcome.TASK_FAILED.exit_code()
