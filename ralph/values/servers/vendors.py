"""The vendors whose models ralph knows by name beside Anthropic, and the facts about these models.

Windows, longest answers and prices are those of LiteLLM 1.110.2 (`model_prices_and_context_window_backup.json`, in
which `input_cost_per_token_above_...` is the price of long prompts), read on 2026-11-29. A model that its vendor has
announced to end by then is left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.values.servers.endpoint import host_in, is_default
from ralph.values.servers.models import ModelFacts, Price, is_claude

if TYPE_CHECKING:
    from collections.abc import Mapping

_DATE = r"-20\d\d-\d\d-\d\d"


class Vendor(Struct, frozen=True):
    """Where requests for the models of a vendor go if the user names only the model."""

    name: str
    models: str
    """A pattern of the beginning of the models' ids."""
    api: str
    base_url: str
    key_variable: str


OPENAI = Vendor("OpenAI", r"gpt-|o\d|codex-", "openai-responses", "https://api.openai.com", "OPENAI_API_KEY")
VENDORS = (
    OPENAI,
    Vendor(
        "Google",
        "gemini-",
        "openai-chat",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
    ),
    Vendor("DeepSeek", "deepseek-", "openai-chat", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    Vendor(
        "Mistral",
        "mistral-|devstral-|codestral-|magistral-",
        "openai-chat",
        "https://api.mistral.ai",
        "MISTRAL_API_KEY",
    ),
    Vendor("xAI", "grok-", "openai-chat", "https://api.x.ai", "XAI_API_KEY"),
    Vendor("Moonshot", "kimi-", "openai-chat", "https://api.moonshot.ai", "MOONSHOT_API_KEY"),
    Vendor("Z.ai", "glm-", "openai-chat", "https://api.z.ai/api/paas/v4", "ZAI_API_KEY"),
)


def vendor_of(model: str) -> Vendor | None:
    """The vendor of a model, or None if the id is that of no known vendor. Ids that a gateway has changed, such as
    `openai/gpt-6-sol`, belong to the gateway.
    """
    return next((vendor for vendor in VENDORS if re.match(vendor.models, model)), None)


def vendor_at(base_url: str) -> Vendor | None:
    """The vendor whose own server this is, or None."""
    host = host_in(base_url)
    return next((vendor for vendor in VENDORS if host_in(vendor.base_url) == host), None)


def vendor_elsewhere(model: str, base_url: str) -> str | None:
    """The name of the vendor of the model, if the server is another vendor's own. None if the model or the server is that of
    no known vendor.
    """
    of_model = "Anthropic" if is_claude(model) else getattr(vendor_of(model), "name", None)
    of_server = "Anthropic" if is_default(base_url) else getattr(vendor_at(base_url), "name", None)
    return of_model if of_server not in {None, of_model} else None


def _facts(
    window: int,
    longest: int,
    read: float,
    written: float,
    cached: float,
    *,
    stored: float | None = None,
    long_from: int = 0,
    long_written: float = 1.5,
    takes_effort: bool = True,
) -> ModelFacts:
    """`read`, `written`, `cached` and `stored` are the prices of tokens of the prompt, of the answer, of the prompt from
    the cache, and of the prompt that is put into it, in USD per million. If `stored` is None, that costs nothing more.
    Prompts of more than `long_from` tokens cost twice as much, and their answers `long_written` times.
    """
    stored = read if stored is None else stored
    twice = Price(2 * read, long_written * written, 2 * stored, 2 * stored, 2 * cached)
    return ModelFacts(
        window,
        longest,
        Price(read, written, stored, stored, cached),
        takes_effort=takes_effort,
        long_prompt_price=twice if long_from else None,
        long_prompt_tokens=long_from,
    )


def _gpt(read: float, written: float, cached: float, stored: float | None = None) -> ModelFacts:
    return _facts(1_050_000, 128_000, read, written, cached, stored=stored, long_from=272_000)


def _gpt_5(read: float, written: float, cached: float) -> ModelFacts:
    return _facts(400_000, 128_000, read, written, cached)


def _gemini(read: float, written: float, cached: float, long_from: int = 0) -> ModelFacts:
    return _facts(1_048_576, 65_536, read, written, cached, long_from=long_from)


def _mistral(read: float, written: float, cached: float, window: int = 262_144) -> ModelFacts:
    return _facts(window, window, read, written, cached, takes_effort=False)


def _grok(read: float, written: float, cached: float, window: int = 500_000) -> ModelFacts:
    return _facts(window, window, read, written, cached, long_from=200_000, long_written=2.0)


OTHER_MODELS: Mapping[str, ModelFacts] = {
    "gpt-6.1-sol": _gpt(2, 10, 0.1, 2.5),
    "gpt-6.1-terra": _gpt(1, 5, 0.05, 1.25),
    "gpt-6-astra": _gpt(10, 50, 1, 12.5),
    "gpt-6-sol": _gpt(2, 10, 0.2, 2.5),
    "gpt-6-luna": _gpt(0.1, 0.5, 0.01, 0.125),
    **dict.fromkeys(("gpt-5.6", "gpt-5.6-sol"), _gpt(4, 20, 0.4, 5)),
    "gpt-5.6-terra": _gpt(2, 12, 0.2, 2.5),
    "gpt-5.6-luna": _gpt(0.2, 1.2, 0.02, 0.25),
    "gpt-5.5": _gpt(5, 30, 0.5),
    "gpt-5.4": _gpt(2.5, 15, 0.25),
    "gpt-5.4-mini": _gpt_5(0.75, 4.5, 0.075),
    "gpt-5.4-nano": _gpt_5(0.2, 1.25, 0.02),
    **dict.fromkeys(("gpt-5.2", "gpt-5.3-codex"), _gpt_5(1.75, 14, 0.175)),
    **dict.fromkeys(("gpt-5", "gpt-5.1"), _gpt_5(1.25, 10, 0.125)),
    "gpt-5-mini": _gpt_5(0.25, 2, 0.025),
    "gpt-5-nano": _gpt_5(0.05, 0.4, 0.005),
    "gpt-4.1": _facts(1_047_576, 32_768, 2, 8, 0.5, takes_effort=False),
    "gpt-4.1-mini": _facts(1_047_576, 32_768, 0.4, 1.6, 0.1, takes_effort=False),
    "o3": _facts(200_000, 100_000, 2, 8, 0.5),
    "gemini-4-argon": _facts(1_048_576, 1_048_576, 2, 10, 0.1),
    "gemini-4-hydrogen": _facts(1_048_576, 1_048_576, 1.5, 7.5, 0.075),
    **dict.fromkeys(("gemini-3.6-flash", "gemini-3.7-flash", "gemini-3.8-flash"), _gemini(0.75, 3.75, 0.075)),
    "gemini-3.5-flash": _gemini(1.5, 9, 0.15),
    "gemini-3.5-flash-lite": _gemini(0.3, 2.5, 0.03),
    "gemini-3.1-pro-preview": _gemini(2, 12, 0.2, long_from=200_000),
    "gemini-3.1-flash-lite": _gemini(0.25, 1.5, 0.025),
    "gemini-3-flash-preview": _gemini(0.5, 3, 0.05),
    "gemini-2.5-flash": _gemini(0.3, 2.5, 0.03),
    "gemini-2.5-pro": _gemini(1.25, 10, 0.125, long_from=200_000),
    **dict.fromkeys(("deepseek-flash", "deepseek-v4-flash"), _facts(1_000_000, 393_216, 0.3, 1.2, 0.006)),
    "deepseek-v4-pro": _facts(1_000_000, 393_216, 1.32, 3.96, 0.044),
    "mistral-large-4": _mistral(0.7, 2.1, 0.07, window=1_048_576),
    **dict.fromkeys(("mistral-large-3", "mistral-large-latest"), _mistral(0.5, 1.5, 0.05)),
    **dict.fromkeys(("mistral-medium-3-5", "mistral-medium-latest"), _mistral(1.5, 7.5, 0.15)),
    "mistral-small-latest": _mistral(0.15, 0.6, 0.015),
    **dict.fromkeys(("devstral-latest", "devstral-medium-latest"), _mistral(0.4, 2, 0.04, window=256_000)),
    "devstral-small-latest": _mistral(0.1, 0.3, 0.01, window=256_000),
    "codestral-latest": _mistral(0.3, 0.9, 0.03, window=128_000),
    **dict.fromkeys(("grok-4.6", "grok-4.7"), _grok(2, 6, 0.5)),
    "grok-4.5": _grok(2, 6, 0.3),
    **dict.fromkeys(("grok-4.3", "grok-4.20"), _grok(1.25, 2.5, 0.2, window=1_000_000)),
    "kimi-k3.1-pro": _facts(1_048_576, 1_048_576, 2, 10, 0.2),
    "kimi-k3": _facts(1_048_576, 1_048_576, 3, 15, 0.3),
    "kimi-k2.7-code": _facts(262_144, 262_144, 0.95, 4, 0.19),
    "kimi-k2.6": _facts(262_144, 262_144, 0.95, 4, 0.16),
    **dict.fromkeys(("glm-5.2", "glm-5.3"), _facts(1_000_000, 128_000, 1.4, 4.4, 0.26)),
    "glm-5.3-flash": _facts(1_048_576, 128_000, 0.15, 0.5, 0.03),
    "glm-5.1": _facts(200_000, 128_000, 1.4, 4.4, 0.26),
    "glm-5": _facts(200_000, 128_000, 1, 3.2, 0.2),
    **dict.fromkeys(("glm-4.6", "glm-4.7"), _facts(200_000, 128_000, 0.6, 2.2, 0.11)),
}


def facts_of_other(model: str) -> ModelFacts | None:
    """The facts about a model of another vendor than Anthropic. None if the model is unknown."""
    return OTHER_MODELS.get(model) or OTHER_MODELS.get(re.sub(_DATE + "$", "", model))
