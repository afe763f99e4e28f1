"""The MCP tools of a run, from all MCP servers: their names and definitions for the model, and why the API would refuse
one. The list of tools is fixed when the servers are connected. If a server changes its tools later, this has no effect,
because requests repeat the list of tools byte for byte.

The statements that a server makes about itself are not trusted. The texts of a server are shortened. If a server says
that a tool is read-only, ralph ignores this.

The API wants a valid schema of the draft 2020-12, and restricts the names of the properties at its top (both with status
400): a single bad tool would end each run at its first request.

The result of a call becomes texts and images. It comes from a server, and nothing about its form is certain. If the Messages
API does not accept some content, such as sound, a text with its type and size replaces it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from ralph.values.answer import ToolDefinition
from ralph.values.nesting import is_deeper
from ralph.values.redaction import redacted
from ralph.values.report import shown
from ralph.values.strict_json import DEEPEST
from ralph.values.tool_choice import ToolLists, covers, is_chosen, mcp_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from ralph.mcp.configuration import McpServer
    from ralph.mcp.helper_process import ServerProcess

LARGEST_BYTES = 1_000_000
"""The size of the largest schema. It would fill the window of most models, and a request may have 32 MB."""
_PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def why_refused(schema: Mapping[str, Any]) -> str | None:
    """The reason for which the API refuses the schema, or None if it takes it."""
    if is_deeper(schema, DEEPEST):
        return f"its schema is nested deeper than {DEEPEST} levels"
    size = len(json.dumps(schema))
    if size > LARGEST_BYTES:
        return f"its schema has {size:,} bytes, over {LARGEST_BYTES:,}"
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - 0.1 s, and few runs have servers

    try:
        errors = Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema)
        error = next(errors, None)
    except RecursionError:
        return "its schema is nested too deep"
    if error is not None:
        where = error.json_path.removeprefix("$").lstrip(".")
        return f"its schema is invalid in the draft 2020-12 ({where}: {shown(error.instance)})"
    names = (name for name in schema.get("properties", ()) if not _PROPERTY_NAME.fullmatch(name))
    wrong = next(names, None)
    if wrong is None:
        return None
    return f"the API takes no property named {shown(wrong)} (only 1 to 64 of a-z, A-Z, 0-9, _, . and -)"


# Claude Code cuts descriptions at the same length.
_LONGEST_DESCRIPTION = 2_048
# The API refuses these words at the top of a tool's schema; the server checks its arguments itself.
_UNIONS = ("oneOf", "anyOf", "allOf")
_REFUSED_AT_TOP = (*_UNIONS, "$schema")


class McpTool(Struct, frozen=True):
    """A tool of an MCP server that is connected."""

    server: str
    tool: str
    """The name that the server itself uses for the tool."""
    definition: ToolDefinition


def tool_name(server: str, tool: str) -> str:
    """The name of the tool for the model: `mcp__SERVER__TOOL` (`mcp_name`)."""
    return mcp_name(f"mcp__{server}__{tool}".replace("*", "_"))


def tools_of(
    listed: Mapping[str, Iterable[Mapping[str, Any]]], redact: Callable[[str], str] = str
) -> tuple[McpTool, ...]:
    """The tools of all servers. `listed` maps the name of each server to the tools that it has listed. `redact`
    removes the credentials that a server was given and repeats.

    The result is sorted by name, so that requests have the same bytes in whatever order the servers answered.
    Several tools may have the same name.
    """
    found = (_tool(server, raw, redact) for server in sorted(listed) for raw in listed[server])
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.definition.name))


def _tool(server: str, raw: Mapping[str, Any], redact: Callable[[str], str]) -> McpTool | None:
    shown_name, described, schema = (
        redacted(raw.get(key), redact) for key in ("name", "description", "inputSchema")
    )
    name = raw.get("name")
    if not isinstance(name, str) or not name:
        return None
    description = described if isinstance(described, str) else ""
    if len(description) > _LONGEST_DESCRIPTION:
        description = f"{description[:_LONGEST_DESCRIPTION]}... [cut]"
    shown = schema if isinstance(schema, dict) else {}
    plain = {key: value for key, value in shown.items() if key not in _REFUSED_AT_TOP}
    if found := _in_unions(shown):
        plain["properties"] = found | _properties_of(shown)
    return McpTool(
        server, name, ToolDefinition(tool_name(server, shown_name), description, plain | {"type": "object"})
    )


def _in_unions(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The properties in the alternatives of a union at the top of a schema, so that the model knows them without the union. A
    property that several alternatives define differently is a union itself, which the API takes there.
    """
    found: dict[str, list[Any]] = {}
    for word in _UNIONS:
        alternatives = schema.get(word)
        for one in alternatives if isinstance(alternatives, list) else ():
            for name, inner in _properties_of(one).items():
                known = found.setdefault(name, [])
                known += [inner] if inner not in known else []
    return {name: known[0] if len(known) == 1 else {"anyOf": known} for name, known in found.items()}


def _properties_of(schema: Any) -> dict[str, Any]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def without_duplicates(tools: Iterable[McpTool]) -> tuple[McpTool, ...]:
    """The tools, each once. Raises ServerFailedError if two have one name: rules and the model could not tell them apart."""
    found: dict[str, McpTool] = {}
    for one in tools:
        name = one.definition.name
        first = found.setdefault(name, one)
        if (first.server, first.tool) != (one.server, one.tool):
            both = " and ".join(f"{each.tool!r} of {each.server!r}" for each in (first, one))
            raise ServerFailedError(
                f"the MCP tools {both} would both be called {name}: give the server or the tool another name, or leave it out "
                f"(--disallowed-tools {name})"
            )
    return tuple(found.values())


class McpToolset:
    def __init__(
        self,
        groups: Sequence[ServerGroup],
        *,
        asked_for: Collection[str],
        lists: ToolLists,
        redact: Callable[[str], str] = str,
    ) -> None:
        """`asked_for` holds the names of the servers that the command line of this run configures. `lists` are the
        user's lists of tools. `redact` removes credentials from what servers say about their tools.
        """
        self._groups = {name: group for group in groups for name in group.names}
        self._all = tuple(groups)
        self._asked_for = asked_for
        self._lists = lists
        self._redact = redact
        self._tools: dict[str, tuple[str, str]] = {}
        self._with_process: dict[str, McpServer] = {}
        self.definitions: tuple[ToolDefinition, ...] = ()
        """The tools that the run may use, in an order that does not change. Empty before `connect` is called."""
        self.notices: tuple[str, ...] = ()

    @property
    def server_names(self) -> tuple[str, ...]:
        return tuple(self._groups)

    def connect(self, start: Callable[[McpServer], ServerProcess]) -> None:
        """Connects to all servers, and waits until all are connected. `start` is called for each server that needs
        a process. Raises ServerFailedError and Interrupted.
        """

        def start_and_keep(server: McpServer) -> ServerProcess:
            self._with_process[server.name] = server
            return start(server)

        for group in self._all:
            group.begin(start_and_keep)
        listed: dict[str, Sequence[Mapping[str, Any]]] = {}
        for group in self._all:
            listed |= group.tools()
        every = tools_of(listed, self._redact)
        chosen = without_duplicates(
            tool
            for tool in every
            if is_chosen(tool.definition.name, self._lists, is_asked_for=tool.server in self._asked_for)
        )
        refused = {tool.definition.name: why_refused(tool.definition.input_schema) for tool in chosen}
        chosen = tuple(tool for tool in chosen if refused[tool.definition.name] is None)
        self._tools = {tool.definition.name: (tool.server, tool.tool) for tool in chosen}
        self.definitions = tuple(tool.definition for tool in chosen)
        idle = [
            pattern
            for pattern in self._lists.mcp_patterns
            if not any(covers(pattern.partition("(")[0], tool.definition.name) for tool in every)
        ]
        self.notices = (
            *(f"the MCP tool {name} is left out: {why}" for name, why in refused.items() if why is not None),
            *(f"{pattern} names no tool of the MCP servers of this run" for pattern in idle),
        )

    def tools_by_server(self) -> dict[str, list[str]]:
        """The tools that the run may use, by the name of their server. They have the names that the server itself
        uses.
        """
        found: dict[str, list[str]] = {name: [] for name in self._groups}
        for server, tool in self._tools.values():
            found[server].append(tool)
        return found

    def server_of_each(self) -> dict[str, str]:
        """The name of the server of each tool that the run may use, by the tool's name for the model."""
        return {name: server for name, (server, _) in self._tools.items()}

    def has(self, name: str) -> bool:
        return name in self._tools

    def schema_of(self, name: str) -> dict[str, Any]:
        return next(one.input_schema for one in self.definitions if one.name == name)

    def process_server_of(self, name: str) -> McpServer | None:
        """The server of a tool, or None if it has no process of this run."""
        return self._with_process.get(self._tools[name][0])

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Calls a tool and returns the result in the form of the protocol's `tools/call`. Raises CallFailedError
        and Interrupted.
        """
        server, tool = self._tools[name]
        return self._groups[server].call(server, tool, arguments)

    def close(self) -> None:
        for group in self._all:
            group.close()


# --- The port of a group of servers that are reached in the same way
# `servers.py` implements it for servers that have a process or an address, and `driven/questions.py` for those that a driver
# provides.

UNKNOWN_EFFECTS = "Its effects are unknown: look at the state of things before you repeat it."


class ServerFailedError(Exception):
    """A server did not start in time, or could not be started. The message is one line with the server's name."""


class CallFailedError(Exception):
    """A tool call failed and has no result. The message is written for the model."""


class ServerGroup(Protocol):
    @property
    def names(self) -> Sequence[str]: ...

    def begin(self, start: Callable[[McpServer], ServerProcess]) -> None:
        """Begins to connect to the servers, and does not wait for them. Calls `start` for each server that needs a
        process. Raises ServerFailedError.
        """

    def tools(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Waits until all servers are connected. Returns the tools of each server, by the server's name, in the
        form of the protocol's `tools/list`. Raises ServerFailedError and Interrupted.
        """

    def call(self, server: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Calls a tool and returns the result in the form of the protocol's `tools/call`. Raises CallFailedError.
        Also raises Interrupted, after it has told the server that nobody waits for the result any more.
        """

    def close(self) -> None:
        """Ends the servers of the group."""


# --- The result of a call

_RESOURCE = "[resource "
EMPTY = "(no output)"
EMPTY_FAILURE = "(the server says that the call failed, and nothing else)"
SAME_TEXT, SAME_IMAGE = "(the same text as above)", "[the same image as above]"
AS_ABOVE = "(as above)"
_WORTH_CHARS = 100
"""A shorter text may be sent twice: that costs less than the question what was meant."""
# The only key around a result that texts repeat: of the SDK for Python, and of the reference server for files.
_WRAPPERS = ({"result"}, {"content"})


class ReceivedImage(Struct, frozen=True):
    data: bytes
    described: str
    """A text that replaces the image if the image cannot be shown."""


Part = str | ReceivedImage


def parts_of(result: Mapping[str, Any]) -> list[Part]:
    """The texts and images of a result, in order, without blank texts and without what it says twice. The list has at least one
    item. A result may have its content, its structured content, or both; neither of them says whether the call failed.
    """
    content = result.get("content")
    blocks = content if isinstance(content, list) else []
    seen: set[str | bytes] = set()
    found = (_once(part, seen) for block in blocks for part in _parts(block))
    parts = [part for part in found if not isinstance(part, str) or part.strip()]
    structured = result.get("structuredContent")
    texts = [part for part in parts if isinstance(part, str)]
    if structured is not None and (rest := _rest_of(structured, texts, blocks)) is not None:
        parts.append(json.dumps(rest, ensure_ascii=False))
    return parts or [EMPTY_FAILURE if is_error(result) else EMPTY]


def is_error(result: Mapping[str, Any]) -> bool:
    return result.get("isError") is True


def _once(part: Part, seen: set[str | bytes]) -> Part:
    """The part, or a note if what it shows is in `seen`, to which it is added."""
    head, text = "", part if isinstance(part, str) else part.data
    if isinstance(text, str) and text.startswith(_RESOURCE):
        head, line_end, text = text.partition("\n")
        head += line_end
    if text in seen:
        return f"{head}{SAME_TEXT}" if isinstance(text, str) else SAME_IMAGE
    if len(text) >= _WORTH_CHARS:
        seen.add(text)
    return part


def _parts(block: Any) -> Iterator[Part]:
    if not isinstance(block, dict):
        return
    match block.get("type"):
        case "text":
            yield text if isinstance(text := block.get("text"), str) else ""
        case "image":
            yield _data(block.get("data"), block.get("mimeType"), "image")
        case "audio":
            yield _named(_size(block.get("data")), block.get("mimeType"), "audio")
        case "resource":
            yield from _resource(block.get("resource"))
        case "resource_link":
            words = (block.get(key) for key in ("name", "uri", "mimeType", "description"))
            yield f"[resource link: {', '.join(str(word) for word in words if word)}]"
        case other:
            yield f"[content of the type {other!r}, which cannot be shown]"


def _resource(resource: Any) -> Iterator[Part]:
    if not isinstance(resource, dict):
        return
    uri = resource.get("uri")
    if isinstance(resource.get("text"), str):
        yield f"{_RESOURCE}{uri}]\n{resource['text']}"
        return
    yield f"{_RESOURCE}{uri}]"
    yield _data(resource.get("blob"), resource.get("mimeType"), "data")


def _data(text: Any, media_type: Any, word: str) -> Part:
    """The image that a Base64 text contains. If the text is not a valid image, a description of the data."""
    if not str(media_type).lower().startswith("image/"):
        return _named(_size(text), media_type, word)
    try:
        data = base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        return f"[an image that is not valid Base64 ({media_type})]"
    return ReceivedImage(data, f"{media_type}, {len(data):,} bytes")


def _size(text: Any) -> int:
    return len(str(text or "")) * 3 // 4


def _named(size_bytes: int, media_type: Any, word: str) -> str:
    return f"[{word} that cannot be shown: {media_type or 'no type'}, {size_bytes:,} bytes]"


def _rest_of(structured: Any, texts: Sequence[str], blocks: Sequence[Any]) -> Any:
    """The structured content without what the texts or the blocks say too. None if nothing is left."""
    is_wrapped = isinstance(structured, dict) and structured.keys() in _WRAPPERS
    value = next(iter(structured.values())) if is_wrapped else structured
    if _is_said(structured, texts, blocks) or _is_said(value, texts, blocks):
        return None
    if not isinstance(structured, dict):
        return structured
    said = [
        key
        for key, one in structured.items()
        if len(json.dumps(one)) >= _WORTH_CHARS and _is_said(one, texts, blocks)
    ]
    if said and len(said) == len(structured):
        return None
    return {key: AS_ABOVE if key in said else one for key, one in structured.items()}


def _is_said(value: Any, texts: Sequence[str], blocks: Sequence[Any]) -> bool:
    """Whether a text says the same, or the texts the same as the items, or a block or all of them are the same."""
    if any(_is_same(text, value) for text in texts):
        return True
    if isinstance(value, list) and 0 < len(value) == len(texts) and all(map(_is_same, texts, value)):
        return True
    return bool(blocks) and (value == blocks or value in blocks)


def _is_same(text: str, value: Any) -> bool:
    if text == value:
        return True
    try:
        # As texts, because 1 equals true in Python.
        return json.dumps(json.loads(text), sort_keys=True) == json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        return False
