"""The parts of a scenario: answers, faults, steps and models, and its file, in TOML or JSON. Refuses what cannot be played. An
unknown key or a wrong type in a file is an error that names the path.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import asdict

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from ralph.mock_api.server import RecordedRequest

FOREVER: Literal["forever"] = "forever"


# --- Faults of an answer. If a part of one would have no effect, the fault is refused.


class ScenarioError(ValueError):
    """A scenario cannot be played. The message is one line that names the wrong key and the position of this key."""


class ErrorEvent(Struct, frozen=True, forbid_unknown_fields=True):
    """An `error` event in a stream that began with status 200. After this event, the stream ends."""

    type: str = "overloaded_error"
    message: str = "Overloaded"
    after_events: int = 0
    """The number of events of the answer that are sent before the error event."""


Framing = Literal["length", "chunked", "close", "reset"]
LineEnding = Literal["\n", "\r\n", "\r"]
Body = str | bytes | Mapping[str, Any] | Sequence[Any]


class Fault(Struct, frozen=True):
    """A fault of one answer, in one or several parts. Events are counted from 1: `message_start` is event 1."""

    status: int | None = None
    """The HTTP status of a response that replaces the turn: 200 if only `body` or `huge_body_bytes` is set."""
    message: str | None = None
    """The text in the API's error object. If it is None, the text is the API's own message for the status."""
    body: Body | None = None
    """Replaces the turn. Mappings and lists are sent as JSON. From status 400 on, None is the API's error object."""
    huge_body_bytes: int | None = None
    """The number of bytes `x` to send after `body`. These bytes are never all in memory at the same time."""
    garbage: str | bytes | None = None
    """Text or bytes to send in place of an HTTP response. The connection is closed afterwards."""
    reset_before_headers: bool = False
    """True if the connection is reset and no response is sent."""
    close_before_headers: bool = False
    """True if the connection is closed and no response is sent."""
    at_accept: bool = False
    """Resets or closes a new connection before anything is read. Uses up the step, and records no request."""
    partial_headers_bytes: int | None = None
    """After this number of bytes of the status line and the headers, the connection is reset."""

    headers: Mapping[str, str | int | float] = field(default_factory=dict)
    """Added to the response, or in place of its own of the same name. Numbers are sent as text."""
    content_type: str | None = None
    framing: Framing | None = None
    """How the body ends: `length` (Content-Length), `chunked`, `close`, or `reset` after the last byte. None is
    `chunked` for streams and `length` otherwise."""
    json_instead_of_sse: bool = False
    """True if the complete message is sent as JSON, although the request asked for a stream."""

    stall_before_headers_s: float = 0
    """The seconds to wait before the first byte."""
    stall_after_events: int | None = None
    """The number of events before a pause. The other events follow after the pause."""
    stall_s: float | None = None
    """The pause after `stall_after_events` in seconds. None lasts until one side ends the connection."""
    ping_interval_s: float | None = None
    """The seconds between `ping` events during the pause after `stall_after_events`. None means no pings."""
    drip_s: float | None = None
    """The seconds between two bytes of the body, which is then sent byte by byte. None is no such delay."""

    cut_after_events: int | None = None
    """The connection ends after this many events. Without `framing`, the body is chunked, and its end is missing."""
    cut_after_bytes: int | None = None
    """The number of bytes of the body after which the connection ends. Headers and chunk sizes are not counted."""

    error_event: ErrorEvent | None = None
    malformed_json_at_event: int | None = None
    """The number of the event whose JSON is cut off in the middle."""
    interleaved: bool = False
    """The deltas of the blocks alternate, and all `content_block_stop` come at the end, as with llama.cpp."""
    omit_message_stop: bool = False
    omit_message_delta: bool = False
    omit_tool_input: bool = False
    """True if the `content_block_start` of a tool call has no field `input`. llama.cpp does this."""
    line_ending: LineEnding = "\n"

    def __post_init__(self) -> None:
        _refuse_bad_numbers(self)
        if self.at_accept and not (self.reset_before_headers or self.close_before_headers):
            raise ScenarioError("at_accept: needs reset_before_headers or close_before_headers")
        for name in ("stall_s", "ping_interval_s"):
            if getattr(self, name) is not None and self.stall_after_events is None:
                raise ScenarioError(f"{name}: needs stall_after_events")
        if self.framing == "length" and self.ping_interval_s is not None:
            raise ScenarioError("ping_interval_s: a body of known length has no room for pings")
        if self.message is not None and (self.status is None or self.body is not None):
            raise ScenarioError("message: needs a status, and no body")
        if self.replaces_answer() or self.json_instead_of_sse:
            self.refuse_parts_of_streams()

    def replaces_answer(self) -> bool:
        """Whether the fault replaces the whole answer, so that nothing of the step's turn is sent."""
        return (
            self.is_plain_answer()
            or self.garbage is not None
            or self.reset_before_headers
            or self.close_before_headers
        )

    def is_plain_answer(self) -> bool:
        """Whether the fault replaces the normal response by a response with the fault's own status and body."""
        return self.status is not None or self.body is not None or self.huge_body_bytes is not None

    def refuse_parts_of_streams(self) -> None:
        """Raises `ScenarioError` for a part that has no effect without a stream: a test with it would prove nothing."""
        default = Fault()
        for name in _NEEDS_EVENTS:
            if getattr(self, name) != getattr(default, name):
                raise ScenarioError(f"{name}: has no effect here, the answer has no events")


_NEEDS_EVENTS = (
    "stall_after_events",
    "cut_after_events",
    "error_event",
    "malformed_json_at_event",
    "interleaved",
    "omit_message_stop",
    "omit_message_delta",
    "omit_tool_input",
    "line_ending",
)


def _refuse_bad_numbers(fault: Fault) -> None:
    for name in fault.__struct_fields__:
        value = getattr(fault, name)
        if isinstance(value, (int, float)) and (math.isnan(value) or value < 0):
            raise ScenarioError(f"{name}: must not be negative")
    if fault.status is not None and not 200 <= fault.status <= 999:
        raise ScenarioError("status: must be between 200 and 999")
    if fault.malformed_json_at_event == 0:
        raise ScenarioError("malformed_json_at_event: events are counted from 1")
    if fault.ping_interval_s == 0:
        raise ScenarioError("ping_interval_s: must be above 0")


# --- The bodies of errors: Anthropic's, and OpenAI's, which its two APIs share

_BY_STATUS = {
    400: ("invalid_request_error", "Invalid request"),
    401: ("authentication_error", "invalid x-api-key"),
    402: ("billing_error", "There is an issue with your billing or payment information."),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "Not found"),
    408: ("timeout_error", "Request timed out"),
    409: ("conflict_error", "Conflict"),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your account's rate limit. Please try again later."),
    500: ("api_error", "Internal server error"),
    504: ("timeout_error", "Request timed out"),
    529: ("overloaded_error", "Overloaded"),
}
_OPENAI = {
    "invalid_request_error": ("invalid_request_error", None),
    "authentication_error": ("invalid_request_error", "invalid_api_key"),
    "billing_error": ("insufficient_quota", "insufficient_quota"),
    "permission_error": ("invalid_request_error", "missing_scope"),
    "not_found_error": ("invalid_request_error", "model_not_found"),
    "timeout_error": ("server_error", "timeout"),
    "conflict_error": ("invalid_request_error", "conflict"),
    "request_too_large": ("invalid_request_error", "request_too_large"),
    "rate_limit_error": ("requests", "rate_limit_exceeded"),
    "api_error": ("server_error", "server_error"),
    "overloaded_error": ("service_unavailable_error", "server_is_overloaded"),
}
"""OpenAI's type and code for each type of Anthropic's."""
_OPENAI_TEXTS = {
    "authentication_error": "Incorrect API key provided: mock.",
    "billing_error": "You exceeded your current quota, please check your plan and billing details.",
    "permission_error": "You have insufficient permissions for this operation.",
    "not_found_error": "The model does not exist or you do not have access to it.",
    "rate_limit_error": "Rate limit reached for requests: Limit 3, Used 3, Requested 1. Please try again in 20s.",
    "api_error": "The server had an error while processing your request. Sorry about that!",
    "overloaded_error": "Our servers are currently overloaded. Please try again later.",
}
"""Where OpenAI has other words than Anthropic."""
_TOO_LONG = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")


def anthropic_error(status: int, message: str | None, request_id: str) -> dict[str, Any]:
    """The body of an error. If `message` is None, the body contains the API's own message for the status."""
    error_type, text = _type_of(status)
    error = {"type": error_type, "message": text if message is None else message}
    return {"type": "error", "error": error, "request_id": request_id}


def openai_error(status: int, message: str | None, _request_id: str) -> dict[str, Any]:
    """As `anthropic_error`, but with the request id in a header only. "Prompt is too long" is put in OpenAI's words."""
    error_type, text = _type_of(status)
    kind, code = _OPENAI[error_type]
    text = _OPENAI_TEXTS.get(error_type, text) if message is None else message
    if too_long := _TOO_LONG.match(text):
        code = "context_length_exceeded"
        text = (
            f"This model's maximum context length is {too_long[2]} tokens. However, your messages resulted in "
            f"{too_long[1]} tokens. Please reduce the length of the messages."
        )
    return openai_body(text, kind=kind, code=code)


def openai_body(
    message: str, *, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def openai_names(error_type: str) -> tuple[str, str | None]:
    """OpenAI's type and code for a type of Anthropic's. A type of OpenAI's own stands for both."""
    return _OPENAI.get(error_type, (error_type, error_type))


def _type_of(status: int) -> tuple[str, str]:
    return _BY_STATUS.get(status) or _BY_STATUS[400 if status < 500 else 500]


# --- Answers, steps and models


class Text(Struct, frozen=True, tag="text", forbid_unknown_fields=True):
    text: str


class Thinking(Struct, frozen=True, tag="thinking", forbid_unknown_fields=True):
    thinking: str
    signature: str = "bW9jaw=="
    """Sent in one `signature_delta` at the end of the block. Local servers send an empty one."""


class ToolUse(Struct, frozen=True, tag="tool_use", forbid_unknown_fields=True):
    name: str
    input: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    """None is an id made from the numbers of the answer and of the block."""
    input_json: str | None = None
    """A text that is streamed unchanged in place of `input`. It is meant for arguments that are not valid JSON."""


Block = Text | Thinking | ToolUse | Mapping[str, Any]
"""A content block. A mapping stands for a block of any other type. It is sent unchanged in `content_block_start`."""


class Turn(Struct, frozen=True):
    """One assistant message that the server sends."""

    content: str | Sequence[Block] = ()
    """The content of the message. A string stands for one text block, as in the API. The content may be empty."""
    stop_reason: str | None = None
    """Sent unchanged, even if empty. None is `tool_use` if there is a tool call, otherwise `end_turn`."""
    stop_sequence: str | None = None
    stop_details: Mapping[str, Any] | None = None
    """The details that the API sends with `stop_reason: "refusal"`. If it is None, no details are sent."""
    usage: Mapping[str, Any] | None = None
    """Sent unchanged. None is 10 input tokens, and one output token for every four characters."""
    model: str | None = None
    """The model in the answer. If it is None, the answer names the model of the request."""
    id: str | None = None
    """The id of the message. If it is None, the id is made from the number of the answer."""
    chunk_chars: int = 16
    """The characters in each delta of text, thinking or tool input. 0 is one delta for all."""
    pings_before_start: int = 0
    """The number of `ping` events before `message_start`."""
    ping_every: int = 0
    """After each group of this many events, a `ping` is sent. 0 means that no pings are sent."""

    def __post_init__(self) -> None:
        for name in ("chunk_chars", "pings_before_start", "ping_every"):
            if getattr(self, name) < 0:
                raise ScenarioError(f"{name}: must not be negative")

    def blocks(self) -> Sequence[Block]:
        """The content blocks of the message. If the content is a string, it becomes one text block."""
        if isinstance(self.content, str):
            return (Text(self.content),)
        return self.content


STAND_IN = Turn(content="Hello from the mock API.")
"""The answer for a step with a fault and without a turn, if the fault needs an answer to break."""


class Step(Struct, frozen=True):
    """The answer to one request. It is a turn, or a fault, or a turn that a fault breaks."""

    turn: Turn | None = None
    """The answer that is sent. If it is None and the fault needs an answer to break, the answer is a short greeting."""
    fault: Fault | None = None
    repeat: int | Literal["forever"] = 1
    """The number of consecutive requests that this step answers."""

    def __post_init__(self) -> None:
        if self.turn is None and self.fault is None:
            raise ScenarioError("a step needs content or a fault")
        if self.repeat != FOREVER and self.repeat < 1:
            raise ScenarioError('repeat: must be at least 1, or "forever"')
        if self.turn is not None and self.fault is not None and self.fault.replaces_answer():
            raise ScenarioError("a fault that answers by itself leaves nothing of the step's content")


Playable = Step | Turn | Fault
"""A step. A turn or a fault can be written in place of a step that contains only the turn or the fault."""


def as_step(playable: Playable) -> Step:
    if isinstance(playable, Turn):
        return Step(turn=playable)
    if isinstance(playable, Fault):
        return Step(fault=playable)
    return playable


class Model(Struct, frozen=True):
    """A model that `GET /v1/models/{id}` describes."""

    id: str
    max_input_tokens: int | None = None
    """The context window of the model in tokens. None is sent as null."""
    max_tokens: int | None = None
    """The longest answer of the model in tokens. None is sent as null."""
    fault: Fault | None = None
    """A fault that breaks every answer to a lookup of this model. None if there is no such fault."""

    def __post_init__(self) -> None:
        if not self.id:
            raise ScenarioError("id: must not be empty")
        numbers = {"max_input_tokens": self.max_input_tokens, "max_tokens": self.max_tokens}
        for name, tokens in numbers.items():
            if tokens is not None and tokens < 1:
                raise ScenarioError(f"{name}: must be at least 1")
        if self.fault is not None:
            _refuse_fault_without_effect(self.fault, describes=any(numbers.values()))


def _refuse_fault_without_effect(fault: Fault, *, describes: bool) -> None:
    fault.refuse_parts_of_streams()
    for name in ("at_accept", "json_instead_of_sse"):
        if getattr(fault, name):
            raise ScenarioError(f"{name}: has no effect on what is said of a model")
    if describes and fault.replaces_answer():
        raise ScenarioError("a fault that answers by itself leaves nothing of the model's numbers")


Script = Callable[["RecordedRequest", int], Playable]
"""A function that computes a step. Its arguments are the request and the number of steps used so far."""


class Scenario(Struct, frozen=True):
    """The steps that answer the requests to `/v1/messages`, in order. Also says how strictly requests are checked."""

    steps: Sequence[Playable] = ()
    """Each accepted request uses up one. When none is left, requests are refused with status 400."""
    description: str = ""
    models: Sequence[Model] = ()
    """The models that clients can look up. A lookup of any other model gets status 404. A lookup uses up no step."""
    validate: bool = True
    """True if the server refuses requests that the API would refuse. A refused request uses up no step."""
    require_key: bool = False
    """True if requests without `x-api-key` or `Authorization` are refused, with status 401."""
    parse_requests: bool = True
    """False is meant for benchmarks: bodies are only read, nothing is validated, and every answer is a stream."""

    def __post_init__(self) -> None:
        for index, playable in enumerate(self.steps[:-1]):
            if as_step(playable).repeat == FOREVER:
                raise ScenarioError(
                    f'steps[{index}]: repeat = "forever" leaves nothing for the steps after it'
                )
        ids = [model.id for model in self.models]
        for index, model_id in enumerate(ids):
            if model_id in ids[:index]:
                raise ScenarioError(f"models[{index}]: id {model_id!r} has been described before")


# --- A scenario in a file


class FaultTable(Fault, frozen=True, forbid_unknown_fields=True):
    """A fault in a scenario file. No value in it has the type bytes, because a scenario file cannot contain bytes."""

    body: str | dict[str, Any] | list[Any] | None = None
    garbage: str | None = None


class StepTable(Turn, frozen=True, forbid_unknown_fields=True):
    """A step in a scenario file. One table contains the keys of the step and the keys of its turn."""

    content: str | tuple[dict[str, Any], ...] = ()
    fault: FaultTable | None = None
    repeat: int | Literal["forever"] = 1


class ModelTable(Model, frozen=True, forbid_unknown_fields=True):
    fault: FaultTable | None = None


class ScenarioTable(Scenario, frozen=True, forbid_unknown_fields=True):
    steps: tuple[StepTable, ...] = ()
    models: tuple[ModelTable, ...] = ()


_KEYS_OF_A_STEP = {"fault", "repeat"}


def load_scenario(path: Path | str) -> Scenario:
    """A `.json` file contains JSON, any other one TOML. Raises `ScenarioError`."""
    file = Path(path)
    try:
        text = _text_of(file)
    except OSError as error:
        raise ScenarioError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise ScenarioError(f"{file}: {error}") from error
    return parse_scenario(text, name=str(file), is_json=file.suffix == ".json")


def _text_of(file: Path) -> str:
    """Raises OSError also for a pipe or a device: reading it may never end."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, encoding="utf-8") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return opened.read()


def example_names() -> list[str]:
    """The names of the scenarios that come with ralph."""
    return sorted(entry.name.removesuffix(".toml") for entry in _examples().iterdir())


def load_example(name: str) -> Scenario:
    """Reads a scenario that comes with ralph. `name` is one of `example_names`. Raises `ScenarioError`."""
    if name not in example_names():
        raise ScenarioError(f"no example scenario {name!r}; there are: {', '.join(example_names())}")
    return parse_scenario((_examples() / f"{name}.toml").read_text(encoding="utf-8"), name=name)


def _examples() -> Traversable:
    return resources.files("ralph.mock_api") / "scenarios"


def parse_scenario(text: str, *, name: str = "scenario", is_json: bool = False) -> Scenario:
    """Parses the text of a scenario. Raises `ScenarioError`. The message of the error begins with `name`."""
    try:
        raw = json.loads(text) if is_json else tomllib.loads(text)
        table: ScenarioTable = _decoded(raw, ScenarioTable)
        steps = zip(raw.get("steps", ()), table.steps, strict=True)
        parts = {
            "steps": tuple(_step(*step, f"$.steps[{index}]") for index, step in enumerate(steps)),
            "models": tuple(
                Model(**asdict(model) | {"fault": _fault(model.fault)}) for model in table.models
            ),
        }
        return Scenario(**asdict(table) | parts)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{name}: {error}") from None


def _step(raw: dict[str, Any], table: StepTable, path: str) -> Step:
    content = table.content
    blocks = content if isinstance(content, str) else _blocks(content, f"{path}.content")
    turn = Turn(**{name: getattr(table, name) for name in Turn.__struct_fields__} | {"content": blocks or ()})
    try:
        return Step(turn if raw.keys() - _KEYS_OF_A_STEP else None, _fault(table.fault), table.repeat)
    except ScenarioError as error:
        raise ScenarioError(f"{error} - at `{path}`") from None


def _blocks(tables: tuple[dict[str, Any], ...], path: str) -> tuple[Block, ...]:
    return tuple(
        _decoded(table["raw"], dict[str, Any], f"{path}[{index}].raw")
        if list(table) == ["raw"]
        else _decoded(table, Text | Thinking | ToolUse, f"{path}[{index}]")
        for index, table in enumerate(tables)
    )


def _fault(table: FaultTable | None) -> Fault | None:
    return None if table is None else Fault(**asdict(table))


def _decoded(value: object, kind: Any, path: str = "$") -> Any:
    """Raises ScenarioError, one line that names the path of the wrong value."""
    try:
        return convert(value, kind)
    except ValidationError as error:
        sentence, _, inside = str(error).partition(" - at `$")
        line = "".join(character if character.isprintable() else " " for character in sentence)
        raise ScenarioError(f"{line} - at `{path}{inside.removesuffix('`')}`") from None
