"""The task of the scripted model in one session, with calls whose effects can be counted.

The content of a request decides the next answer, so that the model continues a resumed session as if nothing had
happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ralph.mock_api import Fault, Step, Text, Thinking, ToolUse, Turn, as_message

if TYPE_CHECKING:
    from random import Random

    from ralph.mock_api import RecordedRequest

PROMPT = "Go on until told."
EFFECTS_FILE = "effects.txt"
"""The file to which each Bash call adds one line with its id."""
LOG_FILE = "log.txt"
"""The file to which each Edit adds its id after the first line."""
SHARED_FILE = "CLAUDE.md"
"""A file that is written twice. ralph shows it to the model, and a resumed session must not see that it has
changed.
"""
FILE_TOOLS = ("Write", "Edit")
LOG_HEAD = "LOG:\n"
# More than a page of memory: the kernel may stop in the middle of such a write when the process is killed.
_LONG_TEXT = "A long explanation. " * 1500
_LONG_FILE = "A line of a long file.\n" * 3000


@dataclass(frozen=True)
class Task:
    """The work of one session: the model's answers, turn by turn."""

    turns: tuple[Turn, ...]
    pauses_s: tuple[float, ...]
    """A pause in seconds before the end of each turn's stream, so that a kill can hit while the model answers."""

    def step(self, request: RecordedRequest, _index: int) -> Step:
        """The answer to this request: the first turn that is not yet among its messages."""
        said = self.turn_of(request)
        return Step(self.turns[said], Fault(stall_after_events=4, stall_s=self.pauses_s[said]))

    def turn_of(self, request: RecordedRequest) -> int:
        return sum(message["role"] == "assistant" for message in request.messages())

    def content(self, turn: int) -> list[dict[str, Any]]:
        """The blocks of this turn's message."""
        blocks: list[dict[str, Any]] = as_message(self.turns[turn])["content"]
        return blocks

    @property
    def calls(self) -> list[ToolUse]:
        return [block for turn in self.turns for block in turn.blocks() if isinstance(block, ToolUse)]


def call_id(call: ToolUse) -> str:
    return str(call.id)


def draw_task(draw: Random) -> Task:
    """Six turns with real tools in any order, then a last turn without calls."""
    makers = [_two_commands, _slow_command, _write_and_edit, _read_only_batch, _same_file_twice, _mixture]
    draw.shuffle(makers)
    turns = [
        _turn(draw, number, [ToolUse(name, given, id=f"toolu_{number}_{at}") for at, (name, given) in calls])
        for number, calls in enumerate(enumerate(make(draw, number)) for number, make in enumerate(makers))
    ]
    turns.append(_turn(draw, len(turns), []))
    return Task(tuple(turns), tuple(draw.choice((0.0, 0.005, 0.03)) for _ in turns))


_Call = tuple[str, dict[str, Any]]


def _two_commands(draw: Random, turn: int) -> list[_Call]:
    return [_append(turn, 0), _append(turn, 1, draw.choice(("", "; seq 3000")))]


def _slow_command(draw: Random, turn: int) -> list[_Call]:
    """A command that takes 0.1 s, and has its effect at the beginning, in the middle or at the end of this time. If
    it outlives ralph, it stays so that it is found.
    """
    before_s = draw.choice((0, 0.05, 0.1))
    parent = "of() { sed -n 's/^PPid:[^0-9]*//p' /proc/$1/status; }"
    ralph = f"{parent}; ralph=$(of $(of $PPID))"
    effect = f"sleep {before_s}; echo toolu_{turn}_0 >> {EFFECTS_FILE}; sleep {0.1 - before_s}"
    slow = f"{ralph}; {effect}; [ -d /proc/$ralph ] || sleep 30"
    return [("Bash", {"command": slow}), _append(turn, 1, "; (sleep 60 &)")]


def _write_and_edit(draw: Random, turn: int) -> list[_Call]:
    return [_write(turn, 0, draw.choice(("", _LONG_FILE))), _edit(turn, 1)]


def _read_only_batch(_draw: Random, _turn: int) -> list[_Call]:
    return [
        ("Read", {"file_path": LOG_FILE}),
        ("Grep", {"pattern": "LOG", "path": LOG_FILE}),
        ("Glob", {"pattern": LOG_FILE}),
    ]


def _same_file_twice(_draw: Random, turn: int) -> list[_Call]:
    return [
        ("Write", {"file_path": SHARED_FILE, "content": f"{turn}, first\n"}),
        ("Write", {"file_path": SHARED_FILE, "content": f"{turn}, second\n"}),
    ]


def _mixture(draw: Random, turn: int) -> list[_Call]:
    read = ("Read", {"file_path": LOG_FILE})
    if draw.random() < 0.5:
        return [_edit(turn, 0), _append(turn, 1), _write(turn, 2), read]
    return [read, _append(turn, 1), read, _edit(turn, 3)]


def _append(turn: int, at: int, end: str = "") -> _Call:
    return "Bash", {"command": f"echo toolu_{turn}_{at} >> {EFFECTS_FILE} {end}"}


def _write(turn: int, at: int, more: str = "") -> _Call:
    return "Write", {"file_path": f"toolu_{turn}_{at}", "content": f"toolu_{turn}_{at}\n{more}"}


def _edit(turn: int, at: int) -> _Call:
    """An edit whose old text is still there afterwards, so that a repeated edit would be noticed."""
    return "Edit", {
        "file_path": LOG_FILE,
        "old_string": LOG_HEAD,
        "new_string": f"{LOG_HEAD}toolu_{turn}_{at}\n",
    }


def _turn(draw: Random, number: int, calls: list[ToolUse]) -> Turn:
    thinking = (
        [Thinking(f"{number}: hm, 世界?", signature=f"c2lnbmVk{number}")] if draw.random() < 0.6 else []
    )
    said = Text(f"Turn {number}. {_LONG_TEXT if draw.random() < 0.2 else ''}")
    return Turn([*thinking, said, *calls], id=f"msg_{number}", chunk_chars=draw.choice((0, 40, 400)))
