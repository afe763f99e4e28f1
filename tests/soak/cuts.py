"""The second stage of the soak: cuts one stream after every byte, with every framing. The complete answer follows
each cut.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from ralph.mock_api import Fault, Step, Text, Thinking, ToolUse, Turn, as_events
from tests.soak.answers import EFFECTS_FILE, ModelAnswer
from tests.soak.attempt import Attempt, Fate
from tests.soak.plan import DISCARDED, PlannedTurn, RunPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

Framing = Literal["close", "chunked", "reset"]
FRAMINGS: tuple[Framing, ...] = ("close", "chunked", "reset")
CUTS_PER_RUN = 40
_EVENT_STREAM = "text/event-stream"


def cut_plans() -> Iterator[tuple[int, RunPlan]]:
    """Yields every run of this stage with its number, counted from 1."""
    number = 0
    size = len(_stream(_answer(0, DISCARDED)))
    for framing in FRAMINGS:
        # The last offset cuts nothing off: that answer must be accepted, whatever its framing.
        for start in range(0, size + 1, CUTS_PER_RUN):
            number += 1
            offsets = range(start, min(start + CUTS_PER_RUN, size + 1))
            yield number, _plan(number, framing, offsets)


def _plan(number: int, framing: Framing, offsets: range) -> RunPlan:
    turns = [_turn(offset, framing) for offset in offsets]
    last = ModelAnswer(Turn("All cuts are done.", id="msg_last"))
    turns.append(PlannedTurn((_whole(last, Step(last.turn)),), last))
    name = f"run {number} of the cuts: {framing}, after {offsets[0]} to {offsets[-1]} bytes"
    return RunPlan(name, f"--cuts --only {number}", tuple(turns))


def _turn(offset: int, framing: Framing) -> PlannedTurn:
    lost, kept = _answer(offset, DISCARDED), _answer(offset, "committed-")
    stream = _stream(lost)
    if offset == len(stream):
        kept = lost = _answer(offset, "committed-")
        stream = _stream(lost)
    cut = _raw(stream, cut_after_bytes=offset, framing=framing)
    if kept is lost:
        return PlannedTurn((_whole(kept, cut),), kept)
    is_begun = offset >= stream.index(b"\n\n") + 2
    attempt = Attempt(
        "cut",
        f"after {offset} bytes, {framing}",
        cut,
        failure_kind="stream",
        message_id=lost.message_id if is_begun else "",
        ends_connection=True,
    )
    return PlannedTurn((attempt, _whole(kept, _raw(_stream(kept)))), kept)


def _answer(offset: int, kind: str) -> ModelAnswer:
    """An answer that has the same length for every offset."""
    label = f"{kind:->10}{offset:04}"
    calls = [
        ToolUse(
            "Bash", {"command": f"echo {label}{call} >> {EFFECTS_FILE}"}, id=f"{call}{offset:04}{kind[0]}"
        )
        for call in "ab"
    ]
    turn = Turn([Thinking("Hä?"), Text("Ja 🙂"), *calls], id=f"m{kind[0]}{offset:04}", chunk_chars=0)
    return ModelAnswer(turn, (f"{label}a", f"{label}b"))


def _stream(answer: ModelAnswer) -> bytes:
    """The answer's stream without everything that servers may leave out, because cuts in it would be much alike."""
    lines = []
    for event in as_events(answer.turn):
        kept = event
        if "message" in event:
            kept = {"type": "message_start", "message": {"id": answer.message_id}}
        lines.append(f"data:{json.dumps(kept, ensure_ascii=False, separators=(',', ':'))}\n\n")
    return "".join(lines).encode()


def _raw(stream: bytes, *, cut_after_bytes: int | None = None, framing: Framing | None = None) -> Step:
    fault = Fault(body=stream, content_type=_EVENT_STREAM, cut_after_bytes=cut_after_bytes, framing=framing)
    return Step(fault=fault)


def _whole(answer: ModelAnswer, step: Step) -> Attempt:
    return Attempt(
        "whole", "", step, Fate.ACCEPTED, message_id=answer.message_id, content=tuple(answer.content)
    )
