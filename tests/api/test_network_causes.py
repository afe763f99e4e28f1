"""Every exception of httpx, with every kind of cause, must become an error of the right class."""

from __future__ import annotations

import errno
import socket
import ssl
from typing import TYPE_CHECKING, Any, cast

import httpx

from ralph.api.transport import error_before_answer, error_inside_answer, network_cause
from ralph.values.errors import (
    Api,
    ErrorClass,
    HttpError,
    NetworkCause,
    StreamParse,
    StreamTransient,
    classify_error,
)
from ralph.values.outcome import ShortageError
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUEST = httpx.Request("POST", "http://h/")
T, P = ErrorClass.TRANSIENT, ErrorClass.PERMANENT
Cause = NetworkCause


def tree(root: type[Exception]) -> Iterator[type[Exception]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__.startswith("httpx"):
            yield from tree(child)


HTTPX_ERRORS = sorted(
    {*tree(httpx.HTTPError), *tree(httpx.InvalidURL), *tree(httpx.StreamError)} - {httpx.HTTPStatusError},
    key=lambda kind: kind.__name__,
)

TIMEOUTS = {"TimeoutException", "ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout"}
BAD_URLS = {"UnsupportedProtocol", "InvalidURL"}
BARE = {
    **dict.fromkeys(TIMEOUTS, Cause.TIMEOUT),
    **dict.fromkeys(BAD_URLS, Cause.BAD_URL),
    **dict.fromkeys(["ReadError", "WriteError", "CloseError"], Cause.RESET),
    "RemoteProtocolError": Cause.PROTOCOL_GARBAGE,
    "LocalProtocolError": Cause.UNSENDABLE,
}
"""The cause for each class of exception whose class alone decides. All other classes mean OTHER."""

CAUSES = [
    (OSError(errno.ECONNREFUSED, ""), Cause.REFUSED, T),
    (OSError(errno.ECONNRESET, ""), Cause.RESET, T),
    (OSError(errno.EPIPE, ""), Cause.RESET, T),
    (OSError(errno.ECONNABORTED, ""), Cause.RESET, T),
    (OSError(errno.ETIMEDOUT, ""), Cause.TIMEOUT, T),
    (TimeoutError(), Cause.TIMEOUT, T),
    (OSError(errno.ENETUNREACH, ""), Cause.UNREACHABLE, T),
    (OSError(errno.EHOSTUNREACH, ""), Cause.UNREACHABLE, T),
    (OSError(errno.ENETDOWN, ""), Cause.UNREACHABLE, T),
    (OSError(errno.EHOSTDOWN, ""), Cause.UNREACHABLE, T),
    (socket.gaierror(socket.EAI_AGAIN, ""), Cause.DNS_TEMPORARY, T),
    (socket.gaierror(socket.EAI_NONAME, ""), Cause.DNS_UNKNOWN_HOST, P),
    (socket.gaierror(socket.EAI_NODATA, ""), Cause.DNS_UNKNOWN_HOST, P),
    (socket.gaierror(socket.EAI_FAIL, ""), Cause.DNS_TEMPORARY, T),
    (socket.gaierror(socket.EAI_MEMORY, ""), Cause.SHORTAGE, T),
    (UnicodeError("label too long"), Cause.BAD_URL, P),
    (OSError(errno.EACCES, ""), Cause.NOT_PERMITTED, T),
    (OSError(errno.EPERM, ""), Cause.NOT_PERMITTED, T),
    (OSError(errno.EMFILE, ""), Cause.SHORTAGE, T),
    (OSError(errno.ENFILE, ""), Cause.SHORTAGE, T),
    (OSError(errno.ENOMEM, ""), Cause.SHORTAGE, T),
    (MemoryError(), Cause.SHORTAGE, T),
    (ShortageError("thread"), Cause.SHORTAGE, T),
    (OSError(errno.EADDRNOTAVAIL, ""), None, T),
    (ssl.SSLCertVerificationError(), Cause.CERTIFICATE, P),
    (ssl.SSLEOFError(), Cause.RESET, T),
    (ssl.SSLZeroReturnError(), Cause.RESET, T),
    (ssl.SSLError(1, "[SSL: TLSV1_ALERT_INTERNAL_ERROR] alert"), Cause.TLS, T),
]


def raised(kind: type[Exception], cause: BaseException | None, *, as_context: bool = False) -> Exception:
    """An exception of httpx with the exception that caused it, as httpx makes them."""
    if issubclass(kind, httpx.StreamError) and kind is not httpx.StreamError:
        error: Exception = cast("Any", kind)()
    elif issubclass(kind, httpx.RequestError):
        error = kind("words", request=REQUEST)
    else:
        error = kind("words")
    if as_context:
        error.__context__ = cause
    else:
        error.__cause__ = cause
    return error


def test_the_tree_is_the_whole_tree() -> None:
    assert {"ConnectError", "ProxyError", "DecodingError", "StreamConsumed", "InvalidURL"} <= {
        kind.__name__ for kind in HTTPX_ERRORS
    }
    assert len(HTTPX_ERRORS) >= 25


@every_row("kind", HTTPX_ERRORS)
def test_without_a_cause_the_class_decides(kind) -> None:
    cause = BARE.get(kind.__name__, Cause.OTHER)
    error = error_before_answer(raised(kind, None), "h:1", str.upper)
    assert isinstance(error, Api)
    assert (error.cause, error.host) == (cause, "h:1")
    assert error.detail == error.detail.upper(), "the sentence was not redacted"
    assert classify_error(error) is (P if cause in {Cause.BAD_URL, Cause.UNSENDABLE} else T)


@every_row(("cause", "expected", "error_class"), CAUSES)
@every_row("kind", HTTPX_ERRORS)
def test_the_cause_below_decides_unless_the_class_says_enough(kind, cause, expected, error_class) -> None:
    by_class = BARE[kind.__name__] if kind.__name__ in TIMEOUTS | BAD_URLS else None
    for as_context in (False, True):
        error = raised(kind, cause, as_context=as_context)
        assert network_cause(error) is (by_class or expected or BARE.get(kind.__name__, Cause.OTHER))
    if by_class is None and expected is not None:
        assert classify_error(error_before_answer(error, "h", str)) is error_class


def test_the_cause_is_found_however_deep_it_lies() -> None:
    middle = raised(httpx.ConnectError, OSError(errno.ECONNREFUSED, ""))
    assert network_cause(raised(httpx.ConnectError, middle, as_context=True)) is Cause.REFUSED


def test_an_exception_that_is_none_of_httpx_is_weather() -> None:
    for error in (RuntimeError(), OSError(errno.EINVAL, ""), UnicodeDecodeError("ascii", b"", 0, 1, "")):
        assert network_cause(error) is Cause.OTHER
        assert classify_error(error_before_answer(error, "h", str)) is T


UNKNOWN = [socket.EAI_NONAME, socket.EAI_NODATA]


@every_row("code", UNKNOWN)
def test_a_host_that_has_answered_before_is_there_whatever_a_resolver_says(code) -> None:
    error = raised(httpx.ConnectError, socket.gaierror(code, ""))
    for has_answered, error_class in ((False, P), (True, T)):
        told = error_before_answer(error, "h", str, has_answered=has_answered)
        assert classify_error(told) is error_class
    untrusted = raised(httpx.ConnectError, ssl.SSLCertVerificationError())
    assert classify_error(error_before_answer(untrusted, "h", str, has_answered=True)) is P


@every_row("words", ["407 Proxy Authentication Required", "502 Bad Gateway", "503 "])
def test_a24_a_proxys_refusal_becomes_a_status(words) -> None:
    error = error_before_answer(httpx.ProxyError(words), "h", str)
    assert isinstance(error, HttpError)
    assert error.status == int(words[:3])


def test_a_proxy_error_without_a_status_is_no_answer() -> None:
    assert isinstance(error_before_answer(httpx.ProxyError("5000 words"), "h", str), Api)


@every_row("kind", HTTPX_ERRORS)
def test_inside_an_answer_everything_but_a_broken_encoding_is_transient(kind) -> None:
    error = error_inside_answer(raised(kind, OSError(errno.ECONNRESET, "")), str.upper)
    assert isinstance(error, StreamParse if kind is httpx.DecodingError else StreamTransient)
    assert "WORDS" in error.message or issubclass(kind, httpx.StreamError)
