"""The models of other vendors: their facts, and where requests for them go."""

from __future__ import annotations

import pytest

from ralph.values.servers import MODELS, OTHER_MODELS, facts_of, vendor_of
from ralph.values.usage import TokenUsage, cost_usd


@pytest.mark.parametrize(
    ("model", "vendor", "api"),
    [
        ("gpt-6.1-sol", "OpenAI", "openai-responses"),
        ("o3", "OpenAI", "openai-responses"),
        ("gemini-4-argon", "Google", "openai-chat"),
        ("devstral-latest", "Mistral", "openai-chat"),
        ("grok-4.7", "xAI", "openai-chat"),
    ],
)
def test_a_model_names_its_vendor(model: str, vendor: str, api: str) -> None:
    found = vendor_of(model)
    assert found is not None
    assert (found.name, found.api) == (vendor, api)


@pytest.mark.parametrize("model", [*MODELS, "openai/gpt-6-sol", "qwen3:30b", "ollama", "o"])
def test_other_names_belong_to_no_vendor(model: str) -> None:
    assert vendor_of(model) is None


def test_each_known_model_has_a_vendor() -> None:
    assert [model for model in OTHER_MODELS if vendor_of(model) is None] == []


@pytest.mark.parametrize(
    ("model", "tokens", "usd"),
    [
        ("gpt-6-sol", TokenUsage(input=1_000, output=1_000, cache_read=100_000), 0.032),
        # Above 272,000 tokens of prompt, the prompt costs twice as much, and the answer 1.5 times.
        ("gpt-6-sol", TokenUsage(input=1_000, output=1_000, cache_read=300_000), 0.139),
        ("gpt-6-sol", TokenUsage(cache_write=100_000), 0.25),
        ("gpt-5.4", TokenUsage(cache_write=100_000), 0.25),
        ("gpt-5.4-2026-03-05", TokenUsage(output=1_000), 0.015),
        ("grok-4.7", TokenUsage(input=300_000, output=1_000), 1.212),
    ],
)
def test_prices(model: str, tokens: TokenUsage, usd: float) -> None:
    assert cost_usd(facts_of(model), tokens) == usd


def test_the_window_holds_prompt_and_answer() -> None:
    assert all(
        facts.context_window and facts.max_output and facts.max_output <= facts.context_window
        for facts in OTHER_MODELS.values()
    )
