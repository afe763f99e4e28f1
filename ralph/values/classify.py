"""Classifies an error. Decides whether a retry makes sense, what kind of failure the error is, and which outcome a
run gets if this error ends the run.

The decision is based on fields. Message texts decide only where servers give no other sign: the refusals and
exhausted accounts of `values/servers/refusals.py`. A test compares this module with the table in `docs/retry.md`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ralph.values.errors import AgentError, Api, HttpError, Json, NetworkCause, StreamParse, StreamTransient
from ralph.values.outcome import Outcome
from ralph.values.servers.refusals import (
    BAD_CALLS,
    BAD_KEYS,
    MISSING_MODELS,
    MISSING_THINKING,
    OVERFLOWS,
    SIGNATURES,
    KnownRefusal,
    exhausted_account,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


class ErrorClass(enum.Enum):
    TRANSIENT = "transient"
    PERMANENT = "permanent"


class FailureKind(enum.Enum):
    """The kinds of failure. Outcomes, events and the choice of a target depend on them."""

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


PERMANENT_KINDS = frozenset(
    {
        FailureKind.USAGE_LIMIT,
        FailureKind.PROTOCOL,
        FailureKind.AUTH,
        FailureKind.BILLING,
        FailureKind.INVALID_REQUEST,
        FailureKind.NOT_FOUND,
        FailureKind.CONTEXT_OVERFLOW,
    }
)
"""The kinds of failure that remain if the same request is sent again."""

PERMANENT_CAUSES = frozenset(
    {
        NetworkCause.DNS_UNKNOWN_HOST,
        NetworkCause.CERTIFICATE,
        NetworkCause.BAD_URL,
        NetworkCause.UNSENDABLE,
    }
)
"""Causes of network failures that last until somebody fixes them. All others, also unknown ones, are expected to be
temporary."""

STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "exceed_context_size_error": 413,  # llama.cpp
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
    # The types and codes of OpenAI. The second group is that of `ResponseError` in the package `openai`.
    "server_error": 500,
    "rate_limit_exceeded": 429,
    # openai/codex, codex-api/src/sse/responses.rs.
    **dict.fromkeys(("server_is_overloaded", "slow_down"), 503),
    **dict.fromkeys(
        (
            *(
                "invalid_prompt",
                "content_filter",
                "bio_policy",
                "cyber_policy",
                "misalignment_policy_violation",
            ),
            *("data_residency_mismatch", "image_content_policy_violation", "image_parse_error"),
            *(
                "invalid_image",
                "invalid_image_format",
                "invalid_base64_image",
                "unsupported_image_media_type",
            ),
            *("image_too_large", "image_too_small", "image_file_too_large", "empty_image_file"),
        ),
        400,
    ),
    "rate_limited": 429,  # Mistral (cline/cline#9085)
}
"""The HTTP status that belongs to each `error.type`, or to an `error.code` of another vendor. Needed for an error
inside a stream, whose own HTTP status is 2xx."""

_KIND_OF_REFUSAL = (
    (FailureKind.CONTEXT_OVERFLOW, OVERFLOWS),
    (FailureKind.INVALID_REQUEST, (*SIGNATURES, *MISSING_THINKING)),
    (FailureKind.AUTH, BAD_KEYS),
    (FailureKind.NOT_FOUND, MISSING_MODELS),
    (FailureKind.STREAM, BAD_CALLS),
)

_KIND_OF_STATUS = {
    401: FailureKind.AUTH,
    402: FailureKind.BILLING,
    403: FailureKind.AUTH,
    404: FailureKind.NOT_FOUND,
    407: FailureKind.AUTH,
    # 408 and 409 are temporary, as in the official client. The rest of 4xx is not.
    408: FailureKind.TIMEOUT,
    409: FailureKind.SERVER,
    413: FailureKind.CONTEXT_OVERFLOW,
    429: FailureKind.RATE_LIMIT,
    503: FailureKind.OVERLOADED,
    504: FailureKind.TIMEOUT,
    529: FailureKind.OVERLOADED,
}


def classify_error(error: AgentError) -> ErrorClass:
    """Classifies an error by rule R1 of the retry specification. Transient errors are retried, permanent errors are
    not.
    """
    match error:
        case HttpError():
            transient = _is_transient_status(error)
        case StreamTransient():
            transient = True
        case Api(cause=cause):
            transient = cause not in PERMANENT_CAUSES
        case StreamParse() | Json():
            transient = False
        case _:
            raise TypeError(f"not one of the five errors: {error!r}")
    return ErrorClass.TRANSIENT if transient else ErrorClass.PERMANENT


def is_damaged(error: AgentError) -> bool:
    """Whether the answer was unreadable: it was neither a valid message nor a valid report of an error."""
    match error:
        case Json():
            return True
        case StreamParse():
            return not error.is_reported
        case _:
            return False


def failure_kind(error: AgentError) -> FailureKind:
    match error:
        case HttpError():
            words = words_of(error.message, error.body)
            return kind_of(error.status, error.error_type, error.error_code, words, error.retry_after)
        case StreamTransient() | StreamParse() if error.is_reported:
            status = status_meant(error.error_type, error.status)
            return kind_of(status, error.error_type, error.error_code, error.message, error.retry_after)
        case StreamTransient():
            return FailureKind.STREAM
        case Api(cause=NetworkCause.TIMEOUT):
            return FailureKind.TIMEOUT
        case Api():
            return FailureKind.NETWORK
        case _:
            return FailureKind.PROTOCOL


def status_meant(error_type: str | None, status: int | None) -> int | None:
    """The HTTP status that corresponds to an error inside a stream: that of its type in `STATUS_OF_TYPE`. For an
    unknown type, it is `status`, the number that the server wrote into the error, or None.
    """
    return STATUS_OF_TYPE.get(error_type or "", status)


def kind_of(
    status: int | None,
    error_type: str | None,
    error_code: str | None,
    text: str,
    retry_after: float | None = None,
) -> FailureKind:
    """The kind of failure for an error that a server reports, in an HTTP error or inside a stream. `status` is None
    if it is unknown. `retry_after` is the wait that the server requests, or None.

    An exhausted account that is filled again at a known time is a rate limit with a long wait.
    """
    codes = (error_code, error_type)
    account = exhausted_account(codes, text)
    if account is not None:
        is_timed = account.is_refilled and retry_after is not None
        return FailureKind.RATE_LIMIT if is_timed else FailureKind.USAGE_LIMIT
    for kind, refusals in _KIND_OF_REFUSAL:
        if any(refusal.is_in(status, codes, text) for refusal in refusals):
            return kind
    return FailureKind.STREAM if status is None else _kind_of_status(status)


def outcome_of(error: AgentError) -> Outcome:
    """The outcome of a run that ends with `error`."""
    if isinstance(error, Api) and error.has_lasted:
        return Outcome.IO_ERROR
    if classify_error(error) is ErrorClass.TRANSIENT or is_for_later(error):
        return Outcome.API_UNAVAILABLE
    kind = failure_kind(error)
    if kind is FailureKind.CONTEXT_OVERFLOW:
        return Outcome.LIMIT_REACHED
    if kind in (FailureKind.AUTH, FailureKind.USAGE_LIMIT, FailureKind.BILLING):
        return Outcome.AUTH
    return Outcome.API_REJECTED


def is_for_later(error: AgentError) -> bool:
    """Whether ralph must not retry in this run, although a later run may succeed: a rate limit or a 5xx answer with
    `x-should-retry: false`, unless the kind of failure is permanent.
    """
    if not isinstance(error, HttpError) or error.should_retry is not False:
        return False
    kind = failure_kind(error)
    return kind is FailureKind.RATE_LIMIT or (error.status >= 500 and kind not in PERMANENT_KINDS)


def is_shortage(error: AgentError) -> bool:
    """Whether this machine lacks a resource, such as memory. A request to another target would fail in the same way."""
    return isinstance(error, Api) and error.cause is NetworkCause.SHORTAGE


def is_bad_key(error: AgentError) -> bool:
    """Whether the server refuses the API key. The server may accept a different key."""
    return _status_of(error) == 401 or _is_known(error, BAD_KEYS)


def refuses_thinking(error: AgentError) -> bool:
    """Whether the server refuses thinking in the request, which another server or account has signed."""
    return _is_known(error, SIGNATURES)


def misses_thinking(error: AgentError) -> bool:
    """Whether the server refuses the request because it lacks the thinking of the last answer."""
    return _is_known(error, MISSING_THINKING)


def _is_known(error: AgentError, refusals: Iterable[KnownRefusal]) -> bool:
    if not isinstance(error, HttpError | StreamTransient | StreamParse):
        return False
    codes = (error.error_code, error.error_type)
    return any(refusal.is_in(_status_of(error), codes, _said(error)) for refusal in refusals)


def is_said_again(before: AgentError | None, error: AgentError) -> bool:
    """Whether two errors in a row are failures of the server (status 500) with the same text."""
    said = [_said(each) for each in (before, error) if each is not None and _status_of(each) == 500]
    return len(said) == 2 and said[0] == said[1] != ""


def may_mean_overflow(error: AgentError) -> bool:
    """Whether the words of an error, which ralph does not know, may mean that the request was too large: the status
    is 400 or 422, or the server said the same twice.
    """
    is_refused = failure_kind(error) is FailureKind.INVALID_REQUEST and _status_of(error) in {400, 422}
    return is_refused or error.may_be_about_size


def _said(error: AgentError) -> str:
    if isinstance(error, HttpError):
        return words_of(error.message, error.body)
    return str(getattr(error, "message", ""))


def _status_of(error: AgentError) -> int | None:
    match error:
        case HttpError():
            return error.status
        case StreamParse() | StreamTransient():
            return status_meant(error.error_type, error.status)
        case _:
            return None


def _is_transient_status(error: HttpError) -> bool:
    kind = failure_kind(error)
    if kind in (FailureKind.USAGE_LIMIT, FailureKind.CONTEXT_OVERFLOW):
        return False
    if error.should_retry is not None:
        return error.should_retry
    return kind not in PERMANENT_KINDS


def _kind_of_status(status: int) -> FailureKind:
    if status in _KIND_OF_STATUS:
        return _KIND_OF_STATUS[status]
    if status >= 500:
        return FailureKind.SERVER
    return FailureKind.INVALID_REQUEST if status >= 400 else FailureKind.PROTOCOL


def words_of(message: str | None, body: str) -> str:
    """The words of an HTTP error in which texts are searched: its message, or the beginning of its body if there is none."""
    return message or body[:4096]
