"""Advice for the user after a failed run. Each cause has its own text, which is shown with the outcome. No I/O
happens here.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING

from ralph.values.classify import FailureKind, failure_kind, is_low_credit
from ralph.values.endpoint import messages_url
from ralph.values.errors import Api, HttpError, NetworkCause, StreamParse
from ralph.values.shortage import ADVICE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from ralph.values.errors import AgentError

# Python's dates end in the year 9999, and a header may contain any number of seconds.
_LONGEST_AHEAD_S = 10 * 365 * 86400.0

_NETWORK_HINTS = {
    NetworkCause.REFUSED: "Nothing listens at {endpoint}. Is the server running, and is the port right?",
    NetworkCause.DNS_UNKNOWN_HOST: (
        "Check the host name in {endpoint} (--base-url, ANTHROPIC_BASE_URL), and whether this machine is online."
    ),
    NetworkCause.CERTIFICATE: (
        "The certificate of {endpoint} is not trusted. For a private CA set SSL_CERT_FILE, or `ca_file` in your "
        "own config file, to its certificate."
    ),
    NetworkCause.BAD_URL: "Check --base-url and ANTHROPIC_BASE_URL: {endpoint} cannot be used.",
    NetworkCause.TLS: "If {endpoint} speaks plain HTTP, its URL must begin with http://.",
    NetworkCause.NOT_PERMITTED: (
        "This machine does not let ralph connect to {endpoint}: a firewall, a container's rules or a sandbox may be "
        "the reason."
    ),
    NetworkCause.SHORTAGE: f"The machine lacks something just now: {ADVICE}.",
}


def hints_for(error: AgentError, *, model: str, endpoint: str, credential: str) -> tuple[str, ...]:
    """The advice for the user about this error. The tuple is empty if there is no advice. `credential` is the name of
    the variable that holds the key, or a text that says that there is no key.
    """
    return tuple(_hints(error, model, endpoint, credential))


def come_back_hint(retry_after_s: float, now: datetime) -> str:
    """A sentence that says when the user should try again. The time in the sentence is in the time zone of `now`."""
    moment = now + timedelta(seconds=min(retry_after_s, _LONGEST_AHEAD_S))
    return f"The server asks to be left alone for {_duration(retry_after_s)}: come back after {moment:%Y-%m-%d %H:%M %Z}."


def _duration(seconds: float) -> str:
    minutes, rest_s = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest_s, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"


def _hints(error: AgentError, model: str, endpoint: str, credential: str) -> Iterator[str]:
    kind = failure_kind(error)
    if isinstance(error, Api) and error.cause in _NETWORK_HINTS:
        yield _NETWORK_HINTS[error.cause].format(endpoint=endpoint)
    elif is_low_credit(error) or kind is FailureKind.BILLING:
        yield "The account has no credit left: see Plans & Billing in the provider's console."
    elif kind is FailureKind.USAGE_LIMIT:
        yield "A spending limit of the account is reached: raise it in the provider's console, or wait until it resets."
    elif isinstance(error, HttpError) and error.status == 407:
        yield "The proxy wants credentials: put them into HTTPS_PROXY as http://user:password@host:port."
    elif isinstance(error, HttpError) and error.status == 403:
        yield f"The key ({credential}) is known but not allowed to do this: check its permissions and the model."
    elif kind is FailureKind.AUTH:
        yield f"Check the key: {credential}."
    elif kind is FailureKind.NOT_FOUND:
        yield (
            f"Either the model {model!r} does not exist there (--model, ANTHROPIC_MODEL), or there is no Messages "
            f"API at this address (--base-url). Requests go to: POST {messages_url(endpoint)}"
        )
    elif isinstance(error, HttpError) and error.status in (405, 501):
        yield f"Is that a Messages API? Check --base-url. Requests go to: POST {messages_url(endpoint)}"
    elif kind is FailureKind.CONTEXT_OVERFLOW:
        yield "The conversation is larger than the model's window. Start afresh with a smaller task."
    elif isinstance(error, StreamParse) and kind is FailureKind.PROTOCOL:
        yield (
            "Is that a Messages API? Check --base-url and ANTHROPIC_BASE_URL. Requests go to: "
            f"POST {messages_url(endpoint)}"
        )
