"""The MCP servers that run inside the driver's own process. ralph exchanges messages with these servers in control
requests, so they need neither the `mcp` package nor a process of their own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ralph import __version__
from ralph.driven.questions import Question
from ralph.mcp.ports import CallFailedError, ServerFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.driven.control_lines import Response
    from ralph.driven.questions import Questions
    from ralph.mcp.configuration import McpServer
    from ralph.mcp.server_process import ServerProcess

PROTOCOL_VERSION = "2025-11-25"
# A list of tools may come in pages. A server that never ends its list must not contain the run.
_MOST_PAGES = 100
_UNKNOWN = "Its effects are unknown: look at the state of things before you repeat it."


def answer_to_server(message: Mapping[str, Any]) -> dict[str, Any]:
    """The response to a message that a server sent without being asked. A notification gets an empty response. A
    request is refused, because ralph offers servers nothing.
    """
    if "id" not in message:
        return {}
    error = {"code": -32601, "message": f"ralph does not offer {message.get('method')}"}
    return {"mcp_response": {"jsonrpc": "2.0", "id": message["id"], "error": error}}


class NoAnswerError(Exception):
    """A server gave no usable answer. The message says why."""


class DriverServers:
    """The driver's MCP servers. Implements `ServerGroup`."""

    def __init__(self, names: Sequence[str], questions: Questions, *, start_s: float, call_s: float) -> None:
        """`start_s` and `call_s` are time limits in seconds, and 0 means no limit. While ralph connects to a server,
        `start_s` limits the wait for each answer. `call_s` limits a tool call.
        """
        self._names = tuple(names)
        self._questions = questions
        self._start_s = start_s or math.inf
        self._call_s = call_s or math.inf
        self._sent = 0

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def begin(self, start: Callable[[McpServer], ServerProcess]) -> None:
        """Does nothing, because the servers are already running."""

    def tools(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        found = {}
        for name in self._names:
            try:
                found[name] = self._connected(name)
            except NoAnswerError as error:
                raise ServerFailedError(
                    f"the driver's MCP server {name!r} is not connected: {error}"
                ) from None
        return found

    def _connected(self, server: str) -> list[dict[str, Any]]:
        client = {"name": "ralph", "version": __version__}
        begun = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client}
        self._asked(server, "initialize", begun, self._start_s)
        self._send(server, {"jsonrpc": "2.0", "method": "notifications/initialized"}, self._start_s)
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = self._asked(server, "tools/list", {"cursor": cursor} if cursor else {}, self._start_s)
            listed = page.get("tools")
            if not isinstance(listed, list) or not all(isinstance(tool, dict) for tool in listed):
                raise NoAnswerError("it lists no tools")
            tools += listed
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                return tools
        raise NoAnswerError(f"its list of tools has more than {_MOST_PAGES} pages")

    def call(self, server: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._asked(server, "tools/call", {"name": tool, "arguments": arguments}, self._call_s)
        except NoAnswerError as error:
            raise CallFailedError(f"The MCP server {server!r} gave no result: {error}. {_UNKNOWN}") from None

    def close(self) -> None:
        """Does nothing, because the servers end with the driver."""

    def _asked(self, server: str, method: str, params: dict[str, Any], within_s: float) -> dict[str, Any]:
        """Sends a request to a server and returns its result. Raises NoAnswerError and Interrupted."""
        self._sent += 1
        message = {"jsonrpc": "2.0", "id": self._sent, "method": method, "params": params}
        answer = self._send(server, message, within_s)
        if isinstance(error := answer.get("error"), dict):
            raise NoAnswerError(str(error.get("message") or error))
        result = answer.get("result")
        if not isinstance(result, dict):
            raise NoAnswerError(f"the answer to {method} has no result")
        return result

    def _send(self, server: str, message: dict[str, Any], within_s: float) -> dict[str, Any]:
        request = {"subtype": "mcp_message", "server_name": server, "message": message}
        waiting_for = f"the driver's MCP server {server}"
        [reply] = self._questions.ask([Question(request, waiting_for, within_s)])
        return _message_in(reply)


def _message_in(reply: Response) -> dict[str, Any]:
    if reply.error is not None:
        raise NoAnswerError(reply.error)
    message = reply.fields.get("mcp_response")
    if not isinstance(message, dict):
        raise NoAnswerError("the answer has no mcp_response")
    return message
