"""The server. It listens, and runs each connection in a thread. Closing the server ends all connections at once. Each request is
recorded, and answered with its refusal or with the next step of the scenario.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from ralph.mock_api.chat import CREATED
from ralph.mock_api.connection import Connection
from ralph.mock_api.events import DEFAULT_MODEL
from ralph.mock_api.plan import (
    ANTHROPIC,
    BY_API,
    BY_PATH,
    Context,
    Plan,
    ServedApi,
    dialect_at,
    lookup_path,
    plan_error,
    plan_json,
    plan_step,
)
from ralph.mock_api.scenario import (
    FOREVER,
    Fault,
    Model,
    Scenario,
    ScenarioError,
    Script,
    Step,
    ToolUse,
    as_step,
)
from ralph.mock_api.validation import MAX_REQUEST_BYTES, InvalidBodyError, parse_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

    from ralph.mock_api.connection import BadRequestError, HttpHead

_JOIN_LIMIT_S = (
    2.0  # threads end within milliseconds; a stuck one is a daemon and must not keep the user waiting
)
_BACKLOG = 128


class MockApi:
    """A scripted server on 127.0.0.1, which as a context manager starts on entry and closes on exit.

    A `script` computes the steps in place of the scenario, which then has none. `port` 0 is any free port. Each request
    is appended to the file `record` as a JSON object. `keep_requests` and `keep_bodies` limit how many stay in memory;
    None is no limit.
    """

    def __init__(
        self,
        scenario: Scenario | None = None,
        *,
        script: Script | None = None,
        port: int = 0,
        record: Path | None = None,
        keep_requests: int | None = None,
        keep_bodies: int | None = None,
    ) -> None:
        if script is not None and scenario is not None and scenario.steps:
            raise ValueError("a script computes the steps; the scenario beside it must have none")
        self._scenario = scenario or Scenario()
        self._script = script
        self._wanted_port = port
        self._recorder = Recorder(path=record, keep_requests=keep_requests, keep_bodies=keep_bodies)
        # Both recorders write to the same file. Their lines do not mix, because each line is one append.
        self._lookups = Recorder(path=record, keep_requests=keep_requests)
        self._responder = Responder(self._scenario, script, self._recorder, self._lookups)
        self._listener: socket.socket | None = None
        self._port = 0
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, Connection] = {}
        self._acceptor = threading.Thread(target=self._accept_all, name="mock-api", daemon=True)

    def start(self) -> Self:
        """Raises OSError if the port is in use, and RuntimeError if the machine has no free thread."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # Lets a port be used again while connections of the last server linger in TIME_WAIT.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self._wanted_port))
            listener.listen(_BACKLOG)
            self._listener = listener
            self._port = listener.getsockname()[1]
            self._acceptor.start()
        except (OSError, RuntimeError):
            self._listener = None
            listener.close()
            self._close_recorders()
            raise
        return self

    def close(self) -> None:
        """Ends all connections at once, even if an answer is paused. A closed server cannot be started again."""
        self._closing.set()
        if self._listener is not None:
            # A connection to this server itself is the portable way to end a blocked accept().
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            self._acceptor.join(_JOIN_LIMIT_S)
            self._listener.close()
            self._listener = None
        with self._lock:
            remaining = dict(self._open)
        for connection in remaining.values():
            connection.interrupt()
        end = time.monotonic() + _JOIN_LIMIT_S
        for thread in remaining:
            thread.join(max(0.0, end - time.monotonic()))
        self._close_recorders()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The port on which the server listens. If any free port may be used, it is 0 before `start()`."""
        return self._port

    @property
    def base_url(self) -> str:
        """The URL of the server without a path. Clients add `/v1/messages` to it."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def requests(self) -> tuple[RecordedRequest, ...]:
        """A copy of the stored requests. The oldest comes first. Model lookups are not included."""
        return self._recorder.requests()

    @property
    def lookups(self) -> tuple[RecordedRequest, ...]:
        """A copy of the stored model lookups (`GET /v1/models/{id}`). They are numbered and counted separately."""
        return self._lookups.requests()

    @property
    def request_count(self) -> int:
        """The requests so far, including those that are not stored any more, without lookups of models."""
        return self._recorder.count

    def wait_for_requests(self, count: int, timeout_s: float = 5.0) -> bool:
        """Waits for `count` requests since the server started. False if that takes more than `timeout_s` seconds."""
        return self._recorder.wait_for(count, timeout_s)

    def _close_recorders(self) -> None:
        self._recorder.close()
        self._lookups.close()

    def _accept_all(self) -> None:
        listener = self._listener
        while listener is not None and not self._closing.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:
                # The client left before it was accepted, or no file descriptor is free at the moment.
                self._closing.wait(0.01)
                continue
            if self._closing.is_set():
                sock.close()
                return
            self._open_connection(sock)

    def _open_connection(self, sock: socket.socket) -> None:
        try:
            connection = Connection(sock, self._responder, self._closing)
        except OSError:
            sock.close()
            return
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="mock-api-connection", daemon=True
        )
        with self._lock:
            self._open[thread] = connection
        try:
            thread.start()
        except RuntimeError:  # the machine has no thread left: the client is disconnected, and may try again
            with self._lock:
                del self._open[thread]
            sock.close()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                self._open.pop(threading.current_thread(), None)


def run_forever(
    scenario: Scenario,
    *,
    port: int = 0,
    record: Path | None = None,
    ready: Callable[[MockApi], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Runs a server until `stop`, if given, is set, or an exception such as KeyboardInterrupt comes, which is raised
    again. `ready` is called when it listens. Only the newest requests stay in memory, and all go to the file `record`.
    """
    with MockApi(scenario, port=port, record=record, keep_requests=100, keep_bodies=0) as server:
        if ready is not None:
            ready(server)
        (stop or threading.Event()).wait()


# Requests are recorded in memory, and as JSON lines in a file, without credentials in headers and path.

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


class ExhaustedError(Exception):
    """A request arrived when no step of the scenario was left."""


class Playback:
    """The position in the scenario, which gives each accepted request its step. For several threads."""

    def __init__(self, scenario: Scenario, script: Script | None) -> None:
        self._steps = [as_step(step) for step in scenario.steps]
        self._script = script
        self._position = 0
        self._played = 0
        """The number of times that the step at the current position has been played."""
        self._taken = 0
        self.after_pause_turn = False
        """Whether the last answer ended with `pause_turn`. The client may then send this answer back unchanged."""
        self._lock = threading.Lock()

    def take(self, request: RecordedRequest) -> tuple[Step, int]:
        """The step, and the number of the answer from 0. Raises `ExhaustedError` and what the script raises."""
        with self._lock:
            index = self._taken
            step = self._current() if self._script is None else as_step(self._script(request, index))
            if step is None:
                raise ExhaustedError(f"scenario exhausted after {index} requests")
            self._advance(step)
            return step, index

    def take_at_accept(self) -> Fault | None:
        """Plays the next step if it has `at_accept`, and returns its fault, else None. Called for each connection."""
        with self._lock:
            step = self._current()
            if step is None or step.fault is None or not step.fault.at_accept:
                return None
            self._advance(step)
            return step.fault

    def _current(self) -> Step | None:
        return self._steps[self._position] if self._position < len(self._steps) else None

    def _advance(self, step: Step) -> None:
        self._taken += 1
        self._played += 1
        self.after_pause_turn = step.turn is not None and step.turn.stop_reason == "pause_turn"
        if step.repeat != FOREVER and self._played >= step.repeat:
            self._position += 1
            self._played = 0


class Responder:
    def __init__(
        self, scenario: Scenario, script: Script | None, recorder: Recorder, lookups: Recorder
    ) -> None:
        """`lookups` records the requests for descriptions of models. `recorder` records all other requests."""
        self._scenario = scenario
        self._recorder = recorder
        self._lookups = lookups
        self._models = {model.id: model for model in scenario.models}
        self._playback = Playback(scenario, script)
        self._cached: tuple[Step, ServedApi, Plan] | None = None

    def at_accept(self) -> Plan | None:
        """The plan for a new connection before anything is read from it, or None if its requests are read."""
        fault = self._playback.take_at_accept()
        return None if fault is None else plan_step(Step(fault=fault), Context())

    def refuse(self, problem: BadRequestError) -> Plan:
        """The plan of the answer to bytes that are not a valid request."""
        return plan_error(problem.status, str(problem), Context(keep_alive=False, accepts_chunks=False))

    def answer(self, head: HttpHead, body: bytes) -> Plan:
        """Records the request, and plans the answer to it."""
        plan = self._answer(head, body)
        return replace(plan, parts=()) if head.method == "HEAD" else plan

    def _answer(self, head: HttpHead, body: bytes) -> Plan:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        context = Context(keep_alive=head.keeps_alive, accepts_chunks=head.version != "HTTP/1.0")
        path = head.target.partition("?")[0]
        dialect = dialect_at(path, head.headers)
        context = replace(context, dialect=dialect)
        model_id = _model_asked_for(head.method, path)
        recorder = self._recorder if model_id is None else self._lookups
        try:
            request = recorder.add(
                received_at=now,
                monotonic_s=time.monotonic(),
                method=head.method,
                target=head.target,
                headers=head.headers,
                body=body,
                api=dialect.api,
            )
        except OSError as error:
            return plan_error(500, f"mock-api cannot record the request: {error}", context)
        if model_id is not None:
            context = replace(context, request_id=f"req_mock_model_{request.index:06d}")
            return self._answer_about(model_id, head, context)
        context = replace(context, request_id=f"req_mock_{request.index:06d}")
        if path not in BY_PATH:
            return plan_error(404, "Not found", context)
        if head.method != "POST":
            return plan_error(405, "Method Not Allowed", context, headers={"allow": "POST"})
        return self._answer_message(head, request, body, context)

    def _answer_about(self, model_id: str, head: HttpHead, context: Context) -> Plan:
        if self._lacks_key(head, context.dialect):
            return plan_error(401, context.dialect.no_key, context)
        describe = _describe if context.dialect is ANTHROPIC else _describe_as_openai
        if not model_id:
            return plan_json(_list(map(describe, self._scenario.models), context.dialect), context, Fault())
        model = self._models.get(model_id)
        if model is None:
            unknown = f"The model '{model_id}' does not exist"
            return plan_error(404, f"model: {model_id}" if context.dialect is ANTHROPIC else unknown, context)
        return plan_json(describe(model), context, model.fault or Fault())

    def _lacks_key(self, head: HttpHead, dialect: ServedApi) -> bool:
        return self._scenario.require_key and not dialect.key_headers & head.headers.keys()

    def _answer_message(
        self, head: HttpHead, request: RecordedRequest, body: bytes, context: Context
    ) -> Plan:
        if self._lacks_key(head, context.dialect):
            return plan_error(401, context.dialect.no_key, context)
        payload: dict[str, Any] = {"stream": True}
        if self._scenario.parse_requests:
            try:
                payload = parse_body(body)
            except InvalidBodyError as error:
                return plan_error(400, str(error), context)
        if self._scenario.validate and self._scenario.parse_requests:
            if len(body) > MAX_REQUEST_BYTES and context.dialect is ANTHROPIC:
                return plan_error(413, None, context)
            refusal = context.dialect.find_refusal(payload, head.headers, self._playback.after_pause_turn)
            if refusal is not None:
                return plan_step(Step(fault=refusal), context)
        return self._play(request, payload, context)

    def _play(self, request: RecordedRequest, payload: dict[str, Any], context: Context) -> Plan:
        try:
            step, index = self._playback.take(request)
        except ExhaustedError as error:
            return plan_error(400, str(error), context)
        except Exception as error:  # noqa: BLE001 - a script is the user's code; the client must see that it failed
            return plan_error(400, f"the mock-api script failed: {error!r}", context)
        if self._cached is not None and self._cached[:2] == (step, context.dialect) and context.keep_alive:
            return self._cached[2]
        model = payload.get("model")
        context = replace(
            context,
            index=index,
            model=model if isinstance(model, str) else DEFAULT_MODEL,
            payload=payload,
            stream=payload.get("stream") is True,
        )
        try:
            plan = plan_step(step, context)
        except ScenarioError as error:
            return plan_error(400, f"mock-api cannot play this step: {error}", context)
        if not self._scenario.parse_requests and context.keep_alive and _is_always_the_same(step):
            self._cached = step, context.dialect, plan
        return plan


def _is_always_the_same(step: Step) -> bool:
    """Whether all answers of this step are equal, apart from the ids of the message and of the request."""
    blocks = step.turn.blocks() if step.turn else ()
    return step.repeat == FOREVER and not any(isinstance(b, ToolUse) and b.id is None for b in blocks)


def _model_asked_for(method: str, path: str) -> str | None:
    """The model id in `GET /v1/models/{id}`. Empty for a request of all models, None for any other request."""
    quoted = lookup_path(path)
    if quoted is None or method != "GET" or quoted == "/" or "/" in quoted[1:]:
        return None
    return unquote(quoted[1:])


def _list(models: Iterable[dict[str, Any]], dialect: ServedApi) -> dict[str, Any]:
    data = list(models)
    if dialect is not ANTHROPIC:
        return {"object": "list", "data": data}
    ids = [model["id"] for model in data] or [None]
    return {"data": data, "has_more": False, "first_id": ids[0], "last_id": ids[-1]}


def _describe(model: Model) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": "active",
        "line": None,
        "max_input_tokens": model.max_input_tokens,
        "max_tokens": model.max_tokens,
    }


def _describe_as_openai(model: Model) -> dict[str, Any]:
    """OpenAI tells no numbers. `max_model_len` is what vLLM and SGLang add."""
    numbers = {"max_model_len": model.max_input_tokens} if model.max_input_tokens else {}
    return {"id": model.id, "object": "model", "created": CREATED, "owned_by": "mock", **numbers}
