"""Checks base URLs and header lines, and converts them to a normal form. Raises ValueError for a text that cannot be
sent safely over HTTP. The error never repeats the text, because the text may contain a key.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

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
