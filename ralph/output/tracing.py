"""Prepares the traces of `--otel`. If they are not available, reports the reason in one line. OpenTelemetry is
imported only if the option is given. `tracing_spans.py` makes the spans.
"""

from __future__ import annotations

import logging
import time
import warnings
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ralph.values.outcome import shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.output.tracing_spans import Tracing

EXTRA_MISSING = "--otel needs the extra: pip install '.[otel]' in ralph's clone, with ralph's Python"

_DEFAULT_ENDPOINT = "http://localhost:4318"  # the default of the OTLP specification
_OWN_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
# These loggers log failures, including headers with keys. Standard error is for ralph's own lines.
_TALKATIVE = ("opentelemetry", "requests", "urllib3")


class TracingError(Exception):
    """`--otel` cannot be used with this installation or in this environment. The message is one line for the user."""


def open_tracing(
    session_id: str,
    environment: Mapping[str, str],
    *,
    version: str,
    tell: Callable[[str], None],
    redact: Callable[[str], str] = str,
    now_ns: Callable[[], int] = time.time_ns,
) -> Tracing:
    """Prepares the traces, and starts the thread that sends spans. Raises TracingError or ShortageError.

    `environment` must be the environment of the process or a copy of it, because the SDK reads `os.environ` itself.
    If there are problems, `Tracing.close` calls `tell` once with a line about all of them. `now_ns` returns the Unix
    time in nanoseconds.
    """
    endpoint = _endpoint(environment)
    _demand_protocol(environment)
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # requests warns about the versions of other packages
            from ralph.output import tracing_spans  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TracingError(EXTRA_MISSING) from error
    delivery = None
    try:
        delivery = tracing_spans.SpanDelivery(endpoint)
        tracer = tracing_spans.tracer_for(delivery, version)
    except Exception as error:  # any error that a library raises for an invalid setting
        if delivery is not None:
            delivery.close(timeout_s=1.0)  # there is nothing to send, so the thread ends at once
        short = shortage_of(error)
        if short is not None:
            raise short from error
        said = " ".join(redact(str(error)).split())
        raise TracingError(f"--otel: the OTEL_* variables cannot be used: {said}") from error
    return tracing_spans.Tracing(
        tracer,
        delivery,
        session_id=session_id,
        environment=environment,
        tell=tell,
        redact=redact,
        now_ns=now_ns,
    )


def _endpoint(environment: Mapping[str, str]) -> str:
    own = environment.get(_OWN_ENDPOINT)
    base = environment.get(_ENDPOINT) or _DEFAULT_ENDPOINT
    name, endpoint = (_OWN_ENDPOINT, own) if own else (_ENDPOINT, f"{base.rstrip('/')}/v1/traces")
    try:
        parts = urlsplit(endpoint)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        # The value is not repeated, because a password cannot be found in a text that is not a URL.
        raise TracingError(f"--otel: {name} must be a URL such as {_DEFAULT_ENDPOINT}")
    return endpoint


def _demand_protocol(environment: Mapping[str, str]) -> None:
    for name in _PROTOCOLS:
        value = environment.get(name)
        if value:
            if value != _PROTOCOL:
                raise TracingError(f"--otel: {name} is {value!r}; ralph speaks {_PROTOCOL} only")
            return
