"""Converts exceptions of httpx into the five errors in `values/errors.py`. httpx raises `ConnectError` for refused
connections, for DNS errors and for TLS errors. So this module looks at the causes of the exception.
"""

from __future__ import annotations

import errno
import re
import socket
import sys
from typing import TYPE_CHECKING

from ralph.api.transport import httpx
from ralph.values.errors import AgentError, Api, HttpError, NetworkCause, StreamParse, StreamTransient
from ralph.values.shortage import ShortageError, causes_of, shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable

_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN})
# The error numbers that mean that a name does not exist or has no address. All others are problems of the resolver.
_NO_SUCH_HOST = frozenset(
    {
        socket.EAI_NONAME,
        *(getattr(socket, name, socket.EAI_NONAME) for name in ("EAI_NODATA", "EAI_ADDRFAMILY")),
    }
)
_PROXY_STATUS = r"^(\d{3})\b"


def error_before_answer(
    error: Exception, host: str, redact: Callable[[str], str], *, has_answered: bool = False
) -> AgentError:
    """The error for a failure before the head of the response was read.

    `redact` removes credentials from the library's message. If `has_answered` is True, the host has answered
    before, and a failed name lookup is treated as temporary.
    """
    detail = redact(str(error))
    if isinstance(error, httpx.ProxyError) and (refused := re.match(_PROXY_STATUS, str(error))):
        # If a proxy refuses CONNECT, only the message of the error contains the status.
        return HttpError(int(refused[1]), None, "", message=f"the proxy refused the connection: {detail}")
    cause = network_cause(error)
    if cause is NetworkCause.SHORTAGE:
        return shortage_error(error)
    if cause is NetworkCause.DNS_UNKNOWN_HOST and has_answered:
        cause = NetworkCause.DNS_TEMPORARY
    return Api(cause, detail, host)


def shortage_error(error: BaseException) -> Api:
    """The error for a shortage of a resource, such as memory, on this machine."""
    return Api(NetworkCause.SHORTAGE, str(shortage_of(error) or ShortageError("memory")))


def error_inside_answer(error: Exception, redact: Callable[[str], str]) -> AgentError:
    """The error for a failure while the body of a 2xx response is read: it broke off, or cannot be decompressed."""
    detail = redact(str(error)) or type(error).__name__
    if isinstance(error, httpx.DecodingError):
        return StreamParse(f"the answer's content-encoding is broken: {detail}")
    return StreamTransient(f"the connection broke inside the answer: {detail}")


def network_cause(error: BaseException) -> NetworkCause:
    """The cause of a failure that happened before the head of the response was read.

    The cause is found from the classes and error numbers of the exception and of its own causes. Message texts are
    used only to recognise a shortage on this machine (`values/shortage.py`).
    """
    if isinstance(error, httpx.TimeoutException):
        return NetworkCause.TIMEOUT
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        return NetworkCause.BAD_URL
    for cause in causes_of(error):
        found = _os_cause(cause)
        if found is not None:
            return found
    if shortage_of(error) is not None:
        return NetworkCause.SHORTAGE
    if isinstance(error, httpx.LocalProtocolError):
        return NetworkCause.UNSENDABLE
    if isinstance(error, httpx.RemoteProtocolError):
        return NetworkCause.PROTOCOL_GARBAGE
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.CloseError):
        return NetworkCause.RESET
    return NetworkCause.OTHER


def _os_cause(cause: BaseException) -> NetworkCause | None:
    ssl = sys.modules.get("ssl")
    if ssl is not None and isinstance(cause, ssl.SSLError):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return NetworkCause.CERTIFICATE
        # Any other error of TLS: the other side sent an alert, or does not use TLS.
        is_end = isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        return NetworkCause.RESET if is_end else NetworkCause.TLS
    match cause:
        case socket.gaierror() if cause.errno == socket.EAI_MEMORY:
            return NetworkCause.SHORTAGE
        case socket.gaierror():
            is_unknown = cause.errno in _NO_SUCH_HOST
            return NetworkCause.DNS_UNKNOWN_HOST if is_unknown else NetworkCause.DNS_TEMPORARY
        case UnicodeError() if not isinstance(cause, UnicodeDecodeError):  # a name that no host can have
            return NetworkCause.BAD_URL
        case PermissionError():
            return NetworkCause.NOT_PERMITTED
        case TimeoutError():
            return NetworkCause.TIMEOUT
        case ConnectionRefusedError():
            return NetworkCause.REFUSED
        case ConnectionError():
            return NetworkCause.RESET
        case OSError() if cause.errno in _UNREACHABLE:
            return NetworkCause.UNREACHABLE
        case _:
            return None
