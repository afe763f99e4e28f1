"""Plays the README's first night: each line of its block as it is there, in a shell, with the mock server in place
of the API.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import ToolUse, Turn
from tests.git.repositories import Repository
from tests.patience import PATIENCE_S, wait_until
from tests.processes.fork_server import REPOSITORY
from tests.processes.scripts import script
from tests.program.conftest import Finished, Ralph, first_prompt
from tests.program.model_answers import DONE, bash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.mock_api import RecordedRequest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="the README's gate is `make test`")

FROM_ANOTHER_TERMINAL = "# from another terminal"
TASKS = ("mean", "median", "mode")
MAKEFILE = "test:\n\t@python3 -B test_sums.py\n"
SUMS = "def total(numbers):\n    return 0\n"
TEST = "from sums import total\n\nassert total([1, 2]) == 3, 'the sum is wrong'\n"


def lines_of_the_first_night() -> list[str]:
    text = (REPOSITORY / "README.md").read_text()
    [block] = re.finditer(r"^## The first overnight run\n\n```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return block[1].splitlines()


class Terminals:
    """Shells of a user who has a repository with a failing test."""

    def __init__(self, ralph: Ralph) -> None:
        self._ralph = ralph
        self._exports: list[str] = []
        self.checkout = _checkout(ralph)
        del ralph.environment["ANTHROPIC_API_KEY"]
        programs = Path(ralph.environment["HOME"], ".local", "bin")
        self.opened = programs.parent / "opened"
        for name, text in (
            ("ralph", f'exec {sys.executable} -m ralph "$@"'),
            ("xdg-open", f'echo "$1" > {self.opened}'),
        ):
            script(programs / name, text)
        self._environment = {
            **ralph.environment,
            "PATH": f"{programs}:{ralph.environment['PATH']}",
            "DISPLAY": ":0",
        }

    def export(self, line: str) -> None:
        self._exports.append(line)

    def start(self, line: str) -> subprocess.Popen[bytes]:
        script = "\n".join([*self._exports, line])
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=self._ralph.cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def finish(self, process: subprocess.Popen[bytes]) -> Finished:
        return self._ralph.finish(process)


def _checkout(ralph: Ralph) -> Repository:
    ralph.cwd.rmdir()
    checkout = Repository.empty(ralph.cwd, Path(ralph.environment["HOME"]))
    for name, text in (("Makefile", MAKEFILE), ("sums.py", SUMS), ("test_sums.py", TEST)):
        checkout.write(name, text)
    checkout.commit_all()
    return checkout


class Model:
    """Does what the prompts say. It begins with the first task when somebody looks on from another terminal."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.is_asked = threading.Event()
        self.is_watched = threading.Event()

    def __call__(self, request: RecordedRequest, _index: int) -> Turn:
        body = request.json()
        if [tool["name"] for tool in body["tools"]] == ["tell_word"]:  # doctor --probe
            return Turn([ToolUse("tell_word", {"word": "ready"})])
        if body["messages"][-1]["role"] == "user" and len(body["messages"]) > 1:
            return DONE
        prompt = first_prompt(request)
        if "fix the failing test" in prompt:
            return bash(
                "sed -i 's/return 0/return sum(numbers)/' sums.py && make test && git commit -qam Sum"
            )
        if "Plan only." in prompt:
            tasks = "".join(f"- [ ] the {task}\\n" for task in TASKS)
            return bash(
                f"test -e IMPLEMENTATION_PLAN.md || {{ printf -- '{tasks}' > IMPLEMENTATION_PLAN.md;"
                " git add -A; git commit -qm Plan; }"
            )
        assert "Do one task in this iteration" in prompt
        self.is_asked.set()
        assert self.is_watched.wait(PATIENCE_S)
        task = TASKS[len(self.done)]
        self.done.append(task)
        return bash(
            f"touch {task}.py; sed -i 's/- \\[ \\] the {task}$/- [x] the {task}/' IMPLEMENTATION_PLAN.md"
        )


def say_what_to_do(work: Path) -> None:
    """Fills in the files as the remark behind `ralph loop init` says."""
    (work / "specs" / "sums.md").write_text("The mean, the median and the mode of numbers.\n")
    agents = work / "AGENTS.md"
    agents.write_text(agents.read_text().replace("...", "make test"))


@pytest.mark.sandboxed
def test_the_first_night_of_the_readme_word_for_word(ralph, serve) -> None:
    model = Model()
    serve(script=model)
    terminals = Terminals(ralph)
    ended = play(lines_of_the_first_night(), terminals, model)
    assert [(line, ran.code) for line, ran in ended] == [(line, 0) for line, _ in ended], [
        ran.stderr[-2000:] for _, ran in ended if ran.code
    ]
    said = {line.partition(" #")[0].strip(): ran for line, ran in ended}
    assert "ready for the night" in said["ralph doctor --probe"].stdout.splitlines()[-1]
    assert model.done == [*TASKS]
    assert (ralph.cwd / "IMPLEMENTATION_PLAN.md").read_text() == "".join(
        f"- [x] the {task}\n" for task in TASKS
    )
    checkout = terminals.checkout
    assert checkout.git("status", "--porcelain") in {"", "?? ralph-report.html"}
    files = [checkout.git("ls-tree", "-r", "--name-only", f"HEAD~{back}") for back in range(4)]
    assert [[f"{task}.py" in names for task in TASKS].count(True) for names in files] == [3, 2, 1, 0]
    assert terminals.opened.read_text().strip() == (ralph.cwd / "ralph-report.html").as_uri()


def play(lines: Sequence[str], terminals: Terminals, model: Model) -> list[tuple[str, Finished]]:
    """Runs the lines one after the other. A line that belongs to another terminal runs beside the one before it."""
    ended: list[tuple[str, Finished]] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("export "):
            terminals.export(line)
        elif FROM_ANOTHER_TERMINAL not in line:
            running = [(line, terminals.start(line))]
            if FROM_ANOTHER_TERMINAL in following:
                assert is_begun(running[0][1], model), terminals.finish(running[0][1]).stderr
                running.append((following, terminals.start(following)))
                assert running[1][1].stdout is not None
                assert running[1][1].stdout.readline()
                model.is_watched.set()
            ended += [(typed, terminals.finish(process)) for typed, process in running]
            if "loop init" in line:
                say_what_to_do(terminals.checkout.top)
    return ended


def is_begun(loop: subprocess.Popen[bytes], model: Model) -> bool:
    """Waits until the loop has asked for its first task, and returns whether it runs."""
    wait_until(lambda: model.is_asked.is_set() or loop.poll() is not None)
    return loop.poll() is None
