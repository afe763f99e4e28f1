"""Answers of the scripted model, with calls whose effects can be counted afterwards. Other modules decide whether
and how an answer breaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ralph.mock_api import Text, Thinking, ToolUse, Turn, as_events, as_message, encode_events

if TYPE_CHECKING:
    from random import Random

MODEL = "claude-soak"
EFFECTS_FILE = "effects.txt"
NOTES_FILE = "notes.txt"
NOTES = "What every Read of the run finds.\n"

# Several bytes each, so that a cut or damage can hit inside one. No answer has them in other places.
SIGN_IN_TEXT = "☀"
SIGN_IN_INPUT = "☂"


@dataclass(frozen=True)
class ModelAnswer:
    turn: Turn
    lines: tuple[str, ...] = ()
    """The lines that its calls add to `EFFECTS_FILE`, in order."""
    files: tuple[str, ...] = ()
    """The files that its calls write. Each contains its own name."""

    @property
    def message_id(self) -> str:
        return str(self.turn.id)

    @property
    def content(self) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = as_message(self.turn)["content"]
        return blocks

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return as_events(self.turn)

    @property
    def body(self) -> bytes:
        return encode_events(self.events)

    @property
    def start_event(self) -> int:
        """The number of the `message_start` event, counted from 1. Pings may come before it."""
        return 1 + [event["type"] for event in self.events].index("message_start")

    @property
    def start_bytes(self) -> int:
        """The number of bytes of the stream up to the end of `message_start`."""
        return len(encode_events(self.events[: self.start_event]))

    def id_after(self, events: int) -> str:
        """The id of the message that ralph discards if only this number of events arrive. Empty if the message has
        not begun by then.
        """
        return self.message_id if events >= self.start_event else ""


def working_answer(draw: Random, label: str) -> ModelAnswer:
    """An answer with a text, one to three calls, and sometimes thinking. All its texts and effects contain
    `label`.
    """
    calls = [_append(f"{label}-c0", draw.choices(_ENDS_OF_COMMANDS, weights=(88, 8, 4))[0])]
    lines, files = [f"{label}-c0"], []
    for number in range(1, draw.choices((1, 2, 3), weights=(55, 30, 15))[0]):
        name = f"{label}-c{number}"
        match draw.choice(("append", "write", "read")):
            case "append":
                calls.append(_append(name))
                lines.append(name)
            case "write":
                calls.append(ToolUse("Write", {"file_path": name, "content": name}, id=f"toolu_{name}"))
                files.append(name)
            case _:
                calls.append(ToolUse("Read", {"file_path": NOTES_FILE}, id=f"toolu_{name}"))
    return ModelAnswer(_turn(draw, label, calls), tuple(lines), tuple(files))


def final_answer(draw: Random, label: str) -> ModelAnswer:
    return ModelAnswer(_turn(draw, label, []))


# The second prints more than `max_output_bytes`, so that it goes to a temporary file; the third leaves a process.
_ENDS_OF_COMMANDS = ("", "; seq 2000", "; sleep 60 &")


def _append(name: str, end: str = "") -> ToolUse:
    command = f"echo {name} >> {EFFECTS_FILE} {end} # {SIGN_IN_INPUT}"
    return ToolUse("Bash", {"command": command}, id=f"toolu_{name}")


def _turn(draw: Random, label: str, calls: list[ToolUse]) -> Turn:
    thinking = [Thinking(f"{label}: hm, 世界?")] if draw.random() < 0.5 else []
    return Turn(
        [*thinking, Text(f"{label}: here it comes {SIGN_IN_TEXT}"), *calls],
        model=MODEL,
        id=f"msg_{label}",
        chunk_chars=draw.choice((0, 3, 16, 40)),
        pings_before_start=draw.choice((0, 0, 0, 2)),
        ping_every=draw.choice((0, 0, 0, 3)),
    )
