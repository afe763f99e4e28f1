"""The demo's scripted model: what it says at each turn, and what the API does to it on the way.

It reads what the tools really answered: where the tests do not pass, it says so instead of pretending.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ralph.mock_api import Fault, Step, Text, Thinking, ToolUse, Turn

if TYPE_CHECKING:
    from ralph.mock_api import Playable, RecordedRequest

RUN_TESTS = f"{shlex.quote(sys.executable)} -m unittest -q"

# What Python's unittest prints last when everything passed.
_PASSED = "OK"

_FIX = {
    "file_path": "invoice.py",
    "old_string": "    return cents - cents * percent // 100",
    "new_string": "    return (cents * (100 - percent) + 50) // 100",
}

RATE_LIMITED = Fault(status=429, headers={"retry-after": "1"})
OVERLOADED = Fault(status=529)
# message_start, then text, then the Edit call: event 9 lies inside its arguments.
CUT_INSIDE_THE_CALL = Fault(cut_after_events=9, framing="close")


@dataclass(frozen=True)
class DemoScript:
    """Called for each request with its number; plays faults and turns in order."""

    has_git: bool

    def __call__(self, request: RecordedRequest, index: int) -> Playable:
        steps = self._steps()
        if index < len(steps):
            return steps[index]
        return self._last_word(_last_result(request))

    def _steps(self) -> list[Playable]:
        edit = Turn(
            content=[
                Text("The discount is rounded down, so the price is rounded up. I round half up instead."),
                ToolUse("Edit", _FIX),
            ],
            usage=_usage(1890, 160),
            chunk_chars=24,
        )
        commit = "git add -A && git commit -qm 'Round discounted prices half up' && git log --oneline"
        check = f"{RUN_TESTS} && {commit}" if self.has_git else RUN_TESTS
        return [
            RATE_LIMITED,
            Turn(
                content=[
                    Thinking("The task names a failing test. Run the suite first."),
                    Text("I run the tests to see what fails."),
                    ToolUse("Bash", {"command": RUN_TESTS, "description": "Run the tests"}),
                ],
                usage=_usage(1210, 90),
            ),
            OVERLOADED,
            Turn(
                content=[
                    Text("A rounding error. I read the code and its test."),
                    ToolUse("Read", {"file_path": "invoice.py"}),
                    ToolUse("Grep", {"pattern": "discounted", "output_mode": "content"}),
                ],
                usage=_usage(1480, 110),
            ),
            Step(turn=edit, fault=CUT_INSIDE_THE_CALL),
            edit,
            Turn(
                content=[
                    Text("Now the tests again, and a commit if they pass."),
                    ToolUse("Bash", {"command": check, "description": "Run the tests and commit"}),
                ],
                usage=_usage(2110, 120),
            ),
        ]

    def _last_word(self, result: dict[str, Any]) -> Turn:
        passed = not result.get("is_error") and _PASSED in str(result.get("content"))
        words = (
            "The failing test is fixed: `discounted` in invoice.py now rounds half up. All three tests pass"
            + (", and the change is committed." if self.has_git else ".")
            if passed
            else "The tests still do not pass. I stop here; their output above says why."
        )
        return Turn(content=words, usage=_usage(2300, 70))


def _last_result(request: RecordedRequest) -> dict[str, Any]:
    body = json.loads(request.body or b"{}")
    results = [
        block
        for message in body.get("messages", [])
        for block in message["content"]
        if isinstance(block, dict) and block.get("type") == "tool_result"
    ]
    return results[-1] if results else {}


def _usage(prompt: int, output: int) -> dict[str, int]:
    return {"input_tokens": prompt, "output_tokens": output}
