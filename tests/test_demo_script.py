"""The demo's model reads what the tools answered: it does not claim what did not happen."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ralph.demo.script import DemoScript
from ralph.mock_api import Turn


def last_word(result: dict[str, Any]) -> str:
    script = DemoScript(has_git=True)
    block = {"type": "tool_result", "tool_use_id": "a", **result}
    request: Any = SimpleNamespace(
        body=json.dumps({"messages": [{"role": "user", "content": [block]}]}).encode()
    )
    turn = script(request, len(script._steps()))
    assert isinstance(turn, Turn)
    return str(turn.content)


def test_passing_tests_are_reported_as_fixed() -> None:
    assert "is fixed" in last_word({"content": "Ran 3 tests in 0.000s\n\nOK"})


@pytest.mark.parametrize(
    "result",
    [{"content": "FAILED (failures=1)"}, {"content": "OK", "is_error": True}, {"content": "no such file"}],
)
def test_failing_tests_are_not(result: dict[str, Any]) -> None:
    assert "still do not pass" in last_word(result)
