"""The vendors whose models ralph knows by name beside Anthropic: which models they have, and where their servers are."""

from __future__ import annotations

import re

from msgspec import Struct

from ralph.values.servers.endpoint import host_in, is_default
from ralph.values.servers.models import is_claude


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
