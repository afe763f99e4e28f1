"""The scripted model of `ralph demo --scenario loop`. In each iteration, it repairs the code for one failing test.
The prompt contains the output of the check. This output names the test.

The script knows only the request, because each iteration is a new conversation. If a tool fails, or if the prompt
names no known test, the model's answer says so.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.demo.script import OVERLOADED, last_result, reports_that_tests_pass, usage
from ralph.demo.workplace import RUN_TESTS
from ralph.mock_api import Step, Text, Thinking, ToolUse, Turn

if TYPE_CHECKING:
    from ralph.mock_api import Playable, RecordedRequest

_ITERATION = re.compile(r"\[ralph loop (\d+)")
_FAILING_TEST = re.compile(r"^(?:FAIL|ERROR): (test_\w+)", re.MULTILINE)


class Repair(Struct, frozen=True):
    """The actions of the scripted model for one failing test."""

    diagnosis: str
    old: str
    new: str
    commit: str | None
    """The message of the commit, or None if the change is not committed."""
    closing: str
    """The first sentence of the model's last words."""


REPAIRS = {
    "test_hours_are_read": Repair(
        "The pattern knows hours, the table of units does not. I add them.",
        'UNIT_S = {"m": 60, "s": 1}',
        'UNIT_S = {"h": 3600, "m": 60, "s": 1}',
        "Read hours",
        "Hours are read now.",
    ),
    "test_text_pads_the_seconds": Repair(
        "Below ten the seconds lack a zero. I pad them.",
        "{minutes}m{seconds}s",
        "{minutes}m{seconds:02d}s",
        None,
        "Pad the seconds with a zero.",
    ),
    "test_what_is_no_duration_is_refused": Repair(
        "Text without a number and a unit counts as 0 seconds. I refuse it.",
        "    return sum(",
        '    if "".join(number + unit for number, unit in parts) != text or not parts:\n'
        '        raise ValueError(f"no duration: {text!r}")\n'
        "    return sum(",
        "Refuse what is no duration",
        "Text that is no duration is refused.",
    ),
}


class LoopScript(Struct, frozen=True):
    """The script of the model. It is called for each request, and recognises the iteration and the turn from the
    request.
    """

    has_git: bool
    outage: tuple[int, int] | None = None
    """The number of an iteration, and a number of answers. After that many answers in the iteration, every request
    gets an overload error. None if there is no outage."""

    def __call__(self, request: RecordedRequest, _index: int) -> Playable:
        messages = json.loads(request.body or b"{}").get("messages", [])
        prompt = _text_of(messages[0]) if messages else ""
        answered = sum(message["role"] == "assistant" for message in messages)
        iteration = _ITERATION.search(prompt)
        if iteration is not None and (int(iteration[1]), answered) == self.outage:
            return Step(None, OVERLOADED)
        return self._turn(prompt, answered, last_result(messages))

    def _turn(self, prompt: str, answered: int, result: dict[str, Any]) -> Turn:
        test = next((name for name in _FAILING_TEST.findall(prompt) if name in REPAIRS), None)
        if test is None:
            return _words("The check names no failing test that I know. I change nothing.")
        turns = self._turns(test, REPAIRS[test])
        if answered >= len(turns):
            return _words(self._last_word(test, REPAIRS[test], result))
        if result.get("is_error"):
            return _words("A tool failed, its answer above says why. I stop here.")
        return turns[answered]

    def _turns(self, test: str, repair: Repair) -> list[Turn]:
        edit = {"file_path": "duration.py", "old_string": repair.old, "new_string": repair.new}
        run = f"{RUN_TESTS} test_duration.DurationTest.{test}"
        commits = self.has_git and repair.commit is not None
        if commits:
            run += f" && git commit -qam '{repair.commit}'"
        return [
            Turn(
                content=[
                    Thinking("One test, no more. The check's output names those that fail."),
                    Text(f"I take {test}, and read the code and what it shall do."),
                    ToolUse("Read", {"file_path": "specs/duration.md"}),
                    ToolUse("Read", {"file_path": "duration.py"}),
                ],
                usage=usage(1320, 100),
            ),
            Turn(content=[Text(repair.diagnosis), ToolUse("Edit", edit)], usage=usage(1840, 150)),
            Turn(
                content=[
                    Text("Now that test, and a commit if it passes." if commits else "Now that test."),
                    ToolUse("Bash", {"command": run, "description": f"Run {test}"}),
                ],
                usage=usage(2060, 110),
            ),
        ]

    def _last_word(self, test: str, repair: Repair, result: dict[str, Any]) -> str:
        if not reports_that_tests_pass(result):
            return f"{test} does not pass, or its commit failed: the output above says which. I stop here."
        if not self.has_git:
            return f"{repair.closing} {test} passes."
        return f"{repair.closing} {test} passes, and the change " + (
            "is committed." if repair.commit is not None else "is not committed."
        )


def _text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content)


def _words(text: str) -> Turn:
    return Turn(content=text, usage=usage(2240, 60))
