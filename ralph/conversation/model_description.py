"""A server's description of its model, and its effect on the known facts. Pure. Implausible numbers are ignored."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ralph.values.models import ModelFacts

MOST_TOKENS = 1_000_000_000
"""The largest number to believe: a thousand times the largest window in `MODELS`."""


class ModelDescription(Struct, frozen=True):
    context_window: int | None
    """Tokens of prompt and answer together; None: not in the description."""
    max_output: int | None
    """The largest `max_tokens` that the server accepts; None: not in the description."""


def description_of(document: object) -> ModelDescription | None:
    """The description in the answer to `GET /v1/models/{id}`; None: the answer has no usable description.

    `max_input_tokens` ("maximum input context window size" at Anthropic) is taken as the whole window. If a server
    means only the prompt, the window is too small by one answer: a context is compacted early and never overflows.
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
    """A model's known facts, with the server's window and longest answer. Prices never come from a server."""
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
