"""Records each request, and plans its refusal or the next step of the scenario. Sends nothing."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from msgspec.structs import replace

from ralph.mock_api.chat import CREATED
from ralph.mock_api.dialect import ANTHROPIC, BY_PATH, ServedApi, dialect_at, lookup_path
from ralph.mock_api.events import DEFAULT_MODEL
from ralph.mock_api.fault import Fault, ScenarioError
from ralph.mock_api.plan import Context, Plan, plan_error, plan_json, plan_step
from ralph.mock_api.scenario import FOREVER, Model, Scenario, Script, Step, ToolUse, as_step
from ralph.mock_api.validation import MAX_REQUEST_BYTES, InvalidBodyError, parse_body

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ralph.mock_api.connection import BadRequestError, HttpHead
    from ralph.mock_api.recording import RecordedRequest, Recorder


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
