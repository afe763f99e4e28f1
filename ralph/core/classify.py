"""Is an error worth another try, what kind of failure is it, and how does a run end that died of it.

Decided over fields, never over message text, with three exceptions where servers give nothing else: context
overflow, low credit, and spend limits sent as a plain 400. `docs/retry.md` shows the table; a test compares.
"""

from __future__ import annotations

import enum
import re

from ralph.core.errors import AgentError, Api, HttpError, Json, NetworkCause, StreamParse, StreamTransient
from ralph.core.outcome import Outcome


class ErrorClass(enum.Enum):
    TRANSIENT = "transient"
    PERMANENT = "permanent"


class FailureKind(enum.Enum):
    """Finer than `ErrorClass`; feeds outcomes, events and the choice of a target."""

    RATE_LIMIT = "rate_limit"
    USAGE_LIMIT = "usage_limit"
    OVERLOADED = "overloaded"
    SERVER = "server"
    TIMEOUT = "timeout"
    NETWORK = "network"
    STREAM = "stream"
    PROTOCOL = "protocol"
    AUTH = "auth"
    BILLING = "billing"
    INVALID_REQUEST = "invalid_request"
    NOT_FOUND = "not_found"
    CONTEXT_OVERFLOW = "context_overflow"


# 408 and 409 pass with time, as the official client holds too; the rest of 4xx does not.
TRANSIENT_STATUSES = frozenset({408, 409, 429})

PERMANENT_STREAM_ERRORS = frozenset(
    {
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "billing_error",
        "exceed_context_size_error",
    }
)
"""In-stream `error.type`s that asking again cannot mend. Everything else, absent ones included, is transient."""

TRANSIENT_CAUSES = frozenset(
    {
        NetworkCause.TIMEOUT,
        NetworkCause.REFUSED,
        NetworkCause.RESET,
        NetworkCause.UNREACHABLE,
        NetworkCause.PROTOCOL_GARBAGE,
        NetworkCause.DNS_TEMPORARY,
    }
)

# The last one is OpenAI's: a 429 that no waiting mends.
SPEND_LIMIT_CODES = frozenset(
    {"enforced_spend_limit_reached", "contract_spend_limit_reached", "insufficient_quota"}
)
OVERFLOW_CODES = frozenset({"context_length_exceeded"})
"""OpenAI's name for it, which gateways pass on."""

DECISIVE_CODES = SPEND_LIMIT_CODES | OVERFLOW_CODES
"""Error codes that decide, whatever the status or the type beside them."""

TYPE_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""What the API calls an error of this status: servers with other names still number their errors by it."""

# Anthropic (with and without counts), its Bedrock form, llama.cpp, vLLM/OpenAI.
_OVERFLOW_TEXT = re.compile(
    r"prompt is too long|input is too long|exceed context limit|exceed_context_size|exceeds the available context"
    r"|maximum context length|context_length_exceeded",
    re.IGNORECASE,
)
_LOW_CREDIT_TEXT = re.compile(r"credit balance is too low", re.IGNORECASE)
_SPEND_LIMIT_TEXT = re.compile(
    r"you have reached your (specified )?(workspace )?api usage limits", re.IGNORECASE
)

_KIND_OF_TYPE = {
    "rate_limit_error": FailureKind.RATE_LIMIT,
    "overloaded_error": FailureKind.OVERLOADED,
    "timeout_error": FailureKind.TIMEOUT,
    "api_error": FailureKind.SERVER,
    "invalid_request_error": FailureKind.INVALID_REQUEST,
    "authentication_error": FailureKind.AUTH,
    "permission_error": FailureKind.AUTH,
    "billing_error": FailureKind.BILLING,
    "not_found_error": FailureKind.NOT_FOUND,
    "request_too_large": FailureKind.CONTEXT_OVERFLOW,
    "exceed_context_size_error": FailureKind.CONTEXT_OVERFLOW,  # llama.cpp
}

API_ERROR_TYPES = frozenset(_KIND_OF_TYPE)
"""The `error.type`s whose meaning is known; llama.cpp's own one included."""

_KIND_OF_STATUS = {
    401: FailureKind.AUTH,
    402: FailureKind.BILLING,
    403: FailureKind.AUTH,
    404: FailureKind.NOT_FOUND,
    407: FailureKind.AUTH,
    408: FailureKind.TIMEOUT,
    409: FailureKind.SERVER,
    413: FailureKind.CONTEXT_OVERFLOW,
    429: FailureKind.RATE_LIMIT,
    503: FailureKind.OVERLOADED,
    504: FailureKind.TIMEOUT,
    529: FailureKind.OVERLOADED,
}


def classify_error(error: AgentError) -> ErrorClass:
    """R1 of the retry specification: transient errors are asked again, permanent ones never."""
    match error:
        case HttpError():
            transient = _is_transient_status(error)
        case StreamTransient():
            transient = True
        case Api(cause=cause):
            transient = cause in TRANSIENT_CAUSES
        case StreamParse() | Json():
            transient = False
        case _:
            raise TypeError(f"not one of the five errors: {error!r}")
    return ErrorClass.TRANSIENT if transient else ErrorClass.PERMANENT


def failure_kind(error: AgentError) -> FailureKind:
    match error:
        case HttpError():
            return _kind_of_http(error)
        case StreamTransient():
            return _KIND_OF_TYPE.get(error.error_type or "", FailureKind.STREAM)
        case StreamParse():
            return _kind_of_rejected_stream(error)
        case Api(cause=NetworkCause.TIMEOUT):
            return FailureKind.TIMEOUT
        case Api():
            return FailureKind.NETWORK
        case _:
            return FailureKind.PROTOCOL


def outcome_of(error: AgentError) -> Outcome:
    """How a run ends when this error is final."""
    if classify_error(error) is ErrorClass.TRANSIENT:
        return Outcome.API_UNAVAILABLE
    kind = failure_kind(error)
    if kind is FailureKind.CONTEXT_OVERFLOW:
        return Outcome.LIMIT_REACHED
    if kind is FailureKind.BILLING and is_low_credit(error):
        return Outcome.API_REJECTED
    if kind in (FailureKind.AUTH, FailureKind.USAGE_LIMIT, FailureKind.BILLING):
        return Outcome.AUTH
    return Outcome.API_REJECTED


def is_low_credit(error: AgentError) -> bool:
    """Low credit comes as a plain 400 with nothing but its text to tell it."""
    return (
        isinstance(error, HttpError) and error.status == 400 and bool(_LOW_CREDIT_TEXT.search(_text(error)))
    )


def _is_transient_status(error: HttpError) -> bool:
    if _kind_of_http(error) in (FailureKind.USAGE_LIMIT, FailureKind.CONTEXT_OVERFLOW):
        return False
    if error.should_retry is not None:
        return error.should_retry
    return error.status in TRANSIENT_STATUSES or error.status >= 500


def _kind_of_http(error: HttpError) -> FailureKind:
    text = _text(error)
    if error.error_code in SPEND_LIMIT_CODES:
        return FailureKind.USAGE_LIMIT
    if error.error_code in OVERFLOW_CODES or error.error_type == "exceed_context_size_error":
        return FailureKind.CONTEXT_OVERFLOW
    if 400 <= error.status < 500:
        # A spend limit set by the user comes as 400 and one of the tier as 429, both told by text alone.
        if error.status in (400, 429) and _SPEND_LIMIT_TEXT.search(text):
            return FailureKind.USAGE_LIMIT
        if error.status == 400 and _LOW_CREDIT_TEXT.search(text):
            return FailureKind.BILLING
        if error.status == 400 and _OVERFLOW_TEXT.search(text):
            return FailureKind.CONTEXT_OVERFLOW
    if error.status in _KIND_OF_STATUS:
        return _KIND_OF_STATUS[error.status]
    if error.status >= 500:
        return FailureKind.SERVER
    return FailureKind.INVALID_REQUEST if error.status >= 400 else FailureKind.PROTOCOL


def _kind_of_rejected_stream(error: StreamParse) -> FailureKind:
    if error.error_code in SPEND_LIMIT_CODES:
        return FailureKind.USAGE_LIMIT
    if error.error_code in OVERFLOW_CODES:
        return FailureKind.CONTEXT_OVERFLOW
    if error.error_type == "invalid_request_error" and _OVERFLOW_TEXT.search(error.message):
        return FailureKind.CONTEXT_OVERFLOW
    return _KIND_OF_TYPE.get(error.error_type or "", FailureKind.PROTOCOL)


def _text(error: HttpError) -> str:
    return error.message or error.body[:4096]
