"""Plays a scripted night for the pictures in the documentation: `python -m benchmarks.night DIRECTORY`. Only the
model's answers and the API's faults come from a script. The loop, its runs, HTTP, tools, sandbox, tests and commits are
real. A second stands for minutes.

`ralph loop` does three open tasks of a project. The night has a denied call, an outage between two runs, a
fallback to another target, a retry, and a second outage. It needs git, and takes half a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.harness import ralph
from ralph.demo.loop_play import PLAN, LoopScript
from ralph.demo.stages import RUN_TESTS, make_environment, make_project
from ralph.mock_api import Fault, MockApi, Step, Text, ToolUse, Turn

if TYPE_CHECKING:
    from ralph.mock_api import RecordedRequest
    from ralph.mock_api.scenario import Block

_SETTINGS = """\
[retry]
policy = "custom"
max_retries = 1
base_delay_s = 0.7

[loop]
outage_waits_s = [2, 3]

[[targets]]
name = "opus"
model = "claude-opus-5-5"
base_url = "{base_url}"

[[targets]]
name = "sonnet"
model = "claude-sonnet-5-5"
base_url = "{base_url}"
"""
TESTS = "python3 -m unittest -q"
COMMAND = (
    *("loop", "-f", "PROMPT_build.md", "--gate", TESTS, "--plan", PLAN, "--commit"),
    *("--max-iterations", "8"),
    *("--max-budget-usd", "2", "--disallowed-tools", "Read(./.env)"),
)
_PEEK = Turn([Text("I look at what is here, settings first."), ToolUse("Read", {"file_path": ".env"})])
_OVERLOADED = Fault(status=529)


class _Place(Struct, frozen=True):
    """A place in the conversation: the number of the iteration, and the number of answers before."""

    iteration: int
    answers: int


_ALL_OVERLOADED = {_Place(2, 1): 8, _Place(3, 3): 4}
"""The number of requests that are refused at a place, whichever target they ask. An outage for the loop."""
_FIRST_OVERLOADED = {_Place(2, 2): 1, _Place(3, 1): 3}
"""The number of requests to the first target that are refused at a place."""


class NightScript:
    """The script of the model and of the API's faults. It is called for each request."""

    def __init__(self) -> None:
        self._tasks = LoopScript(has_git=True)
        self._refused: dict[_Place, int] = {}

    def __call__(self, request: RecordedRequest, _index: int) -> Turn | Step:
        fields = json.loads(request.body or b"{}")
        messages = fields.get("messages", [])
        answers = sum(message["role"] == "assistant" for message in messages)
        prompt = json.dumps(messages[:1])
        iteration = int(prompt.partition("[ralph loop ")[2].partition("/")[0].split()[0] or 0)
        place = _Place(iteration, answers)
        refused = self._refused.get(place, 0)
        is_first = fields.get("model") == "claude-opus-5-5"
        if refused < _ALL_OVERLOADED.get(place, 0) or (
            is_first and refused < _FIRST_OVERLOADED.get(place, 0)
        ):
            self._refused[place] = refused + 1
            return Step(None, _OVERLOADED)
        return Step(self._answer(request, place), Fault(stall_before_headers_s=0.4 + 0.3 * (answers % 3)))

    def _answer(self, request: RecordedRequest, place: _Place) -> Turn:
        if place == _Place(1, 0):
            return _PEEK
        answer = self._tasks(request, 0) if place.iteration != 1 else self._tasks(_shifted(request), 0)
        assert isinstance(answer, Turn)
        return replace(answer, content=[_shown(block) for block in answer.blocks()])


def _shown(block: Block) -> Block:
    """The block without the path of this interpreter, which differs from machine to machine."""
    if isinstance(block, ToolUse) and block.name == "Bash":
        return replace(
            block, input={**block.input, "command": block.input["command"].replace(RUN_TESTS, TESTS)}
        )
    return block


def _shifted(request: RecordedRequest) -> RecordedRequest:
    """The request without its first answer, so that the script of the tasks does not count it."""
    fields = json.loads(request.body or b"{}")
    del fields["messages"][1:3]
    return replace(request, body=json.dumps(fields).encode())


def night_environment(directory: Path) -> dict[str, str]:
    """The environment of a night that was played in `directory`, to run other commands of ralph in."""
    environment = make_environment(directory, is_new=False)
    environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), environment["PATH"]))
    return environment


def play(directory: Path) -> None:
    """Plays the night in an empty directory. The project is in its folder `duration`. Raises CalledProcessError if the
    loop does not succeed.
    """
    make_environment(directory)
    environment = night_environment(directory)
    project = directory / "duration"
    make_project("loop_project", project, environment)
    with (project / ".git" / "info" / "exclude").open("a", encoding="utf-8") as ignored:
        ignored.write(".env\n")
    (project / ".env").write_text("TOKEN=of-the-project\n", encoding="utf-8")
    with MockApi(script=NightScript()) as server:
        settings = directory / "config.toml"
        settings.write_text(_SETTINGS.format(base_url=server.base_url), encoding="utf-8")
        command = [*ralph(*COMMAND), "--config", str(settings)]
        subprocess.run(command, cwd=project, env=environment, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    place = Path(sys.argv[1]).absolute()
    place.mkdir(parents=True)
    play(place)
