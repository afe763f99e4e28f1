"""The known texts and codes with which servers refuse a request for a reason that their status does not show. Each row names
the server that uses it and the report that shows it.

A text counts only with the statuses of its row, because the same words may mean something else with another status: a
limit of tokens per minute (429) also asks for a shorter prompt. A code has one meaning, so it counts with any status.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.values.servers.models import MOST_TOKENS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ralph.values.errors import AgentError

_REQUEST = frozenset({400, 422, 500, None})
"""The statuses of a request that the server could not process. Gateways wrap such a refusal in 500. None stands for an
error inside a stream that names no status."""


class KnownRefusal(Struct, frozen=True):
    vendor: str
    source: str
    text: str = ""
    """A regular expression for the text, which ignores case. Empty if only the code counts. Its groups `window` and
    `prompt` are the sizes in tokens that the text states."""
    code: str = ""
    """The error's code or its type. Empty if only the text counts."""
    statuses: frozenset[int | None] = _REQUEST
    """The statuses with which the text counts."""

    def is_in(self, status: int | None, codes: Collection[str | None], text: str) -> bool:
        """Whether an error with this status, these codes and this text is this refusal."""
        if self.code and self.code in codes:
            return True
        return status in self.statuses and self.search(text) is not None

    def search(self, text: str) -> re.Match[str] | None:
        # `re` compiles the expression when it is first used, because only a failure needs it.
        return re.search(self.text, text, re.IGNORECASE | re.DOTALL) if self.text else None


OVERFLOWS = (
    KnownRefusal(
        "Anthropic",
        "crmne/ruby_llm#755",
        r"prompt is too long(?:: (?P<prompt>\d{1,10}) tokens > (?P<window>\d{1,10}) maximum)?",
    ),
    KnownRefusal(
        "Anthropic, older models",
        "anthropics/claude-code#16580",
        r"exceed context limit(?:: (?P<prompt>\d{1,10}) \+ \d{1,10} > (?P<window>\d{1,10}))?",
    ),
    KnownRefusal(
        "Anthropic, subscriptions",
        "anthropics/claude-code#42616, NousResearch/hermes-agent#4747",
        r"extra usage is required for long context",
        statuses=frozenset({400, 429}),
    ),
    KnownRefusal("Anthropic on Bedrock", "badlogic/pi-mono, overflow.ts", r"input is too long"),
    KnownRefusal(
        "OpenAI, vLLM, OpenRouter, Mistral, DeepSeek, MLX",
        "earendil-works/pi#5930, earendil-works/pi#5701, vllm-project/vllm#20409, OpenHands/OpenHands#9937",
        r"maximum context length(?: (?:is|of) (?P<window>\d{1,10})(?:.{0,99}?(?P<prompt>\d{1,10}) (?:in the messages"
        r"|in your prompt|of text input, \d{1,10} in the output|input tokens \())?)?",
        "context_length_exceeded",
    ),
    KnownRefusal("OpenAI through gateways", "senpi#1466", r"exceeds? the (?:model'?s )?context window"),
    KnownRefusal("Azure", "letta-ai/letta, error_utils.py", r"input tokens exceed the configured limit"),
    KnownRefusal(
        "llama.cpp",
        "ggml-org/llama.cpp#15780",
        r"exceed_context_size_error(?:.*?n_prompt_tokens\W{1,6}(?P<prompt>\d{1,10}).*?n_ctx\W{1,6}(?P<window>\d{1,10}))?",
        "exceed_context_size_error",
    ),
    KnownRefusal(
        "llama.cpp",
        "janhq/jan#8108, ggml-org/llama.cpp#19774",
        r"exceeds the available context|context size has been exceeded",
    ),
    KnownRefusal(
        "llama-cpp-python", "abetlen/llama-cpp-python#416", r"tokens.{0,20} exceed context window of \d"
    ),
    # What the prompt leaves of the window.
    KnownRefusal("vLLM", "vllm-project/vllm#4667, ovh/shai#97", r"max_tokens must be at least 1, got -\d"),
    KnownRefusal(
        "vLLM",
        "vllm-project/vllm#12165, Gabesarch/grounded-rl#16",
        r"too long to fit into the model|longer than the maximum model length",
    ),
    KnownRefusal("SGLang, Together", "QwenLM/Qwen3#1321", r"longer than the model'?s context length"),
    KnownRefusal(
        "SGLang, Volcengine, Poolside",
        "sgl-project/sglang#4048, langgenius/dify#32221, letta-ai/letta, error_utils.py",
        r"input length.{0,40} exceeds the maximum|exceeds (?:the )?maximum allowed input length",
    ),
    KnownRefusal(
        "Ollama",
        "ITSpecialist111/ai_automation_suggester#37, nano-brain#208",
        r"input (?:length )?exceeds (?:the )?context length",
    ),
    KnownRefusal(
        "Ollama", "badlogic/pi-mono, overflow.ts", r"prompt too long; exceeded (?:max )?context length"
    ),
    KnownRefusal(
        "LM Studio",
        "Gitlawb/openclaude#353, lmstudio-ai/lmstudio-bug-tracker#546, #1251, n4ze3m/page-assist#356",
        r"greater than the context length|loaded with (?:a )?context length of only|reached context length of \d",
    ),
    KnownRefusal(
        "Kimi",
        "MoonshotAI/kimi-cli#2011, openclaw/openclaw#9562",
        r"exceeded model token limit|input token length too long",
    ),
    KnownRefusal("MiniMax", "MiniMax-AI/MiniMax-M2#119", r"context window exceeds limit"),
    KnownRefusal("DashScope", "help.aliyun.com, coding-plan-faq", r"range of input length should be"),
    KnownRefusal(
        "z.ai",
        "zeroclaw-labs/zeroclaw#4124, NousResearch/hermes-agent#1877",
        r"prompt exceeds max length",
        "1261",
    ),
    KnownRefusal("Baidu", "Qianfan's table of errors", code="tokens_too_long"),
    KnownRefusal("Baidu", "Qianfan's table of errors", code="characters_too_long"),
    KnownRefusal("Baidu", "PaddlePaddle/ERNIE-SDK#336", r"prompt tokens too long"),
    KnownRefusal("xAI", "cline/cline#3120", r"maximum prompt length is \d"),
    KnownRefusal(
        "Gemini",
        "err.dmxapi.cn, 473; badlogic/pi-mono, overflow.ts",
        r"input token count.{0,40} exceeds the maximum",
    ),
    KnownRefusal("Groq, Cerebras", "badlogic/pi-mono, overflow.ts", r"reduce the length of the messages"),
    KnownRefusal(
        "GitHub Copilot",
        "microsoft/vscode#289514, ericc-ch/copilot-api#65",
        r"prompt token count of \d{1,10} exceeds the limit of \d",
        "model_max_prompt_tokens_exceeded",
    ),
    KnownRefusal("LiteLLM", "OpenHands/OpenHands#5350", r"ContextWindowExceededError"),
    KnownRefusal(
        "OpenAI, Groq: one request beyond the limit of a minute, which no wait helps",
        "openai/codex#38366, vanna-ai/vanna-flask#11, assafelovic/gpt-researcher#985",
        r"request too large for .{0,200}tokens per min",
        statuses=frozenset({413, 429, None}),
    ),
)
"""The servers' words for a prompt that exceeds the context window. Status 413 means the same with any words."""

SIGNATURES = (
    KnownRefusal(
        "Anthropic",
        "anthropics/claude-code#21726, anthropics/anthropic-sdk-python#1598, openclaw/openclaw#100385",
        r"invalid .?signature.? in .?thinking",
    ),
    KnownRefusal(
        "Anthropic",
        "anthropics/claude-code#63203",
        r"blocks in the latest assistant message cannot be modified",
    ),
    KnownRefusal(
        "Anthropic, thinking off",
        "tailcallhq/forgecode#1853",
        r"in the final position cannot contain .?thinking",
    ),
    KnownRefusal("Anthropic", "justlovemaki/AIClient2API#437", r"thinking\.signature: field required"),
    KnownRefusal(
        "Gemini",
        "google-gemini/gemini-cli#13467, decolua/9router#301",
        r"corrupted thought signature|thought signature is not valid",
    ),
    KnownRefusal(
        "OpenAI",
        "openai/codex#8145, Wei-Shaw/sub2api#2863",
        r"encrypted content.{0,200} could not be verified",
        "invalid_encrypted_content",
    ),
)
"""The servers' words for thinking in a request that they do not take: another account or another server has signed it."""
MISSING_THINKING = (
    KnownRefusal(
        "Anthropic, older models",
        "anomalyco/opencode#3077",
        r"expected .?thinking.? or .?redacted_thinking.?, but found",
    ),
    KnownRefusal(
        "DeepSeek",
        "decolua/9router#2397, QuantumNous/new-api#4806",
        r"in the thinking mode must be passed back",
    ),
)
"""The servers' words for a request that lacks the thinking of the last answer, although it asks for more thinking."""

BAD_KEYS = (
    KnownRefusal("OpenAI", "developers.openai.com/api/docs/guides/error-codes", code="invalid_api_key"),
    KnownRefusal("Gemini", "cequence-io/openai-scala-client#109", code="API_KEY_INVALID"),
    KnownRefusal(
        "xAI",
        "continuedev/continue#10161, #10778",
        r"incorrect api key provided",
        statuses=frozenset({400}),
    ),
)
"""The servers' words for a key that they do not know, where the status is not 401."""
MISSING_MODELS = (
    KnownRefusal("OpenAI", "skorokithakis/sysaidmin#9", code="model_not_found"),
    KnownRefusal("Azure", "chatboxai/chatbox#861", code="DeploymentNotFound"),
    KnownRefusal("DeepSeek", "deepwn/addi#13", r"^model not exist$", statuses=frozenset({400})),
)
"""The servers' words for a model that they do not have, where the status is not 404."""
BAD_CALLS = (
    KnownRefusal("Groq", "groq/groq-typescript#28, anomalyco/opencode#1018", code="tool_use_failed"),
)
"""The servers' words for a tool call of the model that they could not read. The same request may lead to a better call."""

CODES = frozenset(
    row.code
    for rows in (OVERFLOWS, SIGNATURES, MISSING_THINKING, BAD_KEYS, MISSING_MODELS, BAD_CALLS)
    for row in rows
    if row.code
)
"""The codes that alone determine the kind of failure. The status and the error type are then ignored."""


class Sizes(Struct, frozen=True):
    """The sizes in tokens that a server states when it refuses a request as too large."""

    window: int
    prompt: int

    def leaves(self, answer_tokens: int) -> bool:
        """Whether the prompt and an answer of `answer_tokens` fit into the window together."""
        return self.prompt + answer_tokens <= self.window


def sizes_in(error: AgentError) -> Sizes | None:
    """The sizes in the text of a server's error, or None if the text does not state both."""
    return next(_sizes(str(error)), None) or next(_sizes(getattr(error, "body", "")), None)


def _sizes(text: str) -> Iterator[Sizes]:
    for row in OVERFLOWS:
        found = row.search(text)
        stated = found.groupdict() if found is not None else {}
        window, prompt = (int(stated.get(name) or 0) for name in ("window", "prompt"))
        if 1 <= window <= MOST_TOKENS and 1 <= prompt <= MOST_TOKENS:
            yield Sizes(window, prompt)
