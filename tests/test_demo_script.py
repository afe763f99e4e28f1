"""The demo's model reads what the tools answered: it does not claim what did not happen."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ralph.demo.script import CUT_INSIDE_THE_CALL, OVERLOADED, DemoScript
from ralph.mock_api import Fault, Step, Turn


def request_after(answers: int, said: list[dict[str, Any]] | str = "go on") -> Any:
    """One whose conversation holds so many answers, and last what was said to the model."""
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


@pytest.mark.parametrize(
    ("fault", "keeps_turn"), [(OVERLOADED, False), (CUT_INSIDE_THE_CALL, True)], ids=["replaces", "breaks"]
)
def test_a_fault_hits_the_request_of_its_number_alone(fault: Fault, keeps_turn: bool) -> None:
    script = DemoScript(has_git=True, faults={1: fault})
    turn = script._turns()[2]
    assert script(request_after(2), 0) == turn
    assert script(request_after(2), 1) == Step(turn if keeps_turn else None, fault)


def test_passing_tests_are_reported_as_fixed() -> None:
    assert "is fixed" in last_word({"content": "Ran 3 tests in 0.000s\n\nOK"})


@pytest.mark.parametrize(
    "result",
    [{"content": "FAILED (failures=1)"}, {"content": "OK", "is_error": True}, {"content": "no such file"}],
)
def test_failing_tests_are_not(result: dict[str, Any]) -> None:
    assert "still do not pass" in last_word(result)
