"""A server's description of its model, and what it changes. Pure; numbers that no model has are not believed."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ralph.values.models import ModelFacts

MOST_TOKENS = 1_000_000_000
"""A thousand times the largest window of `MODELS`: more is a mistake."""


class ModelDescription(Struct, frozen=True):
    context_window: int | None
    """Tokens of prompt and answer together; None: the server does not say."""
    max_output: int | None
    """Largest `max_tokens` the server accepts; None: it does not say."""


def description_of(document: object) -> ModelDescription | None:
    """The description in an answer to `GET /v1/models/{id}`; None: nothing usable.

    `max_input_tokens`, "maximum input context window size" in Anthropic's words, is taken for the whole
    window. Where a server means the prompt alone, that is too little by one answer: a context is compacted
    early and never overflows.
    """
    # In other shapes the same names mean other things: LiteLLM's `max_tokens` may be a window.
    if not isinstance(document, dict) or document.get("type") != "model":
        return None
    description = ModelDescription(
        context_window=_tokens(document.get("max_input_tokens")),
        max_output=_tokens(document.get("max_tokens")),
    )
    return None if description == ModelDescription(None, None) else description


def described(facts: ModelFacts | None, description: ModelDescription | None) -> ModelFacts:
    """The known facts of a model, with window and longest answer as the server describes them. Prices are not
    the server's to name.
    """
    known = facts or ModelFacts(context_window=None, max_output=None, price=None)
    if description is None:
        return known
    return replace(
        known,
        context_window=description.context_window or known.context_window,
        max_output=description.max_output or known.max_output,
    )


def _tokens(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 1 <= value <= MOST_TOKENS else None
