"""Reads the context window from a server's refusal of a request that is too large. Pure.

It reads the message because servers give nothing else; a number that is missing is not guessed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ralph.conversation.model_description import MOST_TOKENS

if TYPE_CHECKING:
    from ralph.values.errors import AgentError

# Anthropic: "... 208310 tokens > 200000 maximum", "...: 178959 + 64000 > 200000, decrease ..."; OpenAI and vLLM:
# "maximum context length is 32768 tokens"; llama.cpp: "the available context size (4096 tokens)", "n_ctx": 4096.
_WINDOW = (
    r"tokens > (?P<maximum>\d{1,10}) maximum"
    r"|exceed context limit: \d{1,10} \+ \d{1,10} > (?P<limit>\d{1,10})"
    r"|maximum context length (?:is|of) (?P<length>\d{1,10})"
    r"|available context size \((?P<size>\d{1,10})"
    r"|n_ctx\W{1,6}(?P<n_ctx>\d{1,10})"
)


_PROMPT = (
    r"too long: (?P<prompt>\d{1,10}) tokens >"
    r"|exceed context limit: (?P<input>\d{1,10}) \+"
    r"|\((?P<messages>\d{1,10}) in the messages"
    r"|n_prompt_tokens\W{1,6}(?P<n_prompt>\d{1,10})"
)


class Refused(NamedTuple):
    window: int
    """Tokens of prompt and answer together."""
    prompt: int
    """Tokens of the request that did not fit."""

    def leaves(self, answer_tokens: int) -> bool:
        """Whether the same prompt would fit with a shorter answer."""
        return self.prompt + answer_tokens <= self.window


def refused(error: AgentError) -> Refused | None:
    """The numbers in a refusal; None: it does not have both."""
    window, prompt = (_number(pattern, error) for pattern in (_WINDOW, _PROMPT))
    return None if window is None or prompt is None else Refused(window, prompt)


def _number(pattern: str, error: AgentError) -> int | None:
    said, body = str(error), getattr(error, "body", "")
    found = re.search(pattern, said, re.IGNORECASE) or re.search(pattern, body, re.IGNORECASE)
    if found is None:
        return None
    tokens = int(next(number for number in found.groups() if number is not None))
    return tokens if 1 <= tokens <= MOST_TOKENS else None
