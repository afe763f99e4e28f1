"""Decodes the lines that a driver sends, of any bytes, and makes the responses to its requests.

A line may be the response to a request of ralph's (`questions.py`). An invalid one becomes a `Malformed` that says
what is wrong and which values are allowed.

`initialize` has the session's settings, hooks among them, and may ask for safeguards that ralph lacks. No work is done while
a requested safeguard is missing: a hook that is never called may have been the only protection.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins
from msgspec.structs import replace

from ralph.permissions.hook_answers import EVENTS, OF_TOOLS
from ralph.permissions.rule import parse_matcher
from ralph.run.options import RequestedReport, RunOptions
from ralph.values.controls import LONGEST_TITLE, PermissionMode
from ralph.values.strict_json import strict_json, unambiguous_json, with_whole_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.permissions.rule import Matcher
    from ralph.values.answer import Block

LONGEST_REQUEST_ID = 200
LONGEST_MODEL_NAME = 200
IMAGE_TYPES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
}
"""The image types that the API accepts, each with a pattern for its first bytes."""
# Lines of these types are ignored. Drivers that were written for other programs send them, and expect no response.
_IGNORED_TYPES = ("control_cancel_request", "keep_alive")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST_SHOWN = 60
# A decoder's message may repeat a number as long as the line.
_LONGEST_REASON = 200

_Text = Annotated[str, Meta(pattern=r"\S")]


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    text: _Text


class ImageSource(Struct, frozen=True, tag_field="type", tag="base64"):
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    data: str

    def __post_init__(self) -> None:
        try:
            image = base64.b64decode(self.data, validate=True)
        except ValueError:
            image = b""
        if not image:
            # The error message does not contain the data, because nobody could read it.
            raise ValueError("data must be the image in base64, without line breaks")
        if not IMAGE_TYPES[self.media_type].match(image):
            # The API would refuse this image, and each later request that contains it.
            raise ValueError(f"data is not {self.media_type}")


class ImageBlock(Struct, frozen=True, tag_field="type", tag="image"):
    source: ImageSource


class DriverMessage(Struct, frozen=True):
    """The `message` of a user's line. Other keys are dropped, so that a driver cannot add cache markers to ralph's."""

    role: Literal["user"]
    content: _Text | Annotated[tuple[TextBlock | ImageBlock, ...], Meta(min_length=1)]


class UserLine(Struct, frozen=True, tag_field="type", tag="user"):
    message: DriverMessage
    uuid: Any = None
    client_composed: Any = False


class Initialize(Struct, frozen=True, tag_field="subtype", tag="initialize"):
    """Its keys are read from `ControlRequest.fields`."""


class Interrupt(Struct, frozen=True, tag_field="subtype", tag="interrupt"):
    pass


class SetModel(Struct, frozen=True, tag_field="subtype", tag="set_model"):
    model: str | None = None
    """None and "default" are the first model. A missing key is None: JavaScript leaves out a key that is undefined."""

    def __post_init__(self) -> None:
        name = self.model
        if name is None or (len(name) <= LONGEST_MODEL_NAME and name.isprintable() and name.strip()):
            return
        raise ValueError(f"model must be {_MUST_BE['request.model']}, not {in_short(name)}")


class SetPermissionMode(Struct, frozen=True, tag_field="subtype", tag="set_permission_mode"):
    mode: str


class SetAutoRetry(Struct, frozen=True, tag_field="subtype", tag="set_auto_retry"):
    enabled: bool


class AbortRetry(Struct, frozen=True, tag_field="subtype", tag="abort_retry"):
    pass


class GetStatus(Struct, frozen=True, tag_field="subtype", tag="get_status"):
    pass


class SetMaxThinkingTokens(Struct, frozen=True, tag_field="subtype", tag="set_max_thinking_tokens"):
    max_thinking_tokens: int | None = None


class GetContextUsage(Struct, frozen=True, tag_field="subtype", tag="get_context_usage"):
    pass


class McpMessage(Struct, frozen=True, tag_field="subtype", tag="mcp_message"):
    """A message that an MCP server of the driver sends without a request from ralph."""

    message: dict[str, Any] = {}


class McpStatus(Struct, frozen=True, tag_field="subtype", tag="mcp_status"):
    pass


Request = (
    Initialize
    | Interrupt
    | SetModel
    | SetPermissionMode
    | SetMaxThinkingTokens
    | GetContextUsage
    | McpStatus
    | McpMessage
    | SetAutoRetry
    | AbortRetry
    | GetStatus
)


class RequestLine(Struct, frozen=True, tag_field="type", tag="control_request"):
    request_id: Annotated[str, Meta(min_length=1, max_length=LONGEST_REQUEST_ID)]
    request: Request


class Response(Struct, frozen=True):
    """The driver's response to a request that ralph sent."""

    request_id: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The content of the response. Empty if the driver answered with an error."""
    error: str | None = None
    """The driver's error text, or the reason why the response cannot be used. None if there is no error."""


class UserMessage(Struct, frozen=True):
    content: str | tuple[Block, ...]
    """A text, or blocks with only the keys that the API knows. No text is empty."""
    uuid: str | None = None
    """The driver's own id of the message, or None."""
    is_verbatim: bool = False
    """True if a program composed the text. Then nothing in the text calls a command."""


class ControlRequest(Struct, frozen=True):
    request_id: str
    request: Request
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The keys of the request as the driver sent them, including `subtype`."""


class Ignored(Struct, frozen=True):
    """An empty line, or a line that needs no response."""


class Malformed(Struct, frozen=True):
    reason: str
    request_id: str | None = None
    """The id of the request. None if the line has no id, or an id that cannot be sent back."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The keys of an invalid control request, which may have asked for a safeguard."""


ControlLine = UserMessage | ControlRequest | Response | Ignored | Malformed

_KNOWN_TYPES = ("user", "control_request", "control_response", *_IGNORED_TYPES)
_KNOWN_REQUESTS = tuple(kind.__struct_config__.tag for kind in get_args(Request))
_MUST_BE = {
    "message": 'an object with "role" and "content"',
    "message.role": '"user"',
    "message.content": "a text or a list of blocks",
    "message.content[]": "a block of type text or image",
    "message.content[].type": '"text" or "image"',
    "message.content[].text": "a text",
    "message.content[].source": "an object with type, media_type and data",
    "message.content[].source.type": '"base64"',
    "message.content[].source.media_type": f"one of {', '.join(IMAGE_TYPES)}",
    "message.content[].source.data": "the image in base64, without line breaks",
    "request_id": f"a text of 1 to {LONGEST_REQUEST_ID} characters",
    "request": 'an object with a "subtype"',
    "request.model": f'a model\'s name of at most {LONGEST_MODEL_NAME} characters, "default" or null',
    "request.mode": "the name of a permission mode",
    "request.enabled": "true or false",
}
"""The allowed values for each path, in words that follow "must be". `[]` in a path stands for an index."""
_LACKING = {
    "rewind_files": "File rewinding is not enabled: ralph keeps no checkpoints of files; commit with git, and go back with it",
    "mcp_reconnect": "ralph cannot connect to a server again during a run: start it again with --mcp-config",
    "mcp_toggle": "the tools of a run are fixed at its start: name the servers by --mcp-config",
    "mcp_set_servers": "the tools of a run are fixed at its start: name the servers by --mcp-config",
    "stop_task": "ralph has no background tasks; interrupt stops what runs",
}
"""Requests that drivers may send and ralph does not support: what is missing, and what to do instead."""
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_EMPTY = re.compile(r"Expected `str` matching regex|Expected `array` of length >= 1")


def parse_control_line(line: bytes) -> ControlLine:
    if not line.strip():
        return Ignored()
    try:
        text = line.removeprefix(_BYTE_ORDER_MARK).decode()
        value = strict_json(text)
    except (ValueError, RecursionError) as error:
        return Malformed(f"the line is not JSON: {str(error)[:_LONGEST_REASON]}")
    if not isinstance(value, dict):
        return Malformed(f"the line must be a JSON object, not {in_short(value)}")
    if value.get("type") in _IGNORED_TYPES:
        return Ignored()
    if value.get("type") == "control_response":
        return _response(value.get("response"), text)
    request = value.get("request") if value.get("type") == "control_request" else None
    fields = request if isinstance(request, dict) else {}
    try:
        decoded = _decoded(value)
    except ValidationError as error:
        return Malformed(_reason(error, value), _request_id(value), fields)
    except UnicodeEncodeError:  # the decoder compares names as UTF-8
        return Malformed("a name in the line is half a surrogate pair", _request_id(value), fields)
    if isinstance(decoded, RequestLine):
        return ControlRequest(decoded.request_id, decoded.request, fields)
    uuid = (
        decoded.uuid
        if isinstance(decoded.uuid, str) and 0 < len(decoded.uuid) <= LONGEST_REQUEST_ID
        else None
    )
    return UserMessage(to_builtins(decoded.message.content), uuid, is_verbatim=bool(decoded.client_composed))


def _decoded(value: dict[str, Any]) -> UserLine | RequestLine:
    try:
        return convert(value, UserLine | RequestLine)
    except UnicodeEncodeError:
        return convert(with_whole_keys(value), UserLine | RequestLine)


def _response(value: object, line: str) -> Response | Ignored:
    fields = value if isinstance(value, dict) else {}
    request_id, answer = fields.get("request_id"), fields.get("response")
    if not isinstance(request_id, str):
        return Ignored()
    try:
        unambiguous_json(line)
    except ValueError as fault:
        return Response(request_id, error=f"the response is not valid: {fault}")
    if fields.get("subtype") == "success" and isinstance(answer, dict | None):
        return Response(request_id, answer or {})
    error = fields.get("error")
    return Response(
        request_id, error=error if isinstance(error, str) else "the response does not have a valid form"
    )


def request_line(request_id: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The line that sends a request from ralph to the driver."""
    return {"type": "control_request", "request_id": request_id, "request": dict(request)}


def cancel_line(request_id: str) -> dict[str, Any]:
    """The line that tells the driver that ralph no longer waits for the response to a request."""
    return {"type": "control_cancel_request", "request_id": request_id}


def success(request_id: str, response: Mapping[str, Any]) -> dict[str, Any]:
    answer = {"subtype": "success", "request_id": request_id, "response": dict(response)}
    return {"type": "control_response", "response": answer}


def failure(request_id: str | None, error: str) -> dict[str, Any]:
    """The error response to a control request. `request_id` is None if the line had no usable id."""
    answer = {"subtype": "error", "request_id": request_id, "error": error}
    return {"type": "control_response", "response": answer}


def in_short(value: object) -> str:
    """A JSON value as short text. Long values, objects and lists are described and not cut, because a redactor does not
    recognise half a secret.
    """
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    shown = json.dumps(value)
    if len(shown) <= _LONGEST_SHOWN:
        return shown
    return f"a text of {len(value):,} characters" if isinstance(value, str) else "a very long number"


def _request_id(line: Mapping[str, Any]) -> str | None:
    value = line.get("request_id")
    return value if isinstance(value, str) and 0 < len(value) <= LONGEST_REQUEST_ID else None


def _reason(error: ValidationError, line: Mapping[str, Any]) -> str:
    text, _, path = str(error).rpartition(" - at `$") if " - at `$" in str(error) else (str(error), "", "")
    path = path.strip(".`")
    if error.__cause__ is not None:  # our own check: its message begins with the field's name
        name, _, rest = text.partition(" ")
        return f'"{path}.{name}" {rest}'
    missing = _MISSING.match(text)
    if missing is not None:
        path = f"{path}.{missing[1]}".lstrip(".")
    return _fault(path, text, line)


def _fault(path: str, text: str, line: Mapping[str, Any]) -> str:
    given = in_short(_value_at(line, path))
    if path == "type":
        return f"unknown type {given}; known are {', '.join(_KNOWN_TYPES)}"
    if path == "request.subtype":
        lacking = _LACKING.get(str(_value_at(line, path)))
        if lacking is not None:
            return lacking
        return f"unknown control request {given}; known are {', '.join(map(str, _KNOWN_REQUESTS))}"
    if _EMPTY.match(text):
        return f'"{path}" is empty'
    allowed = _MUST_BE.get(re.sub(r"\d+", "", path), "something else")
    return f'"{path}" must be {allowed}' + ("" if path.endswith(".data") else f", not {given}")


def _value_at(line: Any, path: str) -> Any:
    """None if the line has no such path."""
    for key in re.findall(r"\w+", path):
        line = line[int(key)] if isinstance(line, list) else line.get(key)
    return line


# --- The settings in `initialize`

OBSERVING = frozenset(
    """
    SessionStart SessionEnd Setup Notification SubagentStart SubagentStop PreCompact PostCompact StopFailure
    InstructionsLoaded ConfigChange CwdChanged FileChanged WorktreeCreate WorktreeRemove TaskCreated TaskCompleted
    TeammateIdle PermissionDenied PostToolBatch Elicitation ElicitationResult MessageDisplay UserPromptExpansion
    """.split()
)
"""Events of Claude Code that do not occur in ralph. Ralph accepts hooks for them and never calls these hooks."""

DEFAULT_S = 600.0
"""The time limit in seconds of a hook that sets none, as in Claude Code's reference."""

_Seconds = Annotated[float, Meta(gt=0, le=86_400)]
# Keys that ask for what ralph does not have. An empty value asks for nothing.
NOT_OFFERED = ("mcpServers", "plugins", "toolAliases", "planModeInstructions")

# Keys of `initialize` that request a safeguard. Names are compared without case and underscores. Agents are no
# safeguard, but each of them may be limited to tools, and a task that counts on them goes wrong.
_GUARDS = frozenset(
    """
    canusetool permissionprompttool permissionprompttoolname permissionprompts permissions permissionmode allowedtools
    disallowedtools tools sandbox settings managedsettings agents
    """.split()
)


_WITHOUT = ". Nothing runs without a guard that was asked for"


class HookMatcher(Struct, frozen=True):
    """The hooks that are called for one event. They can be limited to calls of certain tools."""

    callback_ids: Annotated[tuple[str, ...], Meta(min_length=1)] = field(name="hookCallbackIds")
    matcher: str | None = None
    """The names of tools, or a regular expression. None and "" mean all tools."""
    timeout: _Seconds | None = None
    on_failure: Literal["continue", "block"] | None = field(default=None, name="onFailure")
    """Accepted without effect, because a failed hook always refuses the call."""


class HookTable(Struct, frozen=True):
    """The hooks of a driver, by event."""

    by_event: Mapping[str, tuple[HookMatcher, ...]] = field(default_factory=dict)

    def matching(self, event: str, covers: Callable[[Matcher], bool]) -> dict[str, float]:
        """The ids of the hooks to call for an event, each with its time limit in seconds. `covers` judges a matcher."""
        found: dict[str, float] = {}
        for each in self.by_event.get(event, ()):
            if covers(parse_matcher(each.matcher if event in OF_TOOLS else None)):
                for callback_id in each.callback_ids:
                    found.setdefault(callback_id, each.timeout or DEFAULT_S)
        return found

    @property
    def never_called(self) -> tuple[str, ...]:
        """The events whose hooks ralph never calls, because these events do not occur in ralph."""
        return tuple(name for name in self.by_event if name in OBSERVING)


def hook_table(value: object) -> HookTable:
    """Raises ValueError for an unknown event, and for a matcher that can match no call. None means no hooks."""
    if value is None:
        return HookTable()
    try:
        by_event = convert(value, dict[str, tuple[HookMatcher, ...] | None])
    except ValidationError as error:
        raise ValueError(f"initialize: hooks: {error}") from error
    wanted = {name: matchers for name, matchers in by_event.items() if matchers}
    unknown = [name for name in wanted if name not in EVENTS and name not in OBSERVING]
    if unknown:
        raise ValueError(f"initialize: ralph has no hook {', '.join(unknown)}; it calls {', '.join(EVENTS)}")
    for name, matchers in wanted.items():
        for each in matchers if name in OF_TOOLS else ():
            try:
                parse_matcher(each.matcher)
            except ValueError as error:
                raise ValueError(
                    f"initialize: the matcher {each.matcher!r} of a hook cannot be kept: {error}"
                ) from error
    return HookTable(wanted)


class _InitializeRequest(Struct, frozen=True, rename="camel"):
    system_prompt: str | tuple[str, ...] | None = None
    append_system_prompt: str | None = None
    json_schema: dict[str, Any] | None = None
    title: str | None = None
    sdk_mcp_servers: tuple[str, ...] | None = None


class DriverSetup(Struct, frozen=True):
    system_prompt: str | None = None
    """The text that replaces ralph's system prompt. None keeps it, "" removes it."""
    append_system_prompt: str | None = None
    json_schema: dict[str, Any] | None = None
    """The JSON Schema of the final report that the driver requires, or None."""
    hooks: HookTable = field(default_factory=HookTable)
    title: str | None = None
    """The title of the session in one line, or None. A title on the command line takes precedence."""
    servers: tuple[str, ...] = ()
    """The names of the MCP servers in the driver's own process."""

    @property
    def shapes_requests(self) -> bool:
        """Whether the setup changes requests to the model, which is possible only before the session is open."""
        return bool(self.servers) or (self.system_prompt, self.append_system_prompt, self.json_schema) != (
            *(None, None, None),
        )

    def applied_to(self, options: RunOptions) -> RunOptions:
        """The options of the run with the driver's settings, which replace those of the command line, except the
        title.
        """
        report = None if self.json_schema is None else RequestedReport(self.json_schema)
        return replace(
            options,
            system_prompt=options.system_prompt if self.system_prompt is None else self.system_prompt,
            append_system_prompt=self.append_system_prompt or options.append_system_prompt,
            report=report or options.report,
            title=options.title or self.title,
        )


def driver_setup(fields: Mapping[str, Any]) -> DriverSetup:
    """Decodes the fields of `initialize`. Raises ValueError for what ralph does not support. For no system prompt, the
    TypeScript SDK sends `[""]` as `systemPrompt`, Python's uses `--system-prompt ""`.
    """
    refused = [name for name in NOT_OFFERED if fields.get(name)]
    if refused:
        raise ValueError(f"initialize: ralph does not offer {', '.join(refused)}; leave that out")
    try:
        asked = convert(dict(fields), _InitializeRequest)
    except ValidationError as error:
        raise ValueError(f"initialize: {error}") from error
    system = asked.system_prompt
    text = "\n\n".join(part for part in system if part) if isinstance(system, tuple) else system
    return DriverSetup(
        text,
        asked.append_system_prompt or None,
        None if asked.json_schema is None else _checked_schema(asked.json_schema),
        hook_table(fields.get("hooks")),
        " ".join((asked.title or "").split())[:LONGEST_TITLE] or None,
        asked.sdk_mcp_servers or (),
    )


def _checked_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError if reports cannot be checked against it."""
    from ralph.run.report_schema import read_schema  # noqa: PLC0415 - a schema library is slow to load

    try:
        return read_schema(json.dumps(schema), ".")
    except ValueError as error:
        raise ValueError(f"initialize: jsonSchema: {error}") from error


class MissingGuard:
    """Remembers which safeguard ralph lacks although a driver has asked for it."""

    def __init__(self) -> None:
        self._for_good: str | None = None
        self._until_a_mode: str | None = None

    @property
    def reason(self) -> str | None:
        """The reason why ralph must not work on any message, or None if no safeguard is missing."""
        return self._for_good or self._until_a_mode

    def refuse(self, fields: Mapping[str, object]) -> None:
        """Raises ValueError if an `initialize`, now or before, asks for safeguards that ralph lacks. They stay
        missing.
        """
        asked = [name for name, value in fields.items() if _asks_for_something(value)]
        guards = [name for name in asked if name.lower().replace("_", "") in _GUARDS]
        if guards and self._for_good is None:
            names = ", ".join(sorted(map(in_short, guards)))
            self._for_good = (
                f"initialize asked for {names}, which ralph cannot honour: nothing runs without a guard that was asked "
                "for. Start ralph again without it, and limit tools by its options"
            )
        for name, value in fields.items():
            if name.lower() == "hooks" and self._for_good is None:
                try:
                    if name != "hooks" and _asks_for_something(value):
                        self._for_good = f"initialize: {in_short(name)} must be written hooks{_WITHOUT}"
                    hook_table(value)
                except ValueError as error:
                    self._for_good = self._for_good or f"{error}{_WITHOUT}"
        if self._for_good is not None:
            raise ValueError(self._for_good)

    def fail(self, fields: Mapping[str, object], reason: str) -> None:
        """Notes a refused `initialize`: its hooks are not registered, and what it asked for is missing."""
        try:
            self.refuse(fields)
        except ValueError:
            return
        if any(fields.get(name) for name in NOT_OFFERED):
            # TypeScript's SDK sends the first message without waiting for the answer, and keeps the error to itself.
            self._for_good = f"{reason}. Nothing runs without what was asked for"
        elif any(name.lower() == "hooks" and _asks_for_something(value) for name, value in fields.items()):
            self._for_good = (
                f"the hooks of a refused initialize are not registered, so that nothing runs: {reason}"
            )

    def refuse_mode(self, reason: str, mode: PermissionMode) -> None:
        """Notes a permission mode that ralph refused. `mode` stays in force. If it is `plan`, nothing is missing: none
        is stricter.
        """
        if mode is not PermissionMode.PLAN:
            self._until_a_mode = (
                f"set_permission_mode was refused: {reason}. Nothing runs without a mode that was asked for: set one "
                "that ralph has"
            )

    def set_mode(self) -> None:
        self._until_a_mode = None


def _asks_for_something(value: object) -> bool:
    """Whether a value asks for anything: `{"PreToolUse": []}` registers no hook."""
    return any(value.values()) if isinstance(value, dict) else bool(value)
