"""The errors that can occur between a request and a complete answer. Their fields hold the facts about the error.

AgentError
├── HttpError        the server answered with a status other than 2xx
├── StreamTransient  a 2xx answer that broke off, stalled, was empty, or had a transient `error` event
├── StreamParse      a 2xx answer that is not an event stream, breaks the protocol, or has a permanent `error` event
├── Api              no answer: connect, reset, timeout, DNS, TLS, or garbage before the headers
└── Json             a data line of the stream is not JSON

`classify.classify_error` decides whether an error is transient. A request is retried only after a transient error.
"""

from __future__ import annotations

import enum

from ralph.values.usage import TokenUsage


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
    """True for a shortage of this machine that does not pass (`values/shortage.py`)."""

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
