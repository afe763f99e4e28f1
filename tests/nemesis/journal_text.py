"""Reads a journal as text without ralph's code: its records, its place, and what a power failure may add to
it.
"""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Line = dict[str, Any]


def lines_of(data: bytes) -> list[Line]:
    """The records. Raises ValueError if a line is not JSON or the last line is incomplete."""
    whole, _, tail = data.rpartition(b"\n")
    if tail:
        raise ValueError(f"it ends with half a line: {tail[:80]!r}")
    return [json.loads(line) for line in whole.split(b"\n") if line]


def readable_lines(data: bytes) -> list[Line]:
    """The records on all lines that can be read."""
    found = []
    for line in whole_lines(data).split(b"\n"):
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def place_of(lines: Sequence[Line]) -> str:
    """The step at which the process ended, in the words of the campaign's summary."""
    told = [line for line in lines if line["kind"] not in ("event", "run")]
    if not told or told[-1]["kind"] == "session":
        return "before the first message"
    last = told[-1]
    match last["kind"]:
        case "user":
            return "waiting for an answer"
        case "assistant":
            return "between answer and intent" if last["calls"] else "before the end is written"
        case "tool_intent":
            return f"during {last['name']}"
        case "tool_result":
            return "between two calls" if unanswered(told) else "waiting for an answer"
        case _:
            return "after the end"


def unanswered(lines: Sequence[Line]) -> set[str]:
    """The ids of calls without a result."""
    asked = {call for line in lines if line["kind"] == "assistant" for call in line["calls"]}
    return asked - {line["tool_use_id"] for line in lines if line["kind"] == "tool_result"}


def messages_of(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The messages of the conversation that the records describe."""
    messages: list[dict[str, Any]] = []
    for line in lines:
        match line["kind"]:
            case "user":
                del messages[len(messages) - bool(line.get("amends")) :]
                messages.append({"role": "user", "content": line["content"]})
            case "assistant":
                messages.append({"role": "assistant", "content": line["message"]["content"]})
            case "tool_result":
                if messages[-1]["role"] == "assistant":
                    messages.append({"role": "user", "content": []})
                messages[-1]["content"].append(
                    {
                        name: value
                        for name, value in line.items()
                        if name not in ("seq", "kind", "at", "crc", "seen")
                    }
                )
    return messages


def note_line(seq: int) -> bytes:
    """A record without importance, and without a line break at its end."""
    body = f'{{"seq":{seq},"kind":"event","event":{{"subtype":"notice","text":"the power is about to fail, 世界"}}'.encode()
    return body + b',"crc":"%08x"}' % zlib.crc32(body)
