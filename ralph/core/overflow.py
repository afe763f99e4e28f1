"""What a server says of its window when it refuses a request as too large. Pure.

Text is read here because servers give nothing else; a number that is not found is not guessed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ralph.core.model_description import MOST_TOKENS

if TYPE_CHECKING:
    from ralph.core.errors import AgentError

# Anthropic: "... 208310 tokens > 200000 maximum", "...: 178959 + 64000 > 200000, decrease ..."; OpenAI and vLLM:
# "maximum context length is 32768 tokens"; llama.cpp: "the available context size (4096 tokens)", "n_ctx": 4096.
_WINDOW = re.compile(
    r"tokens > (?P<maximum>\d{1,10}) maximum"
    r"|exceed context limit: \d{1,10} \+ \d{1,10} > (?P<limit>\d{1,10})"
    r"|maximum context length (?:is|of) (?P<length>\d{1,10})"
    r"|available context size \((?P<size>\d{1,10})"
    r"|n_ctx\W{1,6}(?P<n_ctx>\d{1,10})",
    re.IGNORECASE,
)


def named_window(error: AgentError) -> int | None:
    """Tokens of prompt and answer together; None: the refusal names none."""
    found = _WINDOW.search(str(error)) or _WINDOW.search(getattr(error, "body", ""))
    if found is None:
        return None
    tokens = int(next(number for number in found.groups() if number is not None))
    return tokens if 1 <= tokens <= MOST_TOKENS else None
