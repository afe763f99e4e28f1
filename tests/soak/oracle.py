"""Computes what a plan must lead to, in a few lines that share nothing with ralph's own decisions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.soak.attempt import Fate
from tests.soak.plan import MAX_RETRIES, MOST_DAMAGED, committed

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from tests.soak.attempt import Attempt
    from tests.soak.plan import PlannedTurn, RunPlan

UNAVAILABLE = 75

Entry = tuple[Any, ...]


@dataclass(frozen=True)
class Expected:
    exit_code: int
    story: list[Entry]
    """Everything that `stream-json` must contain between its first and its last line, in order."""
    result: str | None
    """The result text, or None for the text about a failure of the API."""
    num_turns: int
    retries: int
    lines: list[str]
    """The lines of the effects file."""
    files: set[str]
    recorded: list[list[int]]
    """For each turn, the indices of its requests in the server's record."""


def expect(plan: RunPlan) -> Expected:
    whole = committed(plan)
    last = plan.turns[-1].attempts[-1]
    exit_code = {Fate.ACCEPTED: 0, Fate.TRANSIENT: UNAVAILABLE}.get(last.fate, last.exit_code)
    attempts = [attempt for turn in plan.turns for attempt in turn.attempts]
    may_be_kept = {id(after) for one, after in pairwise(attempts) if not one.ends_connection}
    story = [entry for turn in plan.turns for entry in _told(turn, plan.base_delay_s, may_be_kept)]
    effects = [turn.answer for turn in whole if turn.answer is not None]
    return Expected(
        exit_code,
        [*story, *([] if last.fate is Fate.ACCEPTED else [("failure told",)])],
        _text(last) if last.fate is Fate.ACCEPTED else None,
        num_turns=len(whole),
        retries=sum(entry[0] == "api_retry" for entry in story),
        lines=[line for answer in effects for line in answer.lines],
        files={name for answer in effects for name in answer.files},
        recorded=list(_recorded(plan)),
    )


class _OrAtOnce(int):
    """The wait after a failure that the loss of an idle connection may explain. Only the server's machine knows."""

    def __eq__(self, other: object) -> bool:
        return other == 0 or super().__eq__(other)

    __hash__ = int.__hash__


def _told(turn: PlannedTurn, base_delay_s: float, may_be_kept: Container[int]) -> Iterator[Entry]:
    """`may_be_kept` holds the ids of the attempts whose request may have been sent on a kept connection."""
    retries = of_chain = damaged = 0
    for attempt in turn.attempts:
        if attempt.clock is not None:
            yield ("clock_fired", attempt.clock)
        if attempt.fate is Fate.ACCEPTED:
            if of_chain:
                yield ("retry_recovered", of_chain)
            yield from (("assistant", attempt.message_id, block["type"]) for block in attempt.content)
            calls = [block["id"] for block in attempt.content if block["type"] == "tool_use"]
            if calls:
                yield ("user", *calls)
            continue
        if attempt.message_id:
            yield ("response_discarded", attempt.message_id)
        if attempt.fate is Fate.TRANSIENT and retries < MAX_RETRIES:
            wait_s = max(base_delay_s * 2**retries, attempt.requested_s)
            wait_ms = round(wait_s * 1000)
            if attempt.fault == "no headers" and id(attempt) in may_be_kept:
                wait_ms = _OrAtOnce(wait_ms)
            retries += 1
            of_chain += 1
            yield ("api_retry", retries, MAX_RETRIES, wait_ms, attempt.status, attempt.failure_kind)
            continue
        if of_chain:
            yield ("retry_exhausted", of_chain)
        of_chain = 0
        damaged += attempt.fate is Fate.DAMAGED
        if attempt.fate is Fate.DAMAGED and damaged < MOST_DAMAGED:
            yield ("synthetic_retry",)


def _text(attempt: Attempt) -> str:
    return "".join(block["text"] for block in attempt.content if block["type"] == "text").strip()


def _recorded(plan: RunPlan) -> Iterator[list[int]]:
    index = 0
    for turn in plan.turns:
        count = sum(attempt.is_recorded for attempt in turn.attempts)
        yield list(range(index, index + count))
        index += count
