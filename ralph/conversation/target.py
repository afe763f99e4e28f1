"""Who can be asked: one model behind one endpoint, with its keys, its limits and its prices. Values only.

Which target is asked when is `retry/targets.py`'s business.
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
    """Its keys, in the order they are tried; empty: requests carry none."""
    headers: Headers = NO_HEADERS
    """Sent with every request beside the credential."""
    max_tokens: int | None = None
    """Largest answer in tokens; None: the default, or the model's maximum where that is less."""
    effort: str | None = None
    context_window: int | None = None
    """Tokens; None: what is known of the model."""
    thinking: str | None = None
    """One of THINKING_CHOICES; "none": the request does not speak of it; None: what is known of the model."""
    price: Price | None = None
    """The price that the user gave; None: the known price of the model."""
    description: ModelDescription | None = None
    """The server's own word on the model; None: it has said nothing."""
    is_described: bool = False
    """The server has been asked."""

    @property
    def key_count(self) -> int:
        """How many ways there are to ask it: without a key there is one too."""
        return max(1, len(self.credentials))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that must never be shown: its keys, and headers that look like one. Empty: it needs no
        key.
        """
        keys = (credential.secret for credential in self.credentials)
        return tuple(dict.fromkeys((*keys, *secret_header_values(self.headers.plain))))

    @property
    def facts(self) -> ModelFacts | None:
        """The known facts of the model: the user's own settings first, then the server's description; None:
        there are none.
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
        """The fixed part of the requests it is sent."""
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
