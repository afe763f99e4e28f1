"""The scenarios of the demo, with the scripted model that plays them. A scenario causes faults only outside of the
run, which knows the servers only from its settings.
"""

from __future__ import annotations

import os
import shlex
import shutil
import site
import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ralph.machine.own_programs import own_program, search_outside
from ralph.mock_api import Fault, MockApi, Playable, RecordedRequest, Step, Text, Thinking, ToolUse, Turn
from ralph.retry.backoff import PATIENT_SCHEDULE_S, STANDARD_SCHEDULE_S
from ralph.values.events import Event, RetryScheduled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ralph.values.ports import Events

# --- The scripted model: its text and its tool calls for each turn, and the faults of the API. The script reads the
# real results of the tools. If the tests do not pass, the last answer says so.

# The last line of Python's unittest when everything passed.
_PASSED = "OK"

_FIX = {
    "file_path": "invoice.py",
    "old_string": "    return cents - cents * percent // 100",
    "new_string": "    return (cents * (100 - percent) + 50) // 100",
}

RATE_LIMITED = Fault(status=429, headers={"retry-after": "1"})
OVERLOADED = Fault(status=529)
# The events are message_start, then text, then the Edit call. Event 9 lies inside the arguments of that call.
CUT_INSIDE_THE_CALL = Fault(cut_after_events=9, framing="close")


class DemoScript(Struct, frozen=True):
    """The model's script. The messages of a request decide which turn is the answer, and its number whether there is a
    fault.
    """

    has_git: bool
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """By the number of the request, from 0. A fault replaces or interrupts the answer."""

    def __call__(self, request: RecordedRequest, index: int) -> Playable:
        messages = request.messages()
        answered = sum(message["role"] == "assistant" for message in messages)
        turns = self._turns()
        turn = turns[answered] if answered < len(turns) else self._last_word(last_result(messages))
        fault = self.faults.get(index)
        if fault is None:
            return turn
        return Step(None if fault.replaces_answer() else turn, fault)

    def _turns(self) -> list[Turn]:
        commit = "git add -A && git commit -qm 'Round discounted prices half up' && git log --oneline"
        check = f"{RUN_TESTS} && {commit}" if self.has_git else RUN_TESTS
        return [
            Turn(
                content=[
                    Thinking("The task names a failing test. Run the suite first."),
                    Text("I run the tests to see what fails."),
                    ToolUse("Bash", {"command": RUN_TESTS, "description": "Run the tests"}),
                ],
                usage=usage(1210, 90),
            ),
            Turn(
                content=[
                    Text("A rounding error. I read the code and its test."),
                    ToolUse("Read", {"file_path": "invoice.py"}),
                    ToolUse("Grep", {"pattern": "discounted", "output_mode": "content"}),
                ],
                usage=usage(1480, 110),
            ),
            Turn(
                content=[
                    Text(
                        "The discount is rounded down, so the price is rounded up. I round half up instead."
                    ),
                    ToolUse("Edit", _FIX),
                ],
                usage=usage(1890, 160),
                chunk_chars=24,
            ),
            Turn(
                content=[
                    Text("Now the tests again, and a commit if they pass."),
                    ToolUse("Bash", {"command": check, "description": "Run the tests and commit"}),
                ],
                usage=usage(2110, 120),
            ),
        ]

    def _last_word(self, result: dict[str, Any]) -> Turn:
        words = (
            "The failing test is fixed: `discounted` in invoice.py now rounds half up. All three tests pass"
            + (", and the change is committed." if self.has_git else ".")
            if reports_that_tests_pass(result)
            else "The tests still do not pass. I stop here; their output above says why."
        )
        return Turn(content=words, usage=usage(2300, 70))


def results(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        block
        for message in messages
        for block in message["content"]
        if isinstance(block, dict) and block.get("type") == "tool_result"
    ]


def last_result(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return next(reversed(results(messages)), {})


def reports_that_tests_pass(result: dict[str, Any]) -> bool:
    return not result.get("is_error") and _PASSED in str(result.get("content"))


def usage(prompt: int, output: int) -> dict[str, int]:
    return {"input_tokens": prompt, "output_tokens": output}


# --- The scenarios

MODEL = "claude-sonnet-5-5"


class Stage(Struct, frozen=True):
    """A scenario whose servers have been started."""

    about: str
    """A text for the user that says which parts are scripted and which parts are real."""
    servers: list[MockApi]
    """All servers of the scenario. Servers that were stopped are included."""
    speed: float
    """The waits between retries are divided by this number."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """The settings for the run, by name. Ralph gets them as flags."""
    config_file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added to the environment of the run."""
    stands_for_hours: bool = False
    """True if the summary shows how long the waits would be without `speed`."""
    watchers: tuple[Events, ...] = ()
    """Objects that receive every event of the run, in addition to the summary."""

    @property
    def request_count(self) -> int:
        return sum(server.request_count for server in self.servers)


# --- fix: three faults, one model

_ABOUT_FIX = """\
  scripted   what the model says, and the API's behaviour: it rate-limits (429), is overloaded (529) and
             cuts one answer off inside a tool call
  real       the loop, the HTTP connection (127.0.0.1:{port}), the retries and their waits{speed}, the tools,
             the files, the tests, git
"""

FIX_FAULTS = {0: RATE_LIMITED, 2: OVERLOADED, 4: CUT_INSIDE_THE_CALL}


@contextmanager
def _fix(_directory: Path, speed: float, has_git: bool) -> Iterator[Stage]:
    with MockApi(script=DemoScript(has_git, FIX_FAULTS)) as server:
        sped = f" (divided by {speed:g})" if speed != 1 else ""
        yield Stage(
            _ABOUT_FIX.format(port=server.port, speed=sped),
            [server],
            speed,
            {"model.base_url": server.base_url, "model.name": MODEL},
        )


# --- fallback: two vendors, two models, two keys

_ABOUT_FALLBACK = """\
  scripted   what the models say, and how their servers behave: main, which speaks Anthropic's API, is overloaded
             (529); of spare, which speaks OpenAI's Chat Completions, the first of two keys is rate-limited (429),
             and the second answer takes {slow_s:.3g} s
  real       the loop, the choice among the targets, the translation between their APIs, main's cooldown
             of {cooldown_s:.3g} s, the HTTP connections (127.0.0.1:{main} and :{spare}), the tools, the files,
             the tests, git
  settings   {file}, passed by --config; the keys are made up:

{settings}"""

_TARGETS = """\
[[targets]]
name = "main"
model = "opus"
base_url = "{main}"

[[targets]]
name = "spare"
api = "openai-chat"
model = "gpt-5.4-mini"
base_url = "{spare}"
api_key_env = ["DEMO_KEY_1", "DEMO_KEY_2"]
"""
_KEYS = {"DEMO_KEY_1": "made-up-key-number-1", "DEMO_KEY_2": "made-up-key-number-2"}

_KEY_IS_LIMITED = Fault(status=429, headers={"retry-after": "60"})
_LONGER_THAN_THE_COOLDOWN = 1.2


@contextmanager
def _fallback(directory: Path, speed: float, has_git: bool) -> Iterator[Stage]:
    # After a status 529 without a `retry-after` header, the target gets no requests for the first wait of the policy.
    cooldown_s = STANDARD_SCHEDULE_S[0] / speed
    slow_s = cooldown_s * _LONGER_THAN_THE_COOLDOWN
    for_main = DemoScript(has_git, {1: OVERLOADED})
    for_spare = DemoScript(has_git, {0: _KEY_IS_LIMITED, 2: Fault(stall_before_headers_s=slow_s)})
    with MockApi(script=for_main) as main, MockApi(script=for_spare) as spare:
        config_file = directory / "config.toml"
        settings = _TARGETS.format(main=main.base_url, spare=spare.base_url)
        config_file.write_text(settings)
        about = _ABOUT_FALLBACK.format(
            slow_s=slow_s,
            cooldown_s=cooldown_s,
            main=main.port,
            spare=spare.port,
            file=config_file,
            settings=indent(settings, " " * 13),
        )
        yield Stage(about, [main, spare], speed, config_file=config_file, environment=_KEYS)


# --- outage: one server that is away for a while

OUTAGE_SPEED = 60
"""One second of the demo stands for this number of seconds in a real outage."""
_SILENCE_S = 90 / OUTAGE_SPEED

_ABOUT_OUTAGE = """\
  scripted   what the model says, and an outage in its second turn: an answer falls silent, then 529, 503,
             then nobody listens at the port for a while
  real       the loop, the HTTP connection (127.0.0.1:{port}), the retries of `--retry patient`, the tools,
             the files, the tests, git
  sped up    the waits of its schedule are divided by {factor:g}: one second stands for {factor:g}, and the lines
             show the seconds that pass here. An answer may be silent for {silence_s:g} s instead of 90.
             In reality this outage would have lasted about {night_min:.0f} minutes
"""

_OUTAGE_FAULTS = {1: Fault(stall_after_events=3), 2: OVERLOADED, 3: Fault(status=503)}
_GONE_FROM_RETRY = 3
_BACK_AT_RETRY = 5


class _Outage:
    """A server that goes down for a while and comes back at the same port, both at certain retries of the run."""

    def __init__(self, has_git: bool, stack: ExitStack) -> None:
        self._has_git = has_git
        self._stack = stack
        first = MockApi(script=DemoScript(has_git, _OUTAGE_FAULTS))
        self.servers = [stack.enter_context(first)]

    def emit(self, event: Event) -> None:
        """At some announced retries, stops or starts the server. Raises OSError if another program has the port."""
        if not isinstance(event, RetryScheduled) or len(self.servers) > 1:
            return
        if event.attempt == _GONE_FROM_RETRY:
            self.servers[0].close()
        elif event.attempt == _BACK_AT_RETRY:
            again = MockApi(script=DemoScript(self._has_git), port=self.servers[0].port)
            self.servers.append(self._stack.enter_context(again))


@contextmanager
def _outage(_directory: Path, speed: float, has_git: bool) -> Iterator[Stage]:
    with ExitStack() as stack:
        outage = _Outage(has_git, stack)
        [server] = outage.servers
        factor = OUTAGE_SPEED * speed
        about = _ABOUT_OUTAGE.format(
            port=server.port,
            factor=factor,
            silence_s=_SILENCE_S,
            night_min=(_SILENCE_S * OUTAGE_SPEED + sum(PATIENT_SCHEDULE_S[:_BACK_AT_RETRY])) / 60,
        )
        yield Stage(
            about,
            outage.servers,
            factor,
            {
                "model.base_url": server.base_url,
                "model.name": MODEL,
                "retry.policy": "patient",
                "clocks.bytes_idle_s": _SILENCE_S,
            },
            stands_for_hours=True,
            watchers=(outage,),
        )


STAGES: Mapping[str, Callable[[Path, float, bool], AbstractContextManager[Stage]]] = {
    "fix": _fix,
    "fallback": _fallback,
    "outage": _outage,
}
"""Each makes a `Stage` from a directory for files, the user's `--speed`, and whether git is installed."""


# The project for a demo, and an environment of harmless variables only: a loop's processes inherit it.

RUN_TESTS = f"{shlex.quote(sys.executable)} -m unittest -q"

# Variables that a program needs to be found, to start, and to write to a terminal. They contain no key, endpoint,
# proxy, settings or file of a CI job. The home and the temporary directory are the demo's own.
_KEPT = frozenset(
    {"PATH", "LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "VIRTUAL_ENV"}
)
_KEPT_PREFIXES = ("LC_", "LD_", "DYLD_", "PYTHON")

_PACKAGES = Path(__file__).parents[2]
"""The directory of the running ralph package, from which a loop's iterations import it."""


def has_git() -> bool:
    return _git() is not None


@cache
def _git() -> str | None:
    try:
        here = Path.cwd()  # the user's directory, while the demo works elsewhere
    except FileNotFoundError:
        here = None
    return own_program("git", search_outside(os.environ, () if here is None else (here,)))


def make_environment(directory: Path, *, is_new: bool = True) -> dict[str, str]:
    """The environment variables for the demo's processes. If `is_new` is True, makes the directories that they name."""
    own = {"HOME": directory / "home", "TMPDIR": directory / "tmp"}
    for own_directory in own.values():
        own_directory.mkdir(exist_ok=not is_new)
    return {
        **{name: os.environ[name] for name in os.environ if name in _KEPT or name.startswith(_KEPT_PREFIXES)},
        **{name: str(path) for name, path in own.items()},
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH")))),
        "PYTHONUSERBASE": site.getuserbase(),  # otherwise Python would look for it below the new HOME
        # If two versions of a file are written within one second, Python may run the compiled old one.
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def make_project(template: str, project: Path, environment: dict[str, str]) -> None:
    """Creates the project from a directory of this package, as a git repository if git is installed."""
    with as_file(files("ralph.demo") / template) as source:
        shutil.copytree(source, project, ignore=shutil.ignore_patterns("__pycache__"))
    (project / ".gitignore").write_text("__pycache__/\n")
    git = _git()
    if git is None:
        return
    for arguments in (
        ["init", "-q"],
        ["config", "user.name", "ralph demo"],
        ["config", "user.email", "demo@localhost"],
        ["config", "commit.gpgsign", "false"],
        ["config", "core.hooksPath", "/dev/null"],
        ["add", "-A"],
        ["commit", "-qm", "The project as the demo found it"],
    ):
        subprocess.run([git, *arguments], cwd=project, env=environment, check=True, capture_output=True)


def tests_pass(project: Path, environment: dict[str, str]) -> bool:
    """Runs the project's tests, and returns whether they pass."""
    ran = subprocess.run(
        [sys.executable, "-m", "unittest", "-q"],
        cwd=project,
        env=environment,
        check=False,
        capture_output=True,
    )
    return ran.returncode == 0
