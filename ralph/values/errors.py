"""The errors that can occur between a request and a complete answer. Their fields hold the facts about the error.

AgentError
├── HttpError        the server answered with a status other than 2xx
├── StreamTransient  a 2xx answer that broke off, stalled, was empty, or had a transient `error` event
├── StreamParse      a 2xx answer that is not an event stream, breaks the protocol, or has a permanent `error` event
├── Api              no answer: connect, reset, timeout, DNS, TLS, or garbage before the headers
└── Json             a data line of the stream is not JSON

`classify_error` decides whether a retry makes sense: a request is retried only after a transient error. It also says what
kind of failure the error is, and which outcome a run gets if this error ends the run. The decision is based on fields.
Message texts decide only where servers give no other sign: the refusals and exhausted accounts of `values/refusals.py`. A
test compares it with the table in `docs/retry.md`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ralph.values.outcome import Outcome
from ralph.values.refusals import (
    BAD_CALLS,
    BAD_KEYS,
    MISSING_MODELS,
    MISSING_THINKING,
    OVERFLOWS,
    SIGNATURES,
    KnownRefusal,
    exhausted_account,
)
from ralph.values.usage import TokenUsage

if TYPE_CHECKING:
    from collections.abc import Iterable


class NetworkCause(enum.Enum):
    """The reasons why no answer came. The names do not depend on httpx or ssl."""

    TIMEOUT = "timeout"
    REFUSED = "connection refused"
    RESET = "connection reset"
    UNREACHABLE = "network unreachable"
    PROTOCOL_GARBAGE = "not an HTTP answer"
    DNS_TEMPORARY = "name lookup failed for now"
    DNS_UNKNOWN_HOST = "unknown host"
    TLS = "TLS handshake failed"
    NOT_PERMITTED = "connecting not permitted"
    SHORTAGE = "shortage"
    CERTIFICATE = "certificate not trusted"
    BAD_URL = "bad URL"
    UNSENDABLE = "request that HTTP cannot carry"
    OTHER = "connection failed"


class AgentError(Exception):
    """Any error that `send_message()` can raise. Code that retries catches this class, and not its subclasses."""

    tokens = TokenUsage()
    """The token counts for an answer that broke off, which ralph discards but the server bills. For the output, the
    higher of ralph's estimate and the server's count."""
    was_idle = False
    """True if a connection that was open before the request was reset before the answer's first byte. So something
    had given up the idle connection, and nothing is known of the server."""
    may_be_about_size = False
    """True if the retries ended early because the server said the same twice to a request that may be too large for it."""
    proxy = ""
    """The proxy that the request went to, such as `the proxy http://localhost:3128 (HTTPS_PROXY)`. Empty if there
    was none."""
    retry_after: float | None = None
    """The wait that the server requests, in seconds (>= 0), or None if the server requests no wait. An error inside an answer
    has one only if an exhausted account is filled again at a known time."""


class HttpError(AgentError):
    """An answer whose status is not 2xx.

    `body` holds at most 64 KiB and is redacted. If it is an error object of the API, `error_type`, `error_code` and
    `message` are taken from it. `should_retry` is the value of the `x-should-retry` header, or None if there is
    none.
    """

    def __init__(
        self,
        status: int,
        retry_after: float | None,
        body: str,
        *,
        error_type: str | None = None,
        error_code: str | None = None,
        message: str | None = None,
        request_id: str | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(status, retry_after, body, error_type, error_code, message, request_id, should_retry)
        self.status = status
        self.retry_after = retry_after
        self.body = body
        self.error_type = error_type
        self.error_code = error_code
        self.message = message
        self.request_id = request_id
        self.should_retry = should_retry

    def __str__(self) -> str:
        kind = f" {self.error_type}" if self.error_type else ""
        shown = "".join(
            character for character in self.body[:4096] if character.isprintable() or character.isspace()
        )
        text = self.message or " ".join(shown.split())[:200] or "(empty body)"
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"HTTP {self.status}{kind}: {text}{request}"


class _AnswerError(AgentError):
    """A 2xx answer without a complete message. `error_type` and `error_code` come from the error that the server
    reported in the answer. They are None if it reported none.
    """

    def __init__(
        self,
        message: str,
        error_type: str | None = None,
        error_code: str | None = None,
        request_id: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, error_type, error_code, request_id, status)
        self.message = message
        self.error_type = error_type
        self.error_code = error_code
        self.request_id = request_id
        self.status = status
        """The HTTP status that the server wrote into its error object, or None if it wrote none. 400 if only the
        text shows that the server refused the request."""

    @property
    def is_reported(self) -> bool:
        """Whether the server reported an error. False if ralph found that the answer cannot be used."""
        return any((self.error_type, self.error_code, self.status))

    def __str__(self) -> str:
        kind = f"{self.error_type}: " if self.error_type else ""
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"{kind}{self.message}{request}"


class StreamTransient(_AnswerError):  # noqa: N818 - the specification's name
    """An answer that cannot be used, for example because it broke off. The same request may succeed later."""


class StreamParse(_AnswerError):  # noqa: N818 - the specification's name
    """An answer that is not a valid event stream, or that contains a permanent error of the server."""


class Api(AgentError):  # noqa: N818 - the specification's name
    """No answer came. `detail` is a redacted message about the cause. `host` is the host or the base URL that did
    not answer. Both may be empty.
    """

    has_lasted = False
    """True for a shortage of this machine that does not pass (`values/outcome.py`)."""

    def __init__(self, cause: NetworkCause, detail: str = "", host: str = "") -> None:
        super().__init__(cause, detail, host)
        self.cause = cause
        self.detail = detail
        self.host = host

    def __str__(self) -> str:
        where = " through ".join(filter(None, (self.host, self.proxy)))
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.cause.value}{f' ({where})' if where else ''}{detail}"


class Json(AgentError):  # noqa: N818 - the specification's name
    """A data line of the stream is not JSON. `cause` is the decoder's message. `raw` is the beginning of the line,
    redacted.
    """

    def __init__(self, cause: str, raw: str = "") -> None:
        super().__init__(cause, raw)
        self.cause = cause
        self.raw = raw

    def __str__(self) -> str:
        return f"undecodable JSON in the stream ({self.cause}): {self.raw!r}"


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
