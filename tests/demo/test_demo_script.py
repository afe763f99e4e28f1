"""The demo's scripted model must read the results of its tools, and claim nothing that did not happen."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ralph.demo
from ralph.demo.loop_play import PLAN, TASKS, LoopScript, edits
from ralph.demo.stages import DemoScript
from ralph.loop.check import read_open_tasks
from ralph.mock_api import Turn
from tests.rows import every_row


def request_after(answers: int, said: list[dict[str, Any]] | str = "go on") -> Any:
    """A request whose conversation has this number of answers, and `said` as its last message."""
    messages = [{"role": "assistant", "content": []}] * answers + [{"role": "user", "content": said}]
    return SimpleNamespace(messages=lambda: messages)


def last_word(result: dict[str, Any]) -> str:
    script = DemoScript(has_git=True)
    block = {"type": "tool_result", "tool_use_id": "a", **result}
    turn = script(request_after(len(script._turns()), [block]), 0)
    assert isinstance(turn, Turn)
    return str(turn.content)


@every_row(
    "result",
    [{"content": "FAILED (failures=1)"}, {"content": "OK", "is_error": True}, {"content": "no such file"}],
)
def test_failing_tests_are_not(result: dict[str, Any]) -> None:
    assert "still do not pass" in last_word(result)


# --- the loop's model

PROJECT = Path(ralph.demo.__file__).parent / "loop_project"
HOURS, PADDING, REFUSAL = TASKS


def plan_read(*names: str) -> str:
    """A plan with these open tasks, as Read shows it."""
    return "\n".join(f"{at}\t- [ ] {name}" for at, name in enumerate(names, 1))


def asked_in_loop(
    answers: int,
    *,
    plan: str = plan_read(PADDING),
    result: dict[str, Any] | None = None,
    has_git: bool = True,
) -> Any:
    prompt = {
        "role": "user",
        "content": [{"type": "text", "text": f"[ralph loop 1 of 5]\n\n- [ ] {REFUSAL}"}],
    }
    answered = [{"role": "assistant", "content": []}] * answers
    blocks = [{"type": "tool_result", "tool_use_id": "a", "content": plan}]
    blocks += [{"type": "tool_result", "tool_use_id": "b", **(result or {"content": "OK"})}]
    messages = [prompt, *answered] + ([{"role": "user", "content": blocks}] if answers else [])
    request: Any = SimpleNamespace(messages=lambda: messages)
    return LoopScript(has_git=has_git)(request, 7)


def words_of(turn: Any) -> str:
    assert isinstance(turn, Turn)
    return str(turn.content)


@every_row("plan", ["", "no such file", plan_read("Of somebody else"), f"- [x] {HOURS}"])
def test_where_no_task_it_knows_is_open_nothing_is_claimed(plan) -> None:
    for answers in (1, 2, 3):
        assert "I change nothing" in words_of(asked_in_loop(answers, plan=plan))


@every_row("answers", [1, 2])
def test_a_tool_that_failed_ends_the_iteration(answers) -> None:
    failed = {"content": "no such file", "is_error": True}
    turn = asked_in_loop(answers, result=failed)
    assert "A tool failed" in words_of(turn)
    assert words_of(asked_in_loop(answers)) != words_of(turn)


@every_row(
    ("name", "result", "has_git", "said"),
    [
        (HOURS, {"content": "OK"}, True, "is committed."),
        (PADDING, {"content": "OK"}, True, "is not committed."),
        (HOURS, {"content": "OK"}, False, "The tests pass."),
        (HOURS, {"content": "FAILED (failures=1)"}, True, "do not pass, or the commit failed"),
        (HOURS, {"content": "OK", "is_error": True}, True, "or the commit failed"),
    ],
)
def test_an_iterations_last_word_is_what_its_command_said(name, result, has_git, said) -> None:
    last = words_of(asked_in_loop(3, plan=plan_read(name), result=result, has_git=has_git))
    assert said in last
    assert ("committed" in last) == said.endswith("committed.")


def test_the_project_begins_green_and_each_task_adds_a_test_that_only_its_change_lets_pass(tmp_path) -> None:
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    assert failing_tests(project) == set()
    for left, (name, task) in zip((2, 1, 0), TASKS.items(), strict=True):
        for edit in edits(name):
            file = project / edit["file_path"]
            text = file.read_text()
            assert text.count(edit["old_string"]) == 1
            file.write_text(text.replace(edit["old_string"], edit["new_string"]))
            if edit["file_path"] == "test_duration.py":
                assert failing_tests(project) == {task.test.split("(")[0].removeprefix("def ")}
        assert failing_tests(project) == set()
        assert read_open_tasks(project / PLAN, (project,)) == left


def failing_tests(project: Path) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-B", "-m", "unittest"], cwd=project, check=False, capture_output=True, text=True
    )
    assert "Ran " in ran.stderr
    return {line.split()[1] for line in ran.stderr.splitlines() if line.startswith(("FAIL:", "ERROR:"))}
