"""Tokens and money: what is added up, what has a price, and what is unknown."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import astuple

from ralph.values.servers import MODELS, facts_of, max_tokens_for
from ralph.values.usage import RunUsage, TokenUsage, cost_usd, tokens_of, total_usd, with_later_usage
from tests.rows import every_row

MILLION = 1_000_000


@every_row(
    ("tokens", "usd"),
    [
        (TokenUsage(input=MILLION), 4),
        (TokenUsage(output=MILLION), 20),
        (TokenUsage(cache_write=MILLION), 5),
        (TokenUsage(cache_write=MILLION, cache_write_1h=MILLION), 8),
        (TokenUsage(cache_read=MILLION), 0.20),
        (TokenUsage(MILLION, MILLION, MILLION, 0, MILLION), 29.20),
    ],
)
def test_each_kind_of_token_has_its_price(tokens: TokenUsage, usd: float) -> None:
    assert cost_usd(facts_of("claude-opus-5-5"), tokens) == pytest.approx(usd)


@every_row(("prompt", "usd"), [(100_000, 0.01), (100_001, 0.0500005)])
def test_a_long_prompt_prices_the_whole_request(prompt: int, usd: float) -> None:
    assert cost_usd(facts_of("claude-haiku-5-5"), TokenUsage(input=prompt)) == pytest.approx(usd)


def test_a_sum_of_costs_has_no_digits_that_only_floats_add() -> None:
    assert (total_usd([0.1, 0.2]), total_usd([])) == (0.3, 0.0)
    assert total_usd([0.1, None]) is None
    assert cost_usd(facts_of("claude-opus-5-5"), TokenUsage(input=1, output=3, cache_read=7)) == 0.0000654


def test_an_unknown_price_is_none_and_stays_none_in_the_sum() -> None:
    assert cost_usd(facts_of("qwen3"), TokenUsage(input=1)) is None
    assert cost_usd(facts_of("claude-fable-5-2"), TokenUsage(input=1)) is None
    mixed = (
        RunUsage()
        .plus("claude-opus-5-5", TokenUsage(input=1), facts_of("claude-opus-5-5"))
        .plus("qwen3", TokenUsage(input=2), facts_of("qwen3"))
    )
    assert mixed.cost_usd is None
    assert mixed.tokens.input == 3


def test_an_empty_run_costs_nothing() -> None:
    assert RunUsage().cost_usd == 0


@every_row("value", [None, "7", -1, True, 1.5, {}])
def test_a_senseless_count_is_zero(value: object) -> None:
    assert tokens_of({"input_tokens": value, "output_tokens": 3}) == TokenUsage(output=3)


def test_dated_ids_are_known_and_strangers_are_not() -> None:
    assert facts_of("claude-opus-4-5-20251101") is MODELS["claude-opus-4-5"]
    assert facts_of("claude-opus-4-5-2025110") is None
    assert facts_of("opus") is None


@every_row(
    ("model", "known", "factor"),
    [
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5", 1),
        ("claude-opus-4-6@default", "claude-opus-4-6", 1),
        ("anthropic.claude-sonnet-5-5", "claude-sonnet-5-5", 1.1),
        ("global.anthropic.claude-haiku-5-5", "claude-haiku-5-5", 1),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5", 1.1),
        ("us-gov.anthropic.claude-haiku-5-5", "claude-haiku-5-5", 1.2),
        ("eu.anthropic.claude-opus-4-6-v1", "claude-opus-4-6", 1.1),
        (
            "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-opus-4-6-v1",
            "claude-opus-4-6",
            1.1,
        ),
        ("us.anthropic.claude-x-v1:0", None, 1),
        ("anthropic.claude-fable-5-2", "claude-fable-5-2", None),
        ("anthropic/claude-opus-4-6", None, 1),
        ("claude-opus-4-6-v1", None, 1),
    ],
)
def test_the_ids_of_bedrock_and_vertex_are_known_with_the_prices_there(model, known, factor) -> None:
    facts = facts_of(model)
    if known is None:
        assert facts is None
        return
    assert facts is not None
    expected = MODELS[known]
    assert (facts.context_window, facts.needs_adaptive) == (expected.context_window, expected.needs_adaptive)
    for price, at_anthropic in (
        (facts.price, expected.price),
        (facts.long_prompt_price, expected.long_prompt_price),
    ):
        assert (price is None) is (at_anthropic is None)
        if price is not None and at_anthropic is not None:
            assert astuple(price) == pytest.approx([factor * usd for usd in astuple(at_anthropic)])


@every_row(
    ("model", "requested", "limit"),
    [
        ("claude-haiku-4-5", 64_000, 64_000),
        ("claude-haiku-4-5", 64_001, 64_000),
        ("claude-opus-5-5", None, 32_000),
        ("qwen3", 1_000_000, 1_000_000),
    ],
)
def test_max_tokens_is_what_was_requested_up_to_the_models_maximum(
    model: str, requested: int | None, limit: int
) -> None:
    assert max_tokens_for(model, requested) == limit


@every_row(
    ("known", "later", "merged"),
    [
        ({"input_tokens": 5}, {"input_tokens": 7}, {"input_tokens": 7}),
        ({"input_tokens": 5}, {"input_tokens": 3}, {"input_tokens": 3}),
        ({"input_tokens": 5}, {"input_tokens": 0}, {"input_tokens": 5}),
        ({"input_tokens": 5}, {"input_tokens": 0.0}, {"input_tokens": 5}),
        ({"input_tokens": 5}, {"input_tokens": None}, {"input_tokens": 5}),
        ({"input_tokens": 5}, {"input_tokens": "9"}, {"input_tokens": 5}),
        ({"input_tokens": 5}, {"input_tokens": -1}, {"input_tokens": 5}),
        ({"input_tokens": 5}, {"input_tokens": {}}, {"input_tokens": 5}),
        ({"input_tokens": 0}, {"input_tokens": 5}, {"input_tokens": 5}),
        ({"input_tokens": None}, {"input_tokens": 0}, {"input_tokens": 0}),
        ({"detail": {"a": 5, "b": 1}}, {"detail": {"a": 0, "b": 2}}, {"detail": {"a": 5, "b": 2}}),
        ({"detail": {"a": 5}}, {"detail": None}, {"detail": {"a": 5}}),
        ({"detail": {"a": 5}}, {"detail": 0}, {"detail": {"a": 5}}),
        ({"detail": None}, {"detail": {"a": 5}}, {"detail": {"a": 5}}),
        ({"service_tier": "standard"}, {"service_tier": "batch"}, {"service_tier": "batch"}),
        ({}, {"input_tokens": 5}, {"input_tokens": 5}),
    ],
)
def test_a_later_total_replaces_a_count_and_a_0_replaces_none(
    known: dict[str, Any], later: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert with_later_usage(known, later) == merged


@every_row(
    ("usage", "tokens"),
    [
        ({"cache_creation_input_tokens": 9, "cache_creation": {"ephemeral_1h_input_tokens": 4}}, (9, 4)),
        ({"cache_creation": {"ephemeral_1h_input_tokens": 4, "ephemeral_5m_input_tokens": 2}}, (6, 4)),
        ({"cache_creation_input_tokens": 0, "cache_creation": {"ephemeral_5m_input_tokens": 2}}, (2, 0)),
    ],
)
def test_what_was_written_to_the_cache_counts_where_only_its_parts_are_told(
    usage: dict[str, Any], tokens: tuple[int, int]
) -> None:
    assert tokens_of(usage) == TokenUsage(cache_write=tokens[0], cache_write_1h=tokens[1])
