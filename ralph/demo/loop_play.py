"""Plays `ralph demo --scenario loop`: `ralph loop` does the three tasks of a plan, while the API is down for some time.

The number of failed runs, read from the loop's record, decides when the server stops and starts: the server cannot
count attempts to connect while its port is closed.
"""

from __future__ import annotations

import re
from contextlib import suppress
from shlex import quote
from textwrap import indent
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from ralph.demo.stages import (
    MODEL,
    OUTAGE_SPEED,
    OVERLOADED,
    RUN_TESTS,
    has_git,
    last_result,
    make_environment,
    make_project,
    reports_that_tests_pass,
    results,
    tests_pass,
    usage,
)
from ralph.loop.command import loop_command
from ralph.loop.record import LoopStore, RecordError
from ralph.loop.values import LoopLimits, LoopOptions, LoopPlan
from ralph.mock_api import MockApi, Playable, RecordedRequest, Step, Text, Thinking, ToolUse, Turn
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import TracebackType

    from ralph.loop.state import CurrentIteration

OUTAGE_BEGINS = (2, 1)
"""The iteration, and the number of answers in it, after which the API is overloaded."""
_GONE_AFTER = 1
"""The server stops when this number of runs in an iteration have ended with exit code 75."""
_BACK_AFTER = 2

# The seconds between two looks at the loop's record. A run takes ten times as long to start, so none comes in
# between.
_LOOKS_EVERY_S = 0.02


class LoopOutage:
    """A context manager that runs the demo's server. Inside the context the server runs, except during the outage."""

    def __init__(self, store: LoopStore, *, has_git: bool) -> None:
        self._store = store
        self._has_git = has_git
        self._servers: list[MockApi] = []
        self._is_over = Event()
        self._watch = Thread(target=self._follow, name="demo-outage", daemon=True)

    def __enter__(self) -> Self:
        first = MockApi(script=LoopScript(self._has_git, OUTAGE_BEGINS)).start()
        self._servers.append(first)
        self.port, self.base_url = first.port, first.base_url
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._watch.join()
        self._servers[-1].close()

    def _follow(self) -> None:
        is_gone = False
        while not self._is_over.wait(_LOOKS_EVERY_S):
            current = self._current()
            if current is None:
                continue
            if not is_gone and current.outages >= _GONE_AFTER:
                self._servers[0].close()
                is_gone = True
            elif len(self._servers) == 1 and current.outages >= _BACK_AFTER:
                with suppress(OSError):
                    self._servers.append(MockApi(script=LoopScript(self._has_git), port=self.port).start())

    def _current(self) -> CurrentIteration | None:
        try:
            return self._store.newest().load().current
        except RecordError:  # there is no record yet
            return None


PROJECT = "duration"
_PROMPT = "PROMPT_build.md"
_MOST_ITERATIONS = 5
# An iteration takes 1 s. If one hangs, the loop must still end.
_LONGEST_S = 60.0

_OUTAGE_WAITS_S = (1.0, 2.0)

_ABOUT = """\
ralph demo: `ralph loop` does the {tasks} open tasks of a project whose tests pass, in {directory}

  scripted   what the model says, its tokens (so the costs are made up), and an outage in iteration 2: the API is
             overloaded (529), then nobody listens at its port (127.0.0.1:{port}) for a while
  real       the loop, its iterations (each a `ralph run` process that knows only its prompt), the gate, the
             plan, the waits, the session that is resumed after the outage, the HTTP connection, the tools, the files{git}
  prompt     {prompt}, the same for each iteration: take the first open task of {plan}, do it
             with a test, tick it, commit. The loop is done when no task is open and the tests (--gate) pass
  sped up    a second of the outage stands for {factor}. The lines show the seconds that pass here, and
             name the schedule they come from (loop.outage_waits_s)
  settings   {file}, passed by --config:

{settings}{no_git}
$ {command}
"""

_NO_GIT = """
  left out   there is no git on this machine, so nothing is committed, neither by the model nor by --commit.
             What an iteration has changed is told by hashes of the files
"""

_SETTINGS = """\
[model]
base_url = "{base_url}"
name = "{model}"

[retry]
policy = "off"  # an iteration gives up at its first error: it is the loop that waits

[loop]
outage_waits_s = {waits}  # in earnest {earnest}

[limits]
max_time_s = {longest_s:g}
"""

_NEXT = """
Now your own loop: `ralph loop init` writes prompts to begin with. Set ANTHROPIC_API_KEY, then
  ralph loop -f PROMPT_build.md --gate 'your tests' --plan IMPLEMENTATION_PLAN.md --commit --max-iterations 20"""


class _Play(Struct, frozen=True):
    directory: Path
    speed: float
    has_git: bool

    @property
    def project(self) -> Path:
        return self.directory / PROJECT

    @property
    def factor(self) -> float:
        return OUTAGE_SPEED * self.speed


def play_loop(directory: Path, speed: float, say: Callable[[str], None]) -> int:
    """The exit code of the loop, or 1 if it succeeds and the project's tests do not pass. Takes 7 s."""
    play = _Play(directory, speed, has_git())
    environment = make_environment(directory)
    make_project("loop_project", play.project, environment)
    store = LoopStore.to_read(environment, play.project)
    with LoopOutage(store, has_git=play.has_git) as outage:
        config_file = directory / "config.toml"
        config_file.write_text(
            _SETTINGS.format(
                base_url=outage.base_url,
                model=MODEL,
                waits=_listed(wait_s / play.speed for wait_s in _OUTAGE_WAITS_S),
                earnest=_listed(wait_s * OUTAGE_SPEED for wait_s in _OUTAGE_WAITS_S),
                longest_s=_LONGEST_S,
            )
        )
        plan = _plan(play, config_file)
        say(_about(play, plan, outage.port, config_file.read_text()))
        code = loop_command(LoopOptions(plan), environment)
    if code:
        return code
    passes = tests_pass(play.project, environment)
    say(f"\n  tests              {'pass' if passes else 'FAIL'} (run once more, by the demo itself)")
    say(_NEXT)
    return 0 if passes else Outcome.TASK_FAILED.exit_code()


def _plan(play: _Play, config_file: Path) -> LoopPlan:
    return LoopPlan(
        directory=str(play.project),
        launch_directory=str(play.project),
        prompt_file=str(play.project / _PROMPT),
        run_arguments=("--config", str(config_file)),
        config_file=str(config_file),
        gate=RUN_TESTS,
        plan=PLAN,
        plan_file=PLAN,
        check_timeout_s=_LONGEST_S,
        commits=play.has_git,
        limits=LoopLimits(max_iterations=_MOST_ITERATIONS),
    )


def _command(plan: LoopPlan) -> str:
    commit = " --commit" if plan.commits else ""
    return (
        f"ralph loop -f {_PROMPT}{commit} --max-iterations {plan.limits.max_iterations} \\\n"
        f"  --gate {quote(RUN_TESTS)} --plan {PLAN} {' '.join(map(quote, plan.run_arguments))}"
    )


def _listed(waits_s: Iterable[float]) -> str:
    """The waits as a list in TOML, without exponents."""
    shown = (f"{max(wait_s, 0.000001):.6f}".rstrip("0").rstrip(".") for wait_s in waits_s)
    return f"[{', '.join(shown)}]"


def _about(play: _Play, plan: LoopPlan, port: int, settings: str) -> str:
    return _ABOUT.format(
        tasks=len(TASKS),
        plan=PLAN,
        directory=play.project,
        port=port,
        git=", git" if play.has_git else "",
        factor="a minute" if play.speed == 1 else f"{play.speed:g} minutes",
        prompt=_PROMPT,
        file=plan.config_file,
        settings=indent(settings, " " * 13),
        no_git="" if play.has_git else _NO_GIT,
        command=_command(plan),
    )


# --- The scripted model
# The scripted model of `ralph demo --scenario loop`. In each iteration, it does the first open task of the plan: a
# test, the code, and the tick in the plan.
#
# The script knows only the request, because each iteration is a new conversation. If a tool fails, or if the plan has
# no open task that it knows, the model's answer says so.

_ITERATION = re.compile(r"\[ralph loop (\d+)")
PLAN = "IMPLEMENTATION_PLAN.md"
_OPEN_TASK = re.compile(r"- \[ \] (.+)")
_BEFORE_TESTS_END = '\n\n\nif __name__ == "__main__":'


class Task(Struct, frozen=True):
    """The actions of the scripted model for one task of the plan."""

    diagnosis: str
    old: str
    new: str
    test: str
    """A method for the project's tests, which fails before the change."""
    commit: str | None
    """The message of the commit, or None if the change is not committed."""
    closing: str
    """The first sentence of the model's last words."""


TASKS = {
    "Hours are read": Task(
        "The pattern knows hours, the table of units does not. I add them.",
        'UNIT_S = {"m": 60, "s": 1}',
        'UNIT_S = {"h": 3600, "m": 60, "s": 1}',
        'def test_hours_are_read(self):\n        self.assertEqual(as_seconds("1h02m"), 3720)',
        "Read hours",
        "Hours are read now.",
    ),
    "The seconds have two digits": Task(
        "Below ten the seconds lack a zero. I pad them.",
        "{minutes}m{seconds}s",
        "{minutes}m{seconds:02d}s",
        'def test_text_pads_the_seconds(self):\n        self.assertEqual(as_text(65), "1m05s")',
        None,
        "Pad the seconds with a zero.",
    ),
    "Text that is not a duration is refused": Task(
        "Text without a number and a unit counts as 0 seconds. I refuse it.",
        "    return sum(",
        '    if "".join(number + unit for number, unit in parts) != text or not parts:\n'
        '        raise ValueError(f"no duration: {text!r}")\n'
        "    return sum(",
        "def test_what_is_no_duration_is_refused(self):\n        with self.assertRaises(ValueError):\n"
        '            as_seconds("soon")',
        "Refuse what is not a duration",
        "Text that is not a duration is refused.",
    ),
}


def edits(name: str) -> list[dict[str, str]]:
    """The input of each call of Edit that does the task `name`: its test, the code, and the tick in the plan."""
    task = TASKS[name]
    return [
        {
            "file_path": "test_duration.py",
            "old_string": _BEFORE_TESTS_END,
            "new_string": f"\n\n    {task.test}{_BEFORE_TESTS_END}",
        },
        {"file_path": "duration.py", "old_string": task.old, "new_string": task.new},
        {"file_path": PLAN, "old_string": f"- [ ] {name}", "new_string": f"- [x] {name}"},
    ]


class LoopScript(Struct, frozen=True):
    """The model's script, which recognises the iteration and the turn from the request."""

    has_git: bool
    outage: tuple[int, int] | None = None
    """As `OUTAGE_BEGINS`. None if there is no outage."""

    def __call__(self, request: RecordedRequest, _index: int) -> Playable:
        messages = request.messages()
        prompt = _text_of(messages[0]) if messages else ""
        answered = sum(message["role"] == "assistant" for message in messages)
        iteration = _ITERATION.search(prompt)
        if iteration is not None and (int(iteration[1]), answered) == self.outage:
            return Step(None, OVERLOADED)
        return self._turn(messages, answered)

    def _turn(self, messages: list[dict[str, Any]], answered: int) -> Turn:
        if not answered:
            return _FIRST
        result = last_result(messages)
        read = "\n".join(str(block.get("content")) for block in results(messages))
        name = next((name for name in _OPEN_TASK.findall(read) if name in TASKS), None)
        if name is None:
            return _words("The plan has no open task that I know. I change nothing.")
        turns = self._turns(name, TASKS[name])
        if answered > len(turns):
            return _words(self._last_word(TASKS[name], result))
        if result.get("is_error"):
            return _words("A tool failed, its answer above says why. I stop here.")
        return turns[answered - 1]

    def _turns(self, name: str, task: Task) -> list[Turn]:
        run, commits = RUN_TESTS, self.has_git and task.commit is not None
        if commits:
            run += f" && git commit -qam '{task.commit}'"
        return [
            Turn(
                content=[
                    Text(f"I take the first open task: {name}. {task.diagnosis}"),
                    *(ToolUse("Edit", edit) for edit in edits(name)),
                ],
                usage=usage(1840, 150),
            ),
            Turn(
                content=[
                    Text("Now the tests, and a commit if they pass." if commits else "Now the tests."),
                    ToolUse("Bash", {"command": run, "description": "Run the tests"}),
                ],
                usage=usage(2060, 110),
            ),
        ]

    def _last_word(self, task: Task, result: dict[str, Any]) -> str:
        if not reports_that_tests_pass(result):
            return "The tests do not pass, or the commit failed: the output above says which. I stop here."
        if not self.has_git:
            return f"{task.closing} The tests pass."
        return f"{task.closing} The tests pass, and the change " + (
            "is committed." if task.commit is not None else "is not committed."
        )


_FIRST = Turn(
    content=[
        Thinking("One task, no more. The plan says which are open."),
        Text("I read the plan, what the code shall do, the code and its tests."),
        *(
            ToolUse("Read", {"file_path": path})
            for path in (PLAN, "specs/duration.md", "duration.py", "test_duration.py")
        ),
    ],
    usage=usage(1320, 100),
)


def _text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content)


def _words(text: str) -> Turn:
    return Turn(content=text, usage=usage(2240, 60))
