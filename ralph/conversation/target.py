"""The type of a target: one model at one endpoint, with its keys, limits and prices.

`retry/targets.py` decides which target gets a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.messages import RequestShape
from ralph.values.credentials import NO_HEADERS, Credential, Headers, secret_header_values
from ralph.values.servers.endpoint import ANTHROPIC
from ralph.values.servers.models import ModelFacts, Price, facts_of

if TYPE_CHECKING:
    from ralph.values.answer import ToolDefinition


THINKING_CHOICES = ("adaptive", "between_tools", "disabled", "none")


class Target(Struct, frozen=True):
    name: str
    """The name in settings, events and messages to the user."""
    model: str
    """The id of the model. Aliases are already resolved."""
    base_url: str
    """The base URL, as `normal_base_url` returns it for `api`."""
    credentials: tuple[Credential, ...] = ()
    """The keys in the order in which they are tried. If there are none, requests contain no key."""
    headers: Headers = NO_HEADERS
    """Additional headers of every request."""
    max_tokens: int | None = None
    """The longest answer in tokens. If it is None, the limit is the default or the model's maximum, whichever is
    lower."""
    effort: str | None = None
    context_window: int | None = None
    """The context window in tokens as set by the user. None means the known window of the model."""
    thinking: str | None = None
    """One of THINKING_CHOICES. "none" leaves the field out of requests. If it is None, ralph uses the type that the
    model is known to need, or leaves the field out."""
    price: Price | None = None
    """The price as set by the user. None means the known price of the model."""
    api: str = ANTHROPIC
    """The API of the server, one of `values/servers/endpoint.APIS`."""

    @property
    def key_count(self) -> int:
        """The number of keys that ralph can try. It is 1 if the target has no key, because one request without a key
        is possible.
        """
        return max(1, len(self.credentials))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that must never be shown: the keys, and the values of headers that look like credentials."""
        keys = (credential.secret for credential in self.credentials)
        return tuple(dict.fromkeys((*keys, *secret_header_values(self.headers.plain))))

    @property
    def facts(self) -> ModelFacts | None:
        """The known facts about the model, or None if nothing is known. Settings of the user take precedence over ralph's
        built-in facts.
        """
        known = facts_of(self.model)
        if self.price is None and self.context_window is None:
            return known
        facts = known or ModelFacts(context_window=None, max_output=None, price=None)
        if self.price is not None:
            facts = replace(facts, price=self.price, long_prompt_price=None)
        if self.context_window is not None:
            facts = replace(facts, context_window=self.context_window)
        return facts

    def shape(self, system: str, tools: tuple[ToolDefinition, ...]) -> RequestShape:
        """The settings for requests to this target. `system` is the system prompt, and `tools` are the tools."""
        return RequestShape(
            model=self.model,
            system=system,
            tools=tools,
            max_tokens=self.max_tokens,
            effort=self.effort,
            thinking=self.thinking,
            endpoint=self.base_url,
        )
