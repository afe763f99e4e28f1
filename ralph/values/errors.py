"""The errors that can come between a request and a whole answer. They keep facts in fields, for whoever shows them.

AgentError
├── HttpError        the server answered, and not with 2xx
├── StreamTransient  a 2xx answer cut short, stalled, empty, or with a transient `error` event
├── StreamParse      a 2xx answer that is no event stream, breaks the protocol, or a permanent `error` event
├── Api              no answer at all: connect, reset, timeout, DNS, TLS, garbage before the headers
└── Json             undecodable JSON in a data line

`classify.classify_error` decides whether a request is sent again after an error.
"""

from __future__ import annotations

import enum

from ralph.values.usage import TokenUsage


class NetworkCause(enum.Enum):
    """The reasons why no answer came, in terms that do not depend on httpx or ssl."""

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
    """Any error that `send_message()` can raise. Code that retries catches this class, never a subclass."""

    tokens = TokenUsage()
    """The server's token counts for an answer that broke off: it is discarded, but billed."""


class HttpError(AgentError):
    """A status outside 2xx. `retry_after`: the wait that the server requests, in seconds (>= 0); None: it
    requests none.

    `body` holds at most 64 KiB, redacted; `error_type`, `error_code` and `message` come from it if it is the
    API's error object. `should_retry` is the `x-should-retry` header.
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
    """A 2xx answer without a whole message. `error_type` is set if an error event or object gave a reason."""

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
        """The HTTP status that the server named inside the error; None: unknown."""

    def __str__(self) -> str:
        kind = f"{self.error_type}: " if self.error_type else ""
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"{kind}{self.message}{request}"


class StreamTransient(_AnswerError):  # noqa: N818 - the specification's name
    """The answer broke off, and asking again may well work."""


class StreamParse(_AnswerError):  # noqa: N818 - the specification's name
    """The answer makes no sense, or the server rejected the request inside the stream."""


class Api(AgentError):  # noqa: N818 - the specification's name
    """No answer at all. `detail` is the library's own sentence, redacted; `host` is the host that did not answer."""

    def __init__(self, cause: NetworkCause, detail: str = "", host: str = "") -> None:
        super().__init__(cause, detail, host)
        self.cause = cause
        self.detail = detail
        self.host = host

    def __str__(self) -> str:
        where = f" ({self.host})" if self.host else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.cause.value}{where}{detail}"


class Json(AgentError):  # noqa: N818 - the specification's name
    """A data line that is not JSON. `cause` is the decoder's sentence, `raw` the line's first bytes, redacted."""

    def __init__(self, cause: str, raw: str = "") -> None:
        super().__init__(cause, raw)
        self.cause = cause
        self.raw = raw

    def __str__(self) -> str:
        return f"undecodable JSON in the stream ({self.cause}): {self.raw!r}"
