"""A result that fits stays the same object. A result that does not fit keeps its beginning and its end, and says
what is missing.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.agent.compaction import (
    LEAST_BYTES,
    all_fitted,
    cut_in_middle,
    fitted,
    output_size,
    room_for,
    sent_bytes,
)
from ralph.conversation.messages import to_json, user_message
from ralph.values.answer import ToolOutput, ToolResult
from tests.rows import every_row

NOTE = "[... {left_out:,} of {total:,} bytes left out ...]"
LINES = "".join(f"line {number}\n" for number in range(10_000))
IMAGE: dict[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "A" * 10**5},
}
AWKWARD = st.text(st.sampled_from('aé€😀\n"\\\x00\x1b\ud83d'), max_size=3_000)


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@every_row(
    ("estimate", "window", "room"),
    [
        (0, None, None),
        (0, 200_000, 190_000),
        (160_000, 200_000, 30_000),
        (189_999, 200_000, 1),
        (190_000, 200_000, 0),
        (190_001, 200_000, 0),
        (10**9, 200_000, 0),
    ],
)
def test_results_may_fill_the_window_to_95_percent(estimate, window, room) -> None:
    assert room_for(estimate, window) == room


@every_row(("size", "is_cut"), [(9_999, False), (10_000, False), (10_001, True)])
def test_a_text_at_its_room_stays_and_one_over_it_is_cut(size, is_cut) -> None:
    output = ToolOutput("x" * size)
    room = output_size(ToolOutput("x" * 10_000))
    cut = fitted(output, room)
    assert (cut is not output) is is_cut
    assert output_size(cut) <= room


def test_the_cut_stands_between_lines_and_says_how_much_is_missing_and_how_to_see_it() -> None:
    cut = fitted(ToolOutput(LINES), 2_500).content
    assert isinstance(cut, str)
    lines = cut.splitlines()
    [place] = [index for index, line in enumerate(lines) if line.startswith("[...")]
    head, note, tail = lines[:place], lines[place], lines[place + 1 :]
    assert head == LINES.splitlines()[: len(head)]
    assert tail == LINES.splitlines()[-len(tail) :]
    assert len(head) > 100
    assert len(tail) > 100
    left_out = len(LINES) - sum(len(line) + 1 for line in (*head, *tail))
    assert f"{left_out:,} of {len(LINES):,} bytes left out" in note
    assert "would not fit into the context" in note
    assert "offset and limit" in note
    assert 4_500 < sent_bytes(cut) < 5_000


@every_row("room", [-100, 0, 1, 999])
@every_row(("size", "is_cut"), [(1_999, False), (2_000, False), (2_001, True)])
def test_a_text_keeps_2000_bytes_however_little_room_there_is(room, size, is_cut) -> None:
    output = ToolOutput("x" * size)
    cut = fitted(output, room)
    assert (cut is not output) is is_cut
    assert isinstance(cut.content, str)
    assert 1_990 <= len(cut.content) <= 2_000


@given(AWKWARD, st.integers(0, 9_000))
def test_a_cut_never_breaks_a_character_and_never_exceeds_its_bound(text, most_bytes) -> None:
    cut = cut_in_middle(text, most_bytes, NOTE)
    if sent_bytes(text) <= most_bytes:
        assert cut is text
        return
    total = len(text.encode("utf-8", "replace"))
    found = re.search(r"(?:^|\n)\[\.\.\. ([\d,]+) of ([\d,]+) bytes left out \.\.\.\](?:\n|$)", cut)
    assert found is not None
    head, tail = cut[: found.start()], cut[found.end() :]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(found[2].replace(",", "")) == total
    kept = len((head + tail).encode("utf-8", "replace"))
    assert total - kept - int(found[1].replace(",", "")) in {0, 1}, "a line's end may give way to the note's"
    assert sent_bytes(cut) <= max(most_bytes, sent_bytes(found[0]))


def test_an_image_that_does_not_fit_is_a_text_that_says_so() -> None:
    output = ToolOutput((IMAGE,))
    assert fitted(output, output_size(output)) is output
    assert fitted(output, output_size(output) - 1).content == (
        words("[image left out: it would not fit into the context]"),
    )


def test_an_image_that_fits_stays_and_leaves_its_text_the_rest() -> None:
    cut = fitted(ToolOutput((words(LINES), IMAGE, words("end"))), 8_000)
    assert not isinstance(cut.content, str)
    assert [block["type"] for block in cut.content] == ["text", "image", "text"]
    assert cut.content[1] is IMAGE
    assert cut.content[2] == words("end")
    assert 7_900 < output_size(cut) <= 8_000


BLOCKS = st.lists(st.one_of(AWKWARD.map(words), st.just(IMAGE)), min_size=1, max_size=5).map(tuple)


@given(st.one_of(AWKWARD, BLOCKS), st.integers(0, 20_000))
def test_a_result_fits_its_room_or_has_the_least(content, room) -> None:
    output = ToolOutput(content)
    cut = fitted(output, room)
    images = 0 if isinstance(cut.content, str) else sum(block["type"] == "image" for block in cut.content)
    least = LEAST_BYTES // 2 + 15
    assert output_size(cut) <= max(room, least + 65) + images * least, (
        "an image that stays may part two texts"
    )
    block = ToolResult("toolu_" + "x" * 24, cut).as_block()
    assert user_message([block]).size <= output_size(cut) + 20, (
        "the size is that of the message that it becomes"
    )
    to_json(block).decode()


def test_small_results_stay_whole_and_the_large_share_what_they_leave() -> None:
    small, large, larger = ToolOutput("x" * 3_000), ToolOutput("y" * 50_000), ToolOutput("z" * 900_000)
    cut = all_fitted([larger, small, large], 22_000)
    assert cut[1] is small
    assert [output_size(output) for output in cut] == pytest.approx([10_200, 1_565, 10_200], rel=0.01)
    assert sum(map(output_size, cut)) <= 22_000
    assert all_fitted([larger, small, large], 10**6) == (larger, small, large)
    assert all_fitted([larger], None)[0] is larger
    assert all_fitted([], 5) == ()


@given(st.lists(st.integers(0, 30_000), max_size=6), st.integers(0, 60_000))
def test_results_of_one_answer_fit_together(sizes, room) -> None:
    outputs = [ToolOutput("x" * size) for size in sizes]
    cut = all_fitted(outputs, room)
    if room >= len(outputs) * (LEAST_BYTES // 2 + 65):
        assert sum(map(output_size, cut)) <= room
    if sum(map(output_size, outputs)) <= room:
        assert all(a is b for a, b in zip(cut, outputs, strict=True))
