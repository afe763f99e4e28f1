"""Sequences and mappings that grow are values, although longer ones share their memory, and so a session's state takes as
long for each record at the end of a long context as at its beginning.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ralph.conversation.messages import GrowingMapping, GrowingSequence, RequestShape, user_message
from ralph.conversation.records import (
    assistant_record,
    intent_record,
    result_record,
    run_record,
    session_record,
    user_record,
)
from ralph.conversation.session import replay
from ralph.values.answer import FileChange, ToolCall, ToolOutput, ToolResult
from tests.fakes import answer, call, text
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.conversation.records import Record

ITEMS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2), max_size=4)
FROM = st.integers(min_value=0)


@given(st.lists(st.tuples(FROM, ITEMS), max_size=12))
def test_each_mapping_has_the_items_of_those_it_came_from_and_its_own(steps) -> None:
    """Each step makes a value from any earlier one, also from one that others have come from."""
    values: list[tuple[GrowingMapping[int], dict[str, int]]] = [(GrowingMapping(), {})]
    for number, items in steps:
        value, expected = values[number % len(values)]
        values.append((value.plus(items), expected | items))
    for value, expected in values:
        assert (dict(value), len(value), [*value]) == (expected, len(expected), [*expected])
        assert {one for one in "abcdef" if one in value} == {*expected}


@given(st.lists(st.tuples(FROM, st.integers(0, 900), st.integers(0, 600)), max_size=8))
def test_each_sequence_has_the_items_of_the_one_it_came_from_and_its_own(steps) -> None:
    values: list[tuple[GrowingSequence[int], tuple[int, ...]]] = [(GrowingSequence(), ())]
    for number, kept, added in steps:
        value, expected = values[number % len(values)]
        value, expected = value.first(kept), expected[:kept]
        for one in range(added):
            value = value.plus(one)
        values.append((value, (*expected, *range(added))))
    for value, expected in values:
        assert (tuple(value), len(value)) == (expected, len(expected))
        assert value == GrowingSequence(expected) == expected
        assert (value[-3:], value[255:257], value[::-100]) == (
            expected[-3:],
            expected[255:257],
            expected[::-100],
        )
        assert [value[number] for number in range(-len(value), 0)] == [*expected]
        for other, items in values:
            assert value.begins_with(other) == (expected[: len(items)] == items)


SHAPE = RequestShape("claude-sonnet-5-5", "You are ralph.\nWorking directory: /w\n", ())


def context(kind: str, turns: int) -> Iterator[Record]:
    """The records of one context without a compaction."""
    yield session_record("0000000a-0000-4000-8000-00000000000a", "/w", "2026-11-21T12:00:00+00:00", "0")
    yield run_record(SHAPE, "2026-11-21T12:00:01+00:00", 1)
    yield user_record(user_message("Do it."), task=1)
    for number in range(turns):
        if kind == "prompts":
            yield assistant_record(answer(text(f"Step {number}.")))
            yield user_record(user_message(f"And {number}."), task=1)
            continue
        one, path = f"c{number}", f"/w/{number}"
        yield assistant_record(answer(text(f"Step {number}."), call(one, "Edit")))
        yield intent_record(ToolCall(one, "Edit", {}), FileChange(path, "a", "b"))
        result = ToolResult(one, ToolOutput("done", seen={path: "b"}))
        yield result_record(result)
        if kind == "amended":
            grown = user_message([result.as_block(), text(f"And {number}.")])
            yield user_record(grown, amends=True, task=1)


@every_row("kind", ["files", "prompts", "amended"])
def test_a_context_of_many_messages_is_resumed_in_a_time_that_grows_as_it_does(kind) -> None:
    def cpu_s(turns: int) -> float:
        records = [*context(kind, turns)]
        began = time.process_time()
        session = replay(records)
        took_s = time.process_time() - began
        assert len(session.conversation.messages) == 2 * turns + 1
        return took_s

    # Four times as many messages. Copies of all of them take ten times. Other programs may disturb a single try.
    assert any(cpu_s(10_000) < 7 * cpu_s(2_500) for _ in range(3))
