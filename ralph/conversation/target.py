"""A target: one model at one endpoint, with its keys, limits and prices. Values only.

`retry/targets.py` decides which target gets a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.model_description import ModelDescription, described
from ralph.values.credentials import NO_HEADERS, secret_header_values
from ralph.values.models import ModelFacts, Price, facts_of

if TYPE_CHECKING:
    from ralph.conversation.messages import RequestShape
    from ralph.values.credentials import Credential, Headers
    from ralph.values.tool_calls import ToolDefinition

THINKING_CHOICES = ("adaptive", "between_tools", "disabled", "none")


class Target(Struct, frozen=True):
    name: str
    """The name in settings, events and messages to people."""
    model: str
    """The model's id; aliases are resolved."""
    base_url: str
    """The address without a closing `/` or `/v1`."""
    credentials: tuple[Credential, ...] = ()
    """The keys, in the order in which they are tried; empty: requests carry none."""
    headers: Headers = NO_HEADERS
    """Headers of every request, besides the credential."""
    max_tokens: int | None = None
    """The longest answer in tokens; None: the default, or the model's maximum if that is less."""
    effort: str | None = None
    context_window: int | None = None
    """The window in tokens that the user has set; None: the window that the model is known to have."""
    thinking: str | None = None
    """One of THINKING_CHOICES. "none": the field is left out. None: the type that the model is known to need."""
    price: Price | None = None
    """The price that the user has set; None: the model's known price."""
    description: ModelDescription | None = None
    """The server's description of the model; None: there is none, or it was not requested yet."""
    is_described: bool = False
    """The description has been requested, with or without success."""

    @property
    def key_count(self) -> int:
        """The number of keys to try; 1 if the target has no key, because one request without a key is tried."""
        return max(1, len(self.credentials))

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must never be shown: the keys, and headers that look like keys."""
        keys = (credential.secret for credential in self.credentials)
        return tuple(dict.fromkeys((*keys, *secret_header_values(self.headers.plain))))

    @property
    def facts(self) -> ModelFacts | None:
        """The model's known facts: the user's settings first, then the server's description; None: nothing is known."""
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
        """The fixed part of requests to this target."""
        from ralph.conversation.messages import RequestShape  # noqa: PLC0415 - settings are read without it

        return RequestShape(
            model=self.model,
            system=system,
            tools=tools,
            max_tokens=self.max_tokens,
            effort=self.effort,
            thinking=self.thinking,
            endpoint=self.base_url,
        )
