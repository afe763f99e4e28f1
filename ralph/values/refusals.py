"""The known texts and codes with which servers refuse a request for a reason that their status does not show. Each row names
the server that uses it and the report that shows it.

A text counts only with the statuses of its row, because the same words may mean something else with another status: a
limit of tokens per minute (429) also asks for a shorter prompt. A code has one meaning, so it counts with any status.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.values.servers import MOST_TOKENS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ralph.values.errors import AgentError

_REQUEST = frozenset({400, 422, 500, None})
"""The statuses of a request that the server could not process. Gateways wrap such a refusal in 500. None stands for
an error inside a stream that names no status."""


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

REFUSAL_CODES = frozenset(
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


# --- Exhausted accounts
# An account has no credit, or no quota for now. Waiting a few seconds cannot help then, whatever the status of the answer is:
# several vendors use 429 for a rate limit and for an empty account, others 400 or 403. Some accounts are filled again by
# themselves, and their server may say when.

_HOUR_S = 3600.0


class Account(Struct, frozen=True):
    """The codes and words of a vendor for an exhausted account."""

    vendor: str
    source: str
    """The vendor's page, or a public report (repository and number)."""
    codes: tuple[str, ...] = ()
    """The values of the field `code` or `type` of the error. One of them is enough."""
    text: str = ""
    """A pattern of the message, without regard to case. Empty if only the codes tell."""
    is_refilled: bool = False
    """Whether the account is filled again by itself. Then a time that the server names is the end of the wait."""
    window_s: float | None = None
    """The time after which it is filled again, if the message names none. None if that is unknown."""
    utc_offset_h: int = 0
    """The time zone of dates without one, in hours east of UTC."""


# The first row that fits counts. So rows of quotas that are filled again come before those of empty accounts: z.ai says
# "Usage limit reached for the past 5 hours. Insufficient balance for extra usage".
ACCOUNTS = (
    Account(
        "Anthropic, limit set by the user",
        "platform.claude.com/docs/en/api/errors",
        text=r"you have reached your (specified )?(workspace )?api usage limits",
        is_refilled=True,
    ),
    Account(
        "Anthropic, subscriptions",
        "anthropics/claude-code#45046, #2087",
        text=r"out of extra usage|draw from your extra usage|claude (ai )?usage limit reached",
        is_refilled=True,
    ),
    # Its limit on tokens a minute has the words and the code of OpenAI's empty account.
    Account(
        "DashScope, tokens a minute",
        "anomalyco/opencode#23722",
        text=r"you exceeded your current quota.*aliyun\.com.*#token-limit",
        is_refilled=True,
        window_s=60.0,
    ),
    Account(
        "MiniMax",
        "platform.minimax.io/docs/api-reference/errorcode, MiniMax-AI/MiniMax-M2.7#36",
        text=r"usage limit exceeded|token plan usage limit reached",
        is_refilled=True,
        window_s=5 * _HOUR_S,
        utc_offset_h=8,
    ),
    Account(
        "z.ai",
        "docs.z.ai/api-reference/api-code, hugalafutro/model-hotel#955",
        ("1308", "1310", *map(str, range(1316, 1322))),
        r"usage limit reached for|weekly/monthly limit exhausted",
        is_refilled=True,
        utc_offset_h=8,
    ),
    Account(
        "Kimi Code",
        "openclaw/openclaw#142656, Kilo-Org/kilocode#11403",
        text=r"you've reached your .*usage limit",
        is_refilled=True,
    ),
    Account(
        "OpenRouter, free models",
        "Gitlawb/openclaude#936",
        text=r"free-models-per-day",
        is_refilled=True,
    ),
    Account(
        "Codex",
        "router-for-me/CLIProxyAPI#1666",
        ("usage_limit_reached",),
        is_refilled=True,
    ),
    Account(
        "LiteLLM",
        "docs.litellm.ai/docs/proxy/users, BerriAI/litellm#4208, #14144",
        ("budget_exceeded",),
        r"budget has been exceeded|exceededbudget:",
        is_refilled=True,
    ),
    Account(
        "Anthropic",
        "platform.claude.com/docs/en/api/errors",
        ("enforced_spend_limit_reached", "contract_spend_limit_reached"),
        r"credit balance is too low",
    ),
    Account(
        "OpenAI",
        "help.openai.com/en/articles/6614457",
        (
            *("insufficient_quota", "credit_balance_exhausted", "organization_usage_limit_exceeded"),
            *("organization_spend_limit_exceeded", "project_spend_limit_exceeded"),
        ),
    ),
    Account(
        "xAI",
        "continuedev/continue#10373, Wei-Shaw/sub2api#4069",
        text=r"used all available credits or reached its monthly spending limit|you have run out of credits",
    ),
    Account(
        "z.ai",
        "docs.z.ai/api-reference/api-code",
        ("1113", "1309"),
        r"no resource package|余额不足",
    ),
    Account("Moonshot", "MoonshotAI/kimi-code#1857", ("exceeded_current_quota_error",)),
    Account(
        "DashScope",
        "help.aliyun.com/en/model-studio/error-code",
        ("Arrearage",),
        r"make sure your account is in good standing",
    ),
    Account(
        "one-api, NewAPI",
        "songquanpeng/one-api#1270, MAX-API-Next/MAX-API#20",
        ("insufficient_user_quota", "pre_consume_token_quota_failed"),
        r"(user|token) quota is not enough",
    ),
    Account(
        "Novita",
        "novita.ai/docs/api-reference/basic-error-code",
        ("NOT_ENOUGH_BALANCE", "BILLING_BALANCE_NOT_ENOUGH"),
    ),
    Account(
        "MiniMax, DeepSeek, sub2api and others",
        "platform.minimax.io/docs/api-reference/errorcode, Wei-Shaw/sub2api#890",
        ("INSUFFICIENT_BALANCE",),
        r"insufficient (account )?balance|insufficient credits?\b",
    ),
)

ACCOUNT_CODES = frozenset(code for account in ACCOUNTS for code in account.codes)
_UNITS_S = {"h": _HOUR_S, "d": 24 * _HOUR_S, "w": 7 * 24 * _HOUR_S}


def exhausted_account(codes: Iterable[str | None], text: str) -> Account | None:
    """The first row that fits an error with these codes and this message. None if the error is about something else."""
    named = frozenset(codes)
    for account in ACCOUNTS:
        if not named.isdisjoint(account.codes):
            return account
        if account.text and re.search(account.text, text, re.IGNORECASE):
            return account
    return None


def window_s(account: Account, text: str) -> float | None:
    """The longest time, in seconds, until the account is filled again, if the message names only the length of a window, such
    as `5-hour`, or none at all. None if this is unknown.
    """
    found = re.search(r"(?<![a-z])(?:(\d{1,3})[ -]?)?(hour|da[yi]|week)", text, re.IGNORECASE | re.ASCII)
    if found is None:
        return account.window_s
    return int(found[1] or 1) * _UNITS_S[found[2][0].lower()]
