"""The estimated size of a context is never too low, judged by the server's own counts, and uses bytes if there are
none.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.values.usage import (
    IMAGE_TOKENS,
    ContextMeter,
    content_size,
    is_over,
    may_be_too_large,
    threshold,
)
from tests.rows import every_row

TOKENS = st.integers(0, 10**7)
COUNTED = ContextMeter().counted("main", 1_000, 3_000)


@every_row(
    "source",
    [{"type": "base64", "data": "A" * 100}, {"type": "url", "url": "x"}, {"type": "base64", "data": 1}, None],
)
def test_of_an_image_its_data_does_not_count(source) -> None:
    data = len(source["data"]) if isinstance(source, dict) and isinstance(source.get("data"), str) else 0
    assert content_size([{"type": "image", "source": source}], 300) == (300 - data) // 2 + 4_784


def test_images_are_found_in_tool_results_and_nowhere_else() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 100}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image, image]}
    assert content_size([result, image], 400) == 50 + 3 * IMAGE_TOKENS
    call = {"type": "tool_use", "id": "a", "name": "x", "input": {"type": "image"}, "content": [image]}
    assert content_size([call], 400) == 200


@every_row(("window", "tokens"), [(200_000, 160_000), (1_000_000, 800_000), (8_192, 6_553)])
def test_the_threshold_is_80_percent_and_over_begins_behind_it(window, tokens) -> None:
    assert threshold(window) == tokens
    assert [is_over(tokens + more, window) for more in (-1, 0, 1)] == [False, False, True]


@every_row(
    ("size_now", "estimate"),
    [
        pytest.param(3_000, 1_000, id="what was counted"),
        pytest.param(3_001, 1_001, id="a token more"),
        pytest.param(13_000, 11_000, id="much more"),
        pytest.param(2_999, 2_999, id="less: another context"),
        pytest.param(10, 10, id="a fresh one"),
    ],
)
def test_the_estimate_is_the_count_and_what_came_since(size_now, estimate) -> None:
    assert COUNTED.estimate("main", size_now) == estimate


@every_row(
    ("output_tokens", "answer_size", "estimate"),
    [
        pytest.param(400, 500, 1_500, id="its bytes are more"),
        pytest.param(500, 500, 1_500, id="equal"),
        pytest.param(501, 500, 1_501, id="it thought in hiding"),
        pytest.param(9_000, 500, 10_000, id="it thought long"),
        pytest.param(0, 500, 1_500, id="nothing counted"),
    ],
)
def test_an_answer_counts_by_its_bytes_or_its_tokens_whichever_is_more(
    output_tokens, answer_size, estimate
) -> None:
    meter = COUNTED.answered("main", output_tokens, answer_size)
    assert meter.estimate("main", 3_000 + answer_size) == estimate
    assert meter.estimate("main", 3_000 + answer_size + 250) == estimate + 250


@every_row(
    ("size_now", "estimate"),
    [
        pytest.param(3_000, 1_500, id="half as much again"),
        pytest.param(3_001, 1_502, id="rounded up"),
        pytest.param(5_999, 5_999, id="at the size"),
        pytest.param(6_001, 6_001, id="never more than its size"),
        pytest.param(2_000, 1_500, id="without the other's thinking: no more than with it"),
        pytest.param(1_000, 1_000, id="a fresh context"),
    ],
)
def test_another_model_is_judged_by_the_newest_count(size_now, estimate) -> None:
    meter = ContextMeter().counted("old", 10, 3_000).counted("main", 7, 7).counted("main", 1_000, 3_000)
    assert meter.estimate("spare", size_now) == estimate


@every_row(("counted", "estimate"), [(100, 12_000), (1_249, 12_000), (1_250, 3_250), (2_000, 4_000)])
def test_a_count_far_below_what_the_bytes_allow_is_no_count(counted, estimate) -> None:
    """20,000 bytes are at least 1,250 tokens."""
    assert ContextMeter().counted("main", counted, 10_000).estimate("main", 12_000) == estimate
    assert ContextMeter().counted("main", counted, 10_000).afresh().estimate("main", 12_000) <= 12_000


@every_row(
    ("size", "answered", "estimate", "window", "may_be"),
    [
        pytest.param(151, 100, 61, 100, True, id="more than half as much again, and more than 60 percent"),
        pytest.param(150, 100, 61, 100, False, id="half as much again"),
        pytest.param(151, 100, 60, 100, False, id="60 percent"),
        pytest.param(151, None, 61, 100, False, id="a first request"),
        pytest.param(
            100_001, 50_000, 1, None, True, id="without a window: more than 100,000 tokens by its bytes"
        ),
        pytest.param(100_000, 50_000, 10**6, None, False, id="without a window: 100,000 tokens"),
        pytest.param(100_001, 70_000, 1, None, False, id="without a window: not much more than before"),
    ],
)
def test_when_the_size_may_be_the_reason_of_a_refusal(size, answered, estimate, window, may_be) -> None:
    assert may_be_too_large(size, answered, estimate, window) is may_be


@given(st.lists(st.tuples(st.sampled_from("ab"), TOKENS, TOKENS), max_size=6), TOKENS)
def test_a_context_smaller_than_what_was_counted_is_measured_by_its_bytes(counts, size_now) -> None:
    meter = ContextMeter()
    for model, tokens, size in counts:
        meter = meter.counted(model, tokens, size_now + 1 + size)
    assert meter.estimate("a", size_now) <= size_now
    if "a" in meter.counts:
        assert meter.estimate("a", size_now) == size_now
