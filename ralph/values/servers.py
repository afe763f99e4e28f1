"""The form of base URLs and header lines, and the facts that ralph knows about each model: context window, longest answer,
thinking, effort, prices and vendor.

The source for Claude is the Messages API reference as of 2026-11-21. For others it is LiteLLM 1.110.2
(`model_prices_and_context_window_backup.json`, in which `input_cost_per_token_above_...` is the price of long prompts),
read on 2026-11-29, without models that their vendor had announced to end by then. Prices are in USD per million tokens. If a model is not in
the list, ralph knows no price for it. Requests to such a model contain thinking or effort only if the user sets them.
"""

from __future__ import annotations

import re
from functools import cache
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from msgspec import Struct
from msgspec.structs import astuple, replace

if TYPE_CHECKING:
    from collections.abc import Mapping


class NamedModel(Struct, frozen=True):
    """A model that the user chose by an id or an alias."""

    id: str
    context_window: int | None = None
    """1,000,000 if the user's name for the model ends with `[1m]` and `facts_of` does not know the model. Otherwise
    None."""


ALIASES = {
    "opus": NamedModel("claude-opus-5-5"),
    "sonnet": NamedModel("claude-sonnet-5-5"),
    "haiku": NamedModel("claude-haiku-5-5"),
}
_USUAL_ALIAS = "sonnet"
USUAL_MODEL = ALIASES[_USUAL_ALIAS].id
_MILLION = 1_000_000
_MILLION_SUFFIX = "[1m]"

DEFAULT_MAX_TOKENS = 32_000
MOST_TOKENS = 1_000_000_000
"""The largest plausible number of tokens. It is a thousand times the largest context window in `MODELS`."""


class Price(Struct, frozen=True):
    """Prices in USD per million tokens. `cache_write` is for the 5-minute cache, and `cache_write_1h` for the
    1-hour cache.
    """

    input: float
    output: float
    cache_write: float
    cache_write_1h: float
    cache_read: float


class ModelFacts(Struct, frozen=True):
    context_window: int | None
    max_output: int | None
    price: Price | None
    needs_adaptive: bool = False
    """True if the model thinks only when the request's `thinking` has the type `adaptive`."""
    takes_effort: bool = True
    long_prompt_price: Price | None = None
    """The price of the whole request if the prompt has more than `long_prompt_tokens` tokens. None if the model has
    a single price."""
    long_prompt_tokens: int = 0

    def price_for(self, prompt_tokens: int) -> Price | None:
        if self.long_prompt_price is not None and prompt_tokens > self.long_prompt_tokens:
            return self.long_prompt_price
        return self.price


def _million(price: Price | None, *, needs_adaptive: bool = False) -> ModelFacts:
    return ModelFacts(1_000_000, 128_000, price, needs_adaptive=needs_adaptive)


def _older(price: Price, *, takes_effort: bool = False) -> ModelFacts:
    return ModelFacts(200_000, 64_000, price, takes_effort=takes_effort)


_FABLE_5_1 = _million(Price(10, 50, 12.5, 20, 0.25))
_FABLE_5 = _million(Price(10, 50, 12.5, 20, 1))
_OPUS_4 = _million(Price(5, 25, 6.25, 10, 0.50), needs_adaptive=True)

MODELS: dict[str, ModelFacts] = {
    # The cache-read price of Fable 5.2 is not published, so any cost would be a guess.
    "claude-fable-5-2": _million(None),
    "claude-mythos-5-2": _million(None),
    "claude-fable-5-1": _FABLE_5_1,
    "claude-mythos-5-1": _FABLE_5_1,
    "claude-opus-5-5": _million(Price(4, 20, 5, 8, 0.20)),
    "claude-sonnet-5-5": _million(Price(2, 10, 2.5, 4, 0.10)),
    "claude-haiku-5-5": ModelFacts(
        1_000_000,
        128_000,
        Price(0.10, 0.50, 0.125, 0.20, 0.01),
        long_prompt_price=Price(0.50, 2.50, 0.625, 1.0, 0.05),
        long_prompt_tokens=100_000,
    ),
    "claude-fable-5": _FABLE_5,
    "claude-mythos-5": _FABLE_5,
    "claude-opus-5": _million(Price(5, 25, 6.25, 10, 0.50)),
    "claude-sonnet-5": _million(Price(2, 10, 2.5, 4, 0.20)),
    "claude-opus-4-8": _OPUS_4,
    "claude-opus-4-7": _OPUS_4,
    "claude-opus-4-6": _OPUS_4,
    "claude-sonnet-4-6": _million(Price(3, 15, 3.75, 6, 0.30), needs_adaptive=True),
    "claude-opus-4-5": _older(Price(5, 25, 6.25, 10, 0.50), takes_effort=True),
    "claude-sonnet-4-5": _older(Price(3, 15, 3.75, 6, 0.30)),
    "claude-haiku-4-5": _older(Price(1, 5, 1.25, 2, 0.10)),
}


def _facts(
    window: int,
    longest: int,
    read: float,
    written: float,
    cached: float,
    *,
    stored: float | None = None,
    long_from: int = 0,
    long_written: float = 1.5,
    takes_effort: bool = True,
) -> ModelFacts:
    """`read`, `written`, `cached` and `stored` are the prices of tokens of the prompt, of the answer, of the prompt from
    the cache, and of the prompt that is put into it, in USD per million. If `stored` is None, that costs nothing more.
    Prompts of more than `long_from` tokens cost twice as much, and their answers `long_written` times.
    """
    stored = read if stored is None else stored
    twice = Price(2 * read, long_written * written, 2 * stored, 2 * stored, 2 * cached)
    return ModelFacts(
        window,
        longest,
        Price(read, written, stored, stored, cached),
        takes_effort=takes_effort,
        long_prompt_price=twice if long_from else None,
        long_prompt_tokens=long_from,
    )


def _gpt(read: float, written: float, cached: float, stored: float | None = None) -> ModelFacts:
    return _facts(1_050_000, 128_000, read, written, cached, stored=stored, long_from=272_000)


def _gpt_5(read: float, written: float, cached: float) -> ModelFacts:
    return _facts(400_000, 128_000, read, written, cached)


def _gemini(read: float, written: float, cached: float, long_from: int = 0) -> ModelFacts:
    return _facts(1_048_576, 65_536, read, written, cached, long_from=long_from)


def _mistral(read: float, written: float, cached: float, window: int = 262_144) -> ModelFacts:
    return _facts(window, window, read, written, cached, takes_effort=False)


def _grok(read: float, written: float, cached: float, window: int = 500_000) -> ModelFacts:
    return _facts(window, window, read, written, cached, long_from=200_000, long_written=2.0)


OTHER_MODELS: Mapping[str, ModelFacts] = {
    "gpt-6.1-sol": _gpt(2, 10, 0.1, 2.5),
    "gpt-6.1-terra": _gpt(1, 5, 0.05, 1.25),
    "gpt-6-astra": _gpt(10, 50, 1, 12.5),
    "gpt-6-sol": _gpt(2, 10, 0.2, 2.5),
    "gpt-6-luna": _gpt(0.1, 0.5, 0.01, 0.125),
    **dict.fromkeys(("gpt-5.6", "gpt-5.6-sol"), _gpt(4, 20, 0.4, 5)),
    "gpt-5.6-terra": _gpt(2, 12, 0.2, 2.5),
    "gpt-5.6-luna": _gpt(0.2, 1.2, 0.02, 0.25),
    "gpt-5.5": _gpt(5, 30, 0.5),
    "gpt-5.4": _gpt(2.5, 15, 0.25),
    "gpt-5.4-mini": _gpt_5(0.75, 4.5, 0.075),
    "gpt-5.4-nano": _gpt_5(0.2, 1.25, 0.02),
    **dict.fromkeys(("gpt-5.2", "gpt-5.3-codex"), _gpt_5(1.75, 14, 0.175)),
    **dict.fromkeys(("gpt-5", "gpt-5.1"), _gpt_5(1.25, 10, 0.125)),
    "gpt-5-mini": _gpt_5(0.25, 2, 0.025),
    "gpt-5-nano": _gpt_5(0.05, 0.4, 0.005),
    "gpt-4.1": _facts(1_047_576, 32_768, 2, 8, 0.5, takes_effort=False),
    "gpt-4.1-mini": _facts(1_047_576, 32_768, 0.4, 1.6, 0.1, takes_effort=False),
    "o3": _facts(200_000, 100_000, 2, 8, 0.5),
    "gemini-4-argon": _facts(1_048_576, 1_048_576, 2, 10, 0.1),
    "gemini-4-hydrogen": _facts(1_048_576, 1_048_576, 1.5, 7.5, 0.075),
    **dict.fromkeys(("gemini-3.6-flash", "gemini-3.7-flash", "gemini-3.8-flash"), _gemini(0.75, 3.75, 0.075)),
    "gemini-3.5-flash": _gemini(1.5, 9, 0.15),
    "gemini-3.5-flash-lite": _gemini(0.3, 2.5, 0.03),
    "gemini-3.1-pro-preview": _gemini(2, 12, 0.2, long_from=200_000),
    "gemini-3.1-flash-lite": _gemini(0.25, 1.5, 0.025),
    "gemini-3-flash-preview": _gemini(0.5, 3, 0.05),
    "gemini-2.5-flash": _gemini(0.3, 2.5, 0.03),
    "gemini-2.5-pro": _gemini(1.25, 10, 0.125, long_from=200_000),
    **dict.fromkeys(("deepseek-flash", "deepseek-v4-flash"), _facts(1_000_000, 393_216, 0.3, 1.2, 0.006)),
    "deepseek-v4-pro": _facts(1_000_000, 393_216, 1.32, 3.96, 0.044),
    "mistral-large-4": _mistral(0.7, 2.1, 0.07, window=1_048_576),
    **dict.fromkeys(("mistral-large-3", "mistral-large-latest"), _mistral(0.5, 1.5, 0.05)),
    **dict.fromkeys(("mistral-medium-3-5", "mistral-medium-latest"), _mistral(1.5, 7.5, 0.15)),
    "mistral-small-latest": _mistral(0.15, 0.6, 0.015),
    **dict.fromkeys(("devstral-latest", "devstral-medium-latest"), _mistral(0.4, 2, 0.04, window=256_000)),
    "devstral-small-latest": _mistral(0.1, 0.3, 0.01, window=256_000),
    "codestral-latest": _mistral(0.3, 0.9, 0.03, window=128_000),
    **dict.fromkeys(("grok-4.6", "grok-4.7"), _grok(2, 6, 0.5)),
    "grok-4.5": _grok(2, 6, 0.3),
    **dict.fromkeys(("grok-4.3", "grok-4.20"), _grok(1.25, 2.5, 0.2, window=1_000_000)),
    "kimi-k3.1-pro": _facts(1_048_576, 1_048_576, 2, 10, 0.2),
    "kimi-k3": _facts(1_048_576, 1_048_576, 3, 15, 0.3),
    "kimi-k2.7-code": _facts(262_144, 262_144, 0.95, 4, 0.19),
    "kimi-k2.6": _facts(262_144, 262_144, 0.95, 4, 0.16),
    **dict.fromkeys(("glm-5.2", "glm-5.3"), _facts(1_000_000, 128_000, 1.4, 4.4, 0.26)),
    "glm-5.3-flash": _facts(1_048_576, 128_000, 0.15, 0.5, 0.03),
    "glm-5.1": _facts(200_000, 128_000, 1.4, 4.4, 0.26),
    "glm-5": _facts(200_000, 128_000, 1, 3.2, 0.2),
    **dict.fromkeys(("glm-4.6", "glm-4.7"), _facts(200_000, 128_000, 0.6, 2.2, 0.11)),
}


_CLOUD_ID = r"((?:arn:.*/)?(?:(?P<region>[a-z-]+)\.)?anthropic\.)?(?P<name>claude-.+?)(?:[-@]\d{8}|@default)?(?(1)(?:-v\d+(?::\d+)?)?)"
"""The ids of Claude models: plain ones, with a date, and as Bedrock (`us.anthropic.claude-opus-4-6-v1:0`) and Vertex
(`claude-opus-4-5@20251101`) have them."""
_DEARER = {"global": 1.0, "us-gov": 1.2}
_DEARER_IN_A_REGION = 1.1
"""How much more a model on Bedrock costs than at Anthropic, by the region before its id (LiteLLM 1.110.2, read on 2026-11-29)."""


@cache  # asked a dozen times in each turn
def facts_of(model: str) -> ModelFacts | None:
    """The known facts about a model, or None if the model is unknown. For a dated id such as
    `claude-opus-4-5-20251101`, these are the facts about the id without its date. An id of Bedrock has the prices there.
    """
    if model in MODELS:
        return MODELS[model]
    if is_claude(model):
        found = re.fullmatch(_CLOUD_ID, model)
        facts = MODELS.get(found["name"]) if found else None
        return _on_bedrock(facts, found["region"]) if found and found[1] and facts else facts
    return OTHER_MODELS.get(model) or OTHER_MODELS.get(re.sub(r"-20\d\d-\d\d-\d\d$", "", model))


def _on_bedrock(facts: ModelFacts, region: str | None) -> ModelFacts:
    factor = _DEARER.get(region or "", _DEARER_IN_A_REGION)
    price, long_prompt_price = (
        price and Price(*(round(factor * usd, 6) for usd in astuple(price)))
        for price in (facts.price, facts.long_prompt_price)
    )
    return replace(facts, price=price, long_prompt_price=long_prompt_price)


def named_model(name: str, aliases: Mapping[str, NamedModel] = ALIASES) -> NamedModel:
    """Finds the model for a name: an id or an alias, with or without `[1m]` at its end. `default` stands for the
    model that ralph chooses by itself.

    Raises ValueError for `opusplan`, which stands for two models in Claude Code, for `[1m]` alone, and for `[1m]`
    after a model whose window is known to be smaller. The caller puts the name of the option or setting before the
    error's text.
    """
    has_million = name.lower().endswith(_MILLION_SUFFIX)
    plain = name[: -len(_MILLION_SUFFIX)].rstrip() if has_million else name
    alias = plain.lower()  # Claude Code ignores case in aliases; ids keep their capitals
    if alias == "opusplan":
        raise ValueError("must name one model: 'opusplan' changes it after planning; use opus or sonnet")
    if not plain:
        raise ValueError(f"must name a model before {_MILLION_SUFFIX}")
    model = aliases.get(_USUAL_ALIAS if alias == "default" else alias) or NamedModel(plain)
    return _with_a_million(model) if has_million else model


def _with_a_million(model: NamedModel) -> NamedModel:
    facts = facts_of(model.id)
    if facts is None:
        return NamedModel(model.id, _MILLION)
    if facts.context_window is not None and facts.context_window < _MILLION:
        raise ValueError(
            f"must be without {_MILLION_SUFFIX}: the window of {model.id} holds {facts.context_window:,} tokens; "
            f"those of {', '.join(ALIASES)} hold a million"
        )
    return model


def is_claude(model: str) -> bool:
    """Whether a model with this name is a Claude model. A gateway may have added text to the name. Ralph adds
    prompt-cache markers only to requests to Claude models.
    """
    return "claude" in model


def max_tokens_for(model: str, requested: int | None) -> int:
    """The `max_tokens` of a request: `requested`, or the default if it is None, but at most the model's known
    limit.
    """
    facts = facts_of(model)
    max_tokens = requested or DEFAULT_MAX_TOKENS
    return max_tokens if facts is None or facts.max_output is None else min(max_tokens, facts.max_output)


# --- Vendors beside Anthropic: which models they have, and where their servers are


class Vendor(Struct, frozen=True):
    """Where requests for the models of a vendor go if the user names only the model."""

    name: str
    models: str
    """A pattern of the beginning of the models' ids."""
    api: str
    base_url: str
    key_variable: str


OPENAI = Vendor("OpenAI", r"gpt-|o\d|codex-", "openai-responses", "https://api.openai.com", "OPENAI_API_KEY")
VENDORS = (
    OPENAI,
    Vendor(
        "Google",
        "gemini-",
        "openai-chat",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
    ),
    Vendor("DeepSeek", "deepseek-", "openai-chat", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    Vendor(
        "Mistral",
        "mistral-|devstral-|codestral-|magistral-",
        "openai-chat",
        "https://api.mistral.ai",
        "MISTRAL_API_KEY",
    ),
    Vendor("xAI", "grok-", "openai-chat", "https://api.x.ai", "XAI_API_KEY"),
    Vendor("Moonshot", "kimi-", "openai-chat", "https://api.moonshot.ai", "MOONSHOT_API_KEY"),
    Vendor("Z.ai", "glm-", "openai-chat", "https://api.z.ai/api/paas/v4", "ZAI_API_KEY"),
)


def vendor_of(model: str) -> Vendor | None:
    """The vendor of a model, or None if the id is that of no known vendor. Ids that a gateway has changed, such as
    `openai/gpt-6-sol`, belong to the gateway.
    """
    return next((vendor for vendor in VENDORS if re.match(vendor.models, model)), None)


def vendor_at(base_url: str) -> Vendor | None:
    """The vendor whose own server this is, or None."""
    host = host_in(base_url)
    return next((vendor for vendor in VENDORS if host_in(vendor.base_url) == host), None)


def vendor_elsewhere(model: str, base_url: str) -> str | None:
    """The name of the model's vendor, if the server is another vendor's own. None if the vendor of either is
    unknown, or both are the same.
    """
    of_model = "Anthropic" if is_claude(model) else getattr(vendor_of(model), "name", None)
    of_server = "Anthropic" if is_default(base_url) else getattr(vendor_at(base_url), "name", None)
    return of_model if of_server not in {None, of_model} else None


# --- The form of a base URL and of header lines
# What cannot be sent safely over HTTP raises ValueError. The error never repeats the text, because the text may contain a key.

DEFAULT_BASE_URL = "https://api.anthropic.com"
ANTHROPIC = "anthropic"
OPENAI_CHAT = "openai-chat"
OPENAI_RESPONSES = "openai-responses"
_PATHS = {ANTHROPIC: "/v1/messages", OPENAI_CHAT: "/chat/completions", OPENAI_RESPONSES: "/responses"}
APIS = tuple(_PATHS)
"""The APIs that ralph speaks. The first is the Messages API, which is the default."""
API_NAMES = {ANTHROPIC: "Messages", OPENAI_CHAT: "Chat Completions", OPENAI_RESPONSES: "Responses"}
KEY_VARIABLES = {
    ANTHROPIC: "ANTHROPIC_API_KEY",
    OPENAI_CHAT: "OPENAI_API_KEY",
    OPENAI_RESPONSES: "OPENAI_API_KEY",
}
URL_VARIABLES = {
    ANTHROPIC: "ANTHROPIC_BASE_URL",
    OPENAI_CHAT: "OPENAI_BASE_URL",
    OPENAI_RESPONSES: "OPENAI_BASE_URL",
}
API_VERSION = "2026-10-21"

FRAMING_HEADERS = frozenset(
    {"connection", "content-length", "expect", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers that describe how a request is transmitted. Only the HTTP client may set them: values from the user could
break the request."""


_OF_VERTEX = "/publishers/anthropic/models"


def is_vertex(base_url: str) -> bool:
    """Whether this is the base URL of Claude models on Vertex AI, where the URL of a request names the model, and its body does not."""
    return base_url.endswith(_OF_VERTEX)


def requests_url(base_url: str, api: str, model: str, *, is_whole: bool = False) -> str:
    """The URL to which requests for `model` are sent. `base_url` must be in the form that `normal_base_url` returns for `api`.
    `is_whole` is as in `Client.send_message`.
    """
    if is_vertex(base_url):
        model = quote(model, safe="@")  # a file of the repository may name it
        return f"{base_url}/{model}:{'rawPredict' if is_whole else 'streamRawPredict'}"
    return base_url + _PATHS[api]


def checked_base_url(text: str) -> str:
    """The base URL as the user wrote it, without `/` at its end. Raises ValueError if it is not a usable URL."""
    if re.search(r"[\x00-\x20\x7f\\]", text):
        raise ValueError("must not contain white space or backslashes")
    try:
        parts = urlsplit(text)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError("is not a valid URL") from None
    if parts.scheme not in {"http", "https"}:
        raise ValueError("must begin with http:// or https://")
    if not parts.hostname or not has_port:
        raise ValueError("must name a host, and no port or one of 1-65535")
    if "@" in parts.netloc:
        raise ValueError(
            "must not contain a user or password before the host; use `headers` of a target, or ANTHROPIC_CUSTOM_HEADERS, instead"
        )
    if "?" in text or "#" in text:
        raise ValueError("must not contain a query or a fragment")
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def normal_base_url(text: str, api: str = ANTHROPIC) -> str:
    """The base URL to which `requests_url` adds the path of this API. Users write base URLs with and without its parts. For
    the Messages API, it is without `/v1` or `/v1/messages` at its end. For the others, it is as their own clients take it: only a
    host without a path gets `/v1`. Raises the errors of `checked_base_url`.
    """
    scheme, rest = checked_base_url(text).split("://", 1)
    host, slash, path = rest.partition("/")
    path = slash + path
    if api == ANTHROPIC:
        path = _above_the_api(path)
    else:
        for known in _PATHS.values():
            path = path.removesuffix(known).rstrip("/")
        path = path or "/v1"
    return f"{scheme}://{host}{path}"


def _above_the_api(path: str) -> str:
    while True:
        above = path.rstrip("/")
        if above.endswith("/messages"):
            version = above.removesuffix("/messages").rstrip("/")
            above = version if version.endswith("/v1") else above
        above = above.removesuffix("/v1")
        if above == path:
            return path
        path = above


def is_default(base_url: str) -> bool:
    """Whether the URL's host is Anthropic's own API. This host accepts no request without a key."""
    return host_in(base_url) == host_in(DEFAULT_BASE_URL)


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine, so that requests to it do not leave the machine."""
    host = host_in(url)
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761, 6.3
        return True
    if not re.fullmatch(r"[\d.]+|[\da-f:]*:[\da-f:.]*", host):
        return False
    try:
        address = ip_address(host)
    except ValueError:
        return False
    # Servers say "listening on 0.0.0.0", and people copy it.
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or mapped.is_unspecified


def host_in(url: str) -> str:
    """The host in a URL, in lower case and without its port. Empty if there is none."""
    try:
        return (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return ""


def header_value(text: str) -> str:
    """The value without surrounding white space. Raises ValueError for a character that a header cannot carry, such
    as a line break, which would begin another header.
    """
    value = text.strip()
    if any(character < " " or character == "\x7f" for character in value):
        raise ValueError("must not contain line breaks or control characters")
    if any(character > "\xff" for character in value):
        raise ValueError("must contain only characters that a header can carry (latin-1)")
    return value


def header_lines(text: str) -> tuple[tuple[str, str], ...]:
    """The headers in a text of `Name: value` lines. Empty lines are skipped. If a line is wrong, raises ValueError
    with the line's number, counted from 1.
    """
    headers = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not _is_header_name(name.strip()):
            raise ValueError(f'must contain "Name: value" on each line; line {number} is different')
        headers.append(_header(name.strip(), value, f"line {number}"))
    return tuple(headers)


def header_table(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The headers in a `{name: value}` table of a settings file.

    If a header is wrong, raises ValueError with the header's name. If the name itself is wrong, the error contains
    the number of the entry instead, counted from 1.
    """
    for number, name in enumerate(headers, start=1):
        if not _is_header_name(name):
            raise ValueError(f"must contain names that HTTP allows; entry {number} has none")
    return tuple(_header(name, text, name) for name, text in headers.items())


def _is_header_name(text: str) -> bool:
    return re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", text) is not None  # RFC 9110, 5.6.2


def _header(name: str, value: str, where: str) -> tuple[str, str]:
    if name.lower() in FRAMING_HEADERS:
        raise ValueError(f"must not contain {name}: it says how a request is framed, not what it is")
    try:
        return name, header_value(value)
    except ValueError as error:
        raise ValueError(f"{error} ({where})") from None
