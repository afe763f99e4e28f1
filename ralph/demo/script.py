"""The scripted model of the demo. Contains its text and its tool calls for each turn, and the faults of the API. The
script reads the real results of the tools. If the tests do not pass, the last answer says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ralph.demo.workplace import RUN_TESTS
from ralph.mock_api import Fault, Step, Text, Thinking, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.mock_api import Playable, RecordedRequest

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
    """The script of the model. It is called for each request, with the number of the request. The messages in the
    request decide which turn is the answer. The number of the request decides whether there is a fault.
    """

    has_git: bool
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """The faults of the API. The key is the number of the request, counted from 0. A fault replaces the answer or
    interrupts it."""

    def __call__(self, request: RecordedRequest, index: int) -> Playable:
        messages = request.messages()
        turn = self._turn(messages)
        fault = self.faults.get(index)
        if fault is None:
            return turn
        return Step(None if fault.replaces_answer() else turn, fault)

    def _turn(self, messages: list[dict[str, Any]]) -> Turn:
        answered = sum(message["role"] == "assistant" for message in messages)
        turns = self._turns()
        return turns[answered] if answered < len(turns) else self._last_word(last_result(messages))

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
    """Whether `result`, the result of a test run, says that the tests pass."""
    return not result.get("is_error") and _PASSED in str(result.get("content"))


def usage(prompt: int, output: int) -> dict[str, int]:
    return {"input_tokens": prompt, "output_tokens": output}
