"""The scripted model of `ralph demo --scenario loop`. In each iteration, it does the first open task of the plan: a test, the
code, and the tick in the plan.

The script knows only the request, because each iteration is a new conversation. If a tool fails, or if the plan has no
open task that it knows, the model's answer says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.demo.script import OVERLOADED, last_result, reports_that_tests_pass, results, usage
from ralph.demo.workplace import RUN_TESTS
from ralph.mock_api import Step, Text, Thinking, ToolUse, Turn

if TYPE_CHECKING:
    from ralph.mock_api import Playable, RecordedRequest

_ITERATION = re.compile(r"\[ralph loop (\d+)")
PLAN = "IMPLEMENTATION_PLAN.md"
_OPEN_TASK = re.compile(r"- \[ \] (.+)")
_BEFORE_TESTS_END = '\n\n\nif __name__ == "__main__":'


class Task(Struct, frozen=True):
    """The actions of the scripted model for one task of the plan."""

    diagnosis: str
    old: str
    new: str
    test: str
    """A method for the project's tests, which fails before the change."""
    commit: str | None
    """The message of the commit, or None if the change is not committed."""
    closing: str
    """The first sentence of the model's last words."""


TASKS = {
    "Hours are read": Task(
        "The pattern knows hours, the table of units does not. I add them.",
        'UNIT_S = {"m": 60, "s": 1}',
        'UNIT_S = {"h": 3600, "m": 60, "s": 1}',
        'def test_hours_are_read(self):\n        self.assertEqual(as_seconds("1h02m"), 3720)',
        "Read hours",
        "Hours are read now.",
    ),
    "The seconds have two digits": Task(
        "Below ten the seconds lack a zero. I pad them.",
        "{minutes}m{seconds}s",
        "{minutes}m{seconds:02d}s",
        'def test_text_pads_the_seconds(self):\n        self.assertEqual(as_text(65), "1m05s")',
        None,
        "Pad the seconds with a zero.",
    ),
    "Text that is no duration is refused": Task(
        "Text without a number and a unit counts as 0 seconds. I refuse it.",
        "    return sum(",
        '    if "".join(number + unit for number, unit in parts) != text or not parts:\n'
        '        raise ValueError(f"no duration: {text!r}")\n'
        "    return sum(",
        "def test_what_is_no_duration_is_refused(self):\n        with self.assertRaises(ValueError):\n"
        '            as_seconds("soon")',
        "Refuse what is no duration",
        "Text that is no duration is refused.",
    ),
}


def edits(name: str) -> list[dict[str, str]]:
    """The input of each call of Edit that does the task `name`: its test, the code, and the tick in the plan."""
    task = TASKS[name]
    return [
        {
            "file_path": "test_duration.py",
            "old_string": _BEFORE_TESTS_END,
            "new_string": f"\n\n    {task.test}{_BEFORE_TESTS_END}",
        },
        {"file_path": "duration.py", "old_string": task.old, "new_string": task.new},
        {"file_path": PLAN, "old_string": f"- [ ] {name}", "new_string": f"- [x] {name}"},
    ]


class LoopScript(Struct, frozen=True):
    """The script of the model. It is called for each request, and recognises the iteration and the turn from the
    request.
    """

    has_git: bool
    outage: tuple[int, int] | None = None
    """The number of an iteration, and a number of answers. After that many answers in the iteration, every request
    gets an overload error. None if there is no outage."""

    def __call__(self, request: RecordedRequest, _index: int) -> Playable:
        messages = request.messages()
        prompt = _text_of(messages[0]) if messages else ""
        answered = sum(message["role"] == "assistant" for message in messages)
        iteration = _ITERATION.search(prompt)
        if iteration is not None and (int(iteration[1]), answered) == self.outage:
            return Step(None, OVERLOADED)
        return self._turn(messages, answered)

    def _turn(self, messages: list[dict[str, Any]], answered: int) -> Turn:
        if not answered:
            return _FIRST
        result = last_result(messages)
        read = "\n".join(str(block.get("content")) for block in results(messages))
        name = next((name for name in _OPEN_TASK.findall(read) if name in TASKS), None)
        if name is None:
            return _words("The plan has no open task that I know. I change nothing.")
        turns = self._turns(name, TASKS[name])
        if answered > len(turns):
            return _words(self._last_word(TASKS[name], result))
        if result.get("is_error"):
            return _words("A tool failed, its answer above says why. I stop here.")
        return turns[answered - 1]

    def _turns(self, name: str, task: Task) -> list[Turn]:
        run, commits = RUN_TESTS, self.has_git and task.commit is not None
        if commits:
            run += f" && git commit -qam '{task.commit}'"
        return [
            Turn(
                content=[
                    Text(f"I take the first open task: {name}. {task.diagnosis}"),
                    *(ToolUse("Edit", edit) for edit in edits(name)),
                ],
                usage=usage(1840, 150),
            ),
            Turn(
                content=[
                    Text("Now the tests, and a commit if they pass." if commits else "Now the tests."),
                    ToolUse("Bash", {"command": run, "description": "Run the tests"}),
                ],
                usage=usage(2060, 110),
            ),
        ]

    def _last_word(self, task: Task, result: dict[str, Any]) -> str:
        if not reports_that_tests_pass(result):
            return "The tests do not pass, or the commit failed: the output above says which. I stop here."
        if not self.has_git:
            return f"{task.closing} The tests pass."
        return f"{task.closing} The tests pass, and the change " + (
            "is committed." if task.commit is not None else "is not committed."
        )


_FIRST = Turn(
    content=[
        Thinking("One task, no more. The plan says which are open."),
        Text("I read the plan, what the code shall do, the code and its tests."),
        *(
            ToolUse("Read", {"file_path": path})
            for path in (PLAN, "specs/duration.md", "duration.py", "test_duration.py")
        ),
    ],
    usage=usage(1320, 100),
)


def _text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content)


def _words(text: str) -> Turn:
    return Turn(content=text, usage=usage(2240, 60))
