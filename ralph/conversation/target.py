"""The type of a target: one model at one endpoint, with keys, limits and prices. Plausible numbers of the server's
description replace the built-in ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.messages import RequestShape
from ralph.values.credentials import NO_HEADERS, Credential, Headers, secret_header_values
from ralph.values.servers import ANTHROPIC, MOST_TOKENS, ModelFacts, Price, facts_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ralph.values.answer import ToolDefinition


class ModelDescription(Struct, frozen=True):
    context_window: int | None
    """The window in tokens, of prompt and answer together. None if the server does not say."""
    max_output: int | None
    """The largest `max_tokens` that the server accepts. None if it does not say."""


def description_of(document: object) -> ModelDescription | None:
    """The description in an answer to `GET /v1/models/{id}`, or None if it has no usable number. `max_input_tokens` is
    taken as the whole window, as Anthropic documents it. If a server means the prompt alone, contexts are compacted
    early.
    """
    # In documents of another `type`, the same names have other meanings: LiteLLM's `max_tokens` may be a window.
    if not isinstance(document, dict) or document.get("type") != "model":
        return None
    return _of_fields(document, ("max_input_tokens",), ("max_tokens",))


_WINDOWS = ("max_model_len", "context_window", "context_length", "max_context_length")
"""The fields with a model's window: of vLLM and SGLang, Groq, OpenRouter, Mistral."""
_LONGEST = ("max_completion_tokens",)


def description_in_list(document: object, model: str) -> ModelDescription | None:
    """The description of `model` in an answer to `GET /models` of OpenAI's APIs, or None if it has no usable number."""
    models = document.get("data") if isinstance(document, dict) else None
    for entry in models if isinstance(models, list) else ():
        if isinstance(entry, dict) and entry.get("id") == model:
            # OpenRouter tells what its first server can do in an object of its own.
            provider = entry.get("top_provider")
            return _of_fields(
                {**(provider if isinstance(provider, dict) else {}), **entry}, _WINDOWS, _LONGEST
            )
    return None


def _of_fields(
    fields: dict[str, object], windows: Iterable[str], longest: Iterable[str]
) -> ModelDescription | None:
    description = ModelDescription(
        context_window=next(filter(None, (_tokens(fields.get(name)) for name in windows)), None),
        max_output=next(filter(None, (_tokens(fields.get(name)) for name in longest)), None),
    )
    return None if description == ModelDescription(None, None) else description


def described(facts: ModelFacts | None, description: ModelDescription | None) -> ModelFacts:
    """The facts, with the window and the longest answer of the description if it has them. Without `facts`, what it
    lacks is None. Prices never come from a server.
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


THINKING_CHOICES = ("adaptive", "between_tools", "disabled", "none")


class Target(Struct, frozen=True):
    name: str
    """In settings, events and messages to the user."""
    model: str
    """The id of the model, with aliases resolved."""
    base_url: str
    """As `normal_base_url` returns it for `api`."""
    credentials: tuple[Credential, ...] = ()
    """In the order in which they are tried. Without any, requests have no key."""
    headers: Headers = NO_HEADERS
    max_tokens: int | None = None
    """The longest answer in tokens. None is the default, or the model's maximum if that is lower."""
    effort: str | None = None
    context_window: int | None = None
    """In tokens, as set by the user. None is the model's known window."""
    thinking: str | None = None
    """One of THINKING_CHOICES. "none" leaves the field out. None does too, unless the model is known to need a type."""
    price: Price | None = None
    """As set by the user. None is the model's known price."""
    description: ModelDescription | None = None
    """None if the server gave none, or was not asked yet."""
    is_described: bool = False
    """Whether the server was asked for its description, which it may not have given."""
    api: str = ANTHROPIC
    """One of `values/servers.APIS`."""

    @property
    def key_count(self) -> int:
        """The keys to try: 1 without a key, because one request without it is possible."""
        return max(1, len(self.credentials))

    @property
    def secrets(self) -> tuple[str, ...]:
        """Must never be shown: the keys, and the values of headers that look like credentials."""
        keys = (credential.secret for credential in self.credentials)
        return tuple(dict.fromkeys((*keys, *secret_header_values(self.headers.plain))))

    @property
    def facts(self) -> ModelFacts | None:
        """The known facts about the model, or None. The user's settings take precedence over the server's description,
        and that over the built-in facts.
        """
        known = facts_of(self.model)
        if self.description is not None:
            known = described(known, self.description)
        if self.price is None and self.context_window is None:
            return known
        facts = known or ModelFacts(context_window=None, max_output=None, price=None)
        if self.price is not None:
            facts = replace(facts, price=self.price, long_prompt_price=None)
        if self.context_window is not None:
            facts = replace(facts, context_window=self.context_window)
        return facts

    def shape(self, system: str, tools: tuple[ToolDefinition, ...]) -> RequestShape:
        return RequestShape(
            model=self.model,
            system=system,
            tools=tools,
            max_tokens=self.max_tokens,
            effort=self.effort,
            thinking=self.thinking,
            endpoint=self.base_url,
        )
