"""The demo's scripted model must read the results of its tools, and claim nothing that did not happen."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ralph.demo
from ralph.demo.loop_script import REPAIRS, LoopScript
from ralph.demo.script import CUT_INSIDE_THE_CALL, OVERLOADED, DemoScript
from ralph.mock_api import Fault, Step, Turn
from tests.rows import every_row


def request_after(answers: int, said: list[dict[str, Any]] | str = "go on") -> Any:
    """A request whose conversation has this number of answers, and `said` as its last message."""
    messages = [{"role": "assistant", "content": []}] * answers + [{"role": "user", "content": said}]
    return SimpleNamespace(body=json.dumps({"messages": messages}).encode())


def last_word(result: dict[str, Any]) -> str:
    script = DemoScript(has_git=True)
    block = {"type": "tool_result", "tool_use_id": "a", **result}
    turn = script(request_after(len(script._turns()), [block]), 0)
    assert isinstance(turn, Turn)
    return str(turn.content)


def test_the_conversation_says_which_turn_it_is_whatever_was_asked_before() -> None:
    script = DemoScript(has_git=True)
    turns = [script(request_after(answers), 7) for answers in range(4)]
    assert turns == script._turns()


@every_row(("fault", "keeps_turn"), [(OVERLOADED, False), (CUT_INSIDE_THE_CALL, True)])
def test_a_fault_hits_the_request_of_its_number_alone(fault: Fault, keeps_turn: bool) -> None:
    script = DemoScript(has_git=True, faults={1: fault})
    turn = script._turns()[2]
    assert script(request_after(2), 0) == turn
    assert script(request_after(2), 1) == Step(turn if keeps_turn else None, fault)


def test_passing_tests_are_reported_as_fixed() -> None:
    assert "is fixed" in last_word({"content": "Ran 3 tests in 0.000s\n\nOK"})


@every_row(
    "result",
    [{"content": "FAILED (failures=1)"}, {"content": "OK", "is_error": True}, {"content": "no such file"}],
)
def test_failing_tests_are_not(result: dict[str, Any]) -> None:
    assert "still do not pass" in last_word(result)


# --- the loop's model

OUTAGE = (2, 1)
PROJECT = Path(ralph.demo.__file__).parent / "loop_project"
HOURS, PADDING, REFUSAL = REPAIRS


def check_said(*failing: str) -> str:
    return "\n\n".join(f"FAIL: {name} (test_duration.DurationTest.{name})\nTraceback" for name in failing)


def asked_in_loop(
    answers: int,
    *,
    check: str = check_said(PADDING),
    iteration: int = 1,
    result: dict[str, Any] | None = None,
) -> Any:
    prompt = {
        "role": "user",
        "content": [{"type": "text", "text": f"[ralph loop {iteration} of 5]\n\n{check}"}],
    }
    answered = [{"role": "assistant", "content": []}] * answers
    results = [{"type": "tool_result", "tool_use_id": "a", **(result or {"content": "OK"})}]
    messages = [prompt, *answered] + ([{"role": "user", "content": results}] if answers else [])
    request: Any = SimpleNamespace(body=json.dumps({"messages": messages}).encode())
    return LoopScript(has_git=True, outage=OUTAGE)(request, 7)


def words_of(turn: Any) -> str:
    assert isinstance(turn, Turn)
    return str(turn.content)


@every_row(
    ("check", "taken"),
    [
        (check_said(HOURS, PADDING, REFUSAL), HOURS),
        (check_said(PADDING, REFUSAL), PADDING),
        (check_said("test_of_somebody_else", REFUSAL), REFUSAL),
        (check_said(PADDING).replace("FAIL", "ERROR"), PADDING),
    ],
)
def test_an_iteration_takes_the_first_test_it_knows_of_those_that_the_check_names(check, taken) -> None:
    assert f"I take {taken}," in words_of(asked_in_loop(0, check=check))


@every_row("check", ["", "no tests on this machine", check_said("test_of_somebody_else")])
def test_where_the_check_names_no_test_it_knows_nothing_is_claimed(check) -> None:
    assert "I change nothing" in words_of(asked_in_loop(0, check=check))


@every_row("answers", [1, 2])
def test_a_tool_that_failed_ends_the_iteration(answers) -> None:
    failed = {"content": "no such file", "is_error": True}
    turn = asked_in_loop(answers, result=failed)
    assert "A tool failed" in words_of(turn)
    assert words_of(asked_in_loop(answers)) != words_of(turn)


@every_row(
    ("test", "result", "has_git", "said"),
    [
        (HOURS, {"content": "OK"}, True, "is committed."),
        (PADDING, {"content": "OK"}, True, "is not committed."),
        (HOURS, {"content": "OK"}, False, f"{HOURS} passes."),
        (HOURS, {"content": "FAILED (failures=1)"}, True, "does not pass"),
        (HOURS, {"content": "OK", "is_error": True}, True, "or its commit failed"),
    ],
)
def test_an_iterations_last_word_is_what_its_command_said(test, result, has_git, said) -> None:
    last = LoopScript(has_git)._last_word(test, REPAIRS[test], result)
    assert said in last
    assert ("committed" in last) == said.endswith("committed.")


@every_row(
    ("iteration", "answers", "is_away"),
    [(1, 1, False), (2, 0, False), (2, 1, True), (2, 2, False), (3, 1, False)],
)
def test_the_api_is_away_in_one_turn_of_one_iteration(iteration, answers, is_away) -> None:
    assert (asked_in_loop(answers, iteration=iteration) == Step(None, OVERLOADED)) == is_away


def test_each_repair_mends_its_test_and_no_other(tmp_path) -> None:
    shutil.copytree(PROJECT, tmp_path / "project")
    code = tmp_path / "project" / "duration.py"
    left = set(REPAIRS)
    assert failing_tests(code.parent) == left
    for test, repair in REPAIRS.items():
        text = code.read_text()
        assert text.count(repair.old) == 1
        code.write_text(text.replace(repair.old, repair.new))
        left.remove(test)
        assert failing_tests(code.parent) == left


def failing_tests(project: Path) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-B", "-m", "unittest"], cwd=project, check=False, capture_output=True, text=True
    )
    return {line.split()[1] for line in ran.stderr.splitlines() if line.startswith(("FAIL:", "ERROR:"))}
