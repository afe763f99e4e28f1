"""Records requests in memory, and as JSON lines in a file, without credentials in headers and path."""

from __future__ import annotations

import json
import os
import re
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.mock_api.dialect import BY_API

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REDACTED = "[redacted]"

# The pattern is broad on purpose: losing a harmless header costs less than keeping a key.
_CREDENTIAL = re.compile(r"auth|token|secret|key|passw|credential|cookie|session|signature", re.IGNORECASE)


class RecordedRequest(Struct, frozen=True):
    index: int
    """From 0. Lookups of models are numbered separately, all other requests together."""
    received_at: str
    """The time at which the whole request had been received, in ISO 8601 with the time zone UTC."""
    monotonic_s: float
    """The value of `time.monotonic()` when the whole request had been received. It is meant for computing durations."""
    method: str
    path: str
    """The path with its query. If the name of a parameter looks like that of a credential, its value is replaced."""
    headers: Mapping[str, str]
    """With names in lower case. The values of those that look like credentials are replaced."""
    body_bytes: int
    """The size of the body in bytes. It is known even if the body is not stored."""
    body: bytes | None
    """None if it is not stored any more, because of `keep_bodies`."""
    api: str = "anthropic"
    """The dialect of the request: `anthropic`, `openai-chat` or `openai-responses`."""

    def json(self) -> Any:
        """Decodes the body. Raises ValueError if the body is not JSON or is not stored."""
        if self.body is None:
            raise ValueError(f"the body of request {self.index} was not kept")
        return json.loads(self.body)

    def messages(self) -> list[dict[str, Any]]:
        """The messages of a valid request in the form of the Messages API, in any dialect. Raises as `json()`."""
        return BY_API[self.api].conversation(self.json())


def redact_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: REDACTED if _CREDENTIAL.search(name) else value for name, value in headers.items()}


def redact_path(target: str) -> str:
    path, mark, query = target.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&")]
    return (
        path
        + mark
        + "&".join(n + eq + (REDACTED if eq and _CREDENTIAL.search(n) else v) for n, eq, v in pairs)
    )


class Recorder:
    """Stores requests, for several threads. Adding one takes the same time however many there are."""

    def __init__(
        self, *, path: Path | None = None, keep_requests: int | None = None, keep_bodies: int | None = None
    ) -> None:
        self._requests: deque[RecordedRequest] = deque(maxlen=keep_requests)
        self._keep_bodies = keep_bodies
        self._count = 0
        self._changed = threading.Condition()
        # Only the user may read the file (0o600), because prompts are private.
        mode = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = None if path is None else os.open(path, mode, 0o600)

    @property
    def count(self) -> int:
        """The number of requests so far. Requests that are not stored any more are included."""
        return self._count

    def requests(self) -> tuple[RecordedRequest, ...]:
        with self._changed:
            return tuple(self._requests)

    def wait_for(self, count: int, timeout_s: float) -> bool:
        """Waits for `count` requests since the server started. False if that takes more than `timeout_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count >= count, timeout_s)

    def add(
        self,
        *,
        received_at: str,
        monotonic_s: float,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        api: str = "anthropic",
    ) -> RecordedRequest:
        """Records a request and returns it. Raises OSError if the file cannot be written."""
        path = redact_path(target)
        kept_headers = redact_headers(headers)
        with self._changed:
            request = RecordedRequest(
                self._count, received_at, monotonic_s, method, path, kept_headers, len(body), body, api
            )
            self._count += 1
            self._keep(request)
            self._changed.notify_all()
            if self._file is not None:
                _write_whole(self._file, _json_line(request))
        return request

    def close(self) -> None:
        with self._changed:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _keep(self, request: RecordedRequest) -> None:
        self._requests.append(request)
        if self._keep_bodies is None:
            return
        oldest = -1 - self._keep_bodies  # the index of the first body that is too old to store
        if len(self._requests) >= -oldest:
            self._requests[oldest] = replace(self._requests[oldest], body=None)


def _json_line(request: RecordedRequest) -> bytes:
    """A body that is JSON is its decoded value, any other one a string."""
    body = request.body or b""
    try:
        value = json.loads(body)
    except ValueError:
        value = body.decode(errors="replace")
    fields = {
        "index": request.index,
        "received_at": request.received_at,
        "monotonic_s": request.monotonic_s,
        "api": request.api,
        "method": request.method,
        "path": request.path,
        "headers": dict(request.headers),
        "body_bytes": request.body_bytes,
        "body": value,
    }
    return json.dumps(fields).encode() + b"\n"


def _write_whole(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
