"""The argument lines that programs made for `claude -p` really send. Each finishes a scripted job."""

from __future__ import annotations

import json

import pytest

from tests.program.model_answers import DONE, bash, calls, results

WRITE = calls(("Write", {"file_path": "made.txt", "content": "made\n"}))
ORCHESTRATOR = (
    *("--dangerously-skip-permissions", "--verbose", "--output-format", "stream-json", "--print"),
    "--disallowedTools=TodoWrite,TaskCreate,TaskUpdate,TaskList,TaskGet",
    *("--setting-sources", "project,local", "-p", "Make the file."),
)
CLAUDE_CODE = (
    *("--output-format", "json", "--allowedTools", "Write", "Read", "Edit", "Bash(git *)", "Bash(echo *)"),
    *("--append-system-prompt", "Loop 1.", "-p", "Make the file."),
)


@pytest.mark.parametrize(
    "line", [ORCHESTRATOR, CLAUDE_CODE], ids=["ralph-orchestrator 2", "ralph-claude-code"]
)
def test_the_line_of_a_runner_finishes_its_job(ralph, serve, line) -> None:
    serve(WRITE, bash("echo done"), DONE)
    ran = ralph(*line)
    assert ran.code == 0, ran.stderr
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


def test_the_playbooks_loop_pipes_its_prompt(ralph, serve) -> None:
    serve(WRITE, DONE)
    words = (
        "-p",
        "--dangerously-skip-permissions",
        "--output-format=stream-json",
        "--model",
        "opus",
        "--verbose",
    )
    ran = ralph(*words, stdin=b"Make the file.")
    assert ran.code == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])["subtype"] == "success"
    assert (ralph.cwd / "made.txt").exists()
