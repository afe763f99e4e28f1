"""A server's description of a model. The numbers in it replace ralph's built-in numbers. No I/O happens here.
Implausible numbers in a description are ignored.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ralph.values.models import ModelFacts

MOST_TOKENS = 1_000_000_000
"""The largest plausible number of tokens. It is a thousand times the largest context window in `MODELS`."""


class ModelDescription(Struct, frozen=True):
    context_window: int | None
    """The maximum number of tokens of prompt and answer together, or None if the server does not say."""
    max_output: int | None
    """The largest `max_tokens` that the server accepts, or None if the server does not say."""


def description_of(document: object) -> ModelDescription | None:
    """The description in an answer to `GET /v1/models/{id}`. None if the answer contains no usable number.

    `max_input_tokens` is read as the size of the whole context window, as Anthropic documents it. Another server may
    mean the prompt alone. Ralph then assumes a window that is too small, and compacts contexts early. They do not
    overflow.
    """
    # In documents of another `type`, the same names have other meanings: LiteLLM's `max_tokens` may be a window.
    if not isinstance(document, dict) or document.get("type") != "model":
        return None
    description = ModelDescription(
        context_window=_tokens(document.get("max_input_tokens")),
        max_output=_tokens(document.get("max_tokens")),
    )
    return None if description == ModelDescription(None, None) else description


def described(facts: ModelFacts | None, description: ModelDescription | None) -> ModelFacts:
    """The facts about a model. The context window and the longest answer come from the server's description.

    If the description lacks one of these numbers, the number is taken from `facts`, or is None if `facts` is None.
    Prices never come from a server.
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
