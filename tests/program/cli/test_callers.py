"""Programs made for `claude -p` work with ralph. Some tests use only their command lines, others run the whole
programs.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Turn
from tests.patience import within_s
from tests.program.conftest import first_prompt
from tests.program.model_answers import DONE, bash, calls, results
from tests.services.outside_programs import ORCHESTRATOR, folder_or_skip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.program.conftest import Ralph

EXAMPLES = Path(__file__).parents[3] / "docs/examples/claude-callers.sh"

WRITE = calls(("Write", {"file_path": "made.txt", "content": "made\n"}))
ORCHESTRATOR_2 = (
    *("--dangerously-skip-permissions", "--verbose", "--output-format", "stream-json", "--print"),
    "--disallowedTools=TodoWrite,TaskCreate,TaskUpdate,TaskList,TaskGet",
    *("--setting-sources", "project,local", "-p", "Make the file."),
)
CLAUDE_CODE = (
    *("--output-format", "json", "--allowedTools", "Write", "Read", "Edit", "Bash(git *)", "Bash(echo *)"),
    *("--append-system-prompt", "Loop 1.", "-p", "Make the file."),
)
LINES = {
    "ralph-orchestrator 2": ORCHESTRATOR_2,
    "ralph-claude-code": CLAUDE_CODE,
    "the TypeScript SDK": (
        *("--output-format", "stream-json", "--verbose", "--allow-dangerously-skip-permissions"),
        *("--tools", "default", "-p", "Make the file."),
    ),
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_the_line_of_a_runner_finishes_its_job(ralph, serve, line) -> None:
    server = serve(WRITE, bash("echo done"), DONE)
    ran = ralph(*line, code=0)
    assert first_prompt(server.requests[0]) == "Make the file."
    result = json.loads(ran.stdout.splitlines()[-1])
    assert (result["subtype"], result["result"]) == ("success", "All done.")
    assert (ralph.cwd / "made.txt").read_text() == "made\n"


def test_each_tool_of_a_list_is_an_argument_of_its_own_and_its_patterns_limit(ralph, serve) -> None:
    server = serve(bash("touch other"), bash("git --version"), DONE)
    assert ralph(*CLAUDE_CODE).code == 0
    assert "no rule allows `touch other`" in results(server, 1)[0][0]
    assert "git version" in results(server, 2)[0][0]
    assert not (ralph.cwd / "other").exists()
    assert "Loop 1." in json.dumps(server.requests[0].json()["system"])


@pytest.fixture
def on_path(ralph) -> str:
    """A PATH on which `claude` and `ralph` both start the ralph of this checkout."""
    folder = ralph.cwd.parent / "shim"
    folder.mkdir()
    for name in ("claude", "ralph"):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ralph "$@"\n')
        (folder / name).chmod(0o755)
    return f"{folder}:{ralph.environment['PATH']}"


def example(beginning: str) -> str:
    """The line of the example that begins with this text."""
    [line] = [line for line in EXAMPLES.read_text().splitlines() if line.startswith(beginning)]
    return line


def run(command: Sequence[str], ralph: Ralph, path: str) -> subprocess.CompletedProcess[str]:
    environment = {**ralph.environment, "PATH": path}
    return subprocess.run(
        command,
        cwd=ralph.cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=within_s(300),
        check=False,
    )


@pytest.mark.parametrize("beginning", ["while ", "ralph loop "])
def test_the_playbooks_loop_runs_to_its_end(ralph, serve, on_path, beginning: str) -> None:
    done = calls(("Write", {"file_path": "DONE", "content": ""}))
    server = serve(WRITE, Turn("There is more to do."), done, DONE)
    (ralph.cwd / "PROMPT.md").write_text("Make the file.")
    ran = run(["sh", "-c", example(beginning)], ralph, on_path)
    assert ran.returncode == 0, ran.stderr
    assert len(server.requests) == 4
    assert (ralph.cwd / "made.txt").read_text() == "made\n"
    if beginning == "while ":
        ends = [json.loads(line) for line in ran.stdout.splitlines() if '"result"' in line]
        assert [end["subtype"] for end in ends if end["type"] == "result"] == ["success", "success"]


@pytest.mark.outside
def test_ralph_orchestrator_runs_to_its_end(ralph, serve, on_path) -> None:
    home = folder_or_skip(ORCHESTRATOR)
    server = serve(WRITE, Turn("Written."), bash("cat made.txt"), Turn("It is there. LOOP_COMPLETE"))
    (ralph.cwd / "PROMPT.md").write_text("Make the file.")
    words = shlex.split(example("PATH="))
    ran = run([str(home / "bin" / "ralph"), *words[2:]], ralph, on_path)
    assert ran.returncode == 0, ran.stderr
    assert "Completion promise matched" in ran.stdout
    assert results(server, 3)[0][0].strip() == "made"
    assert (ralph.cwd / "made.txt").read_text() == "made\n"
