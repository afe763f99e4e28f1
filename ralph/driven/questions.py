"""Sends requests to the driver, those for MCP servers in its process among them, and waits for the responses on the
main thread, in any order. A response to no open request is ignored.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph import __version__
from ralph.driven.control_lines import Response, cancel_line, request_line
from ralph.mcp.toolset import UNKNOWN_EFFECTS, CallFailedError, ServerFailedError
from ralph.mcp.wire import MOST_PAGES, NO_METHOD
from ralph.values.ports import TIMED_OUT, Clock, Mailbox, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.mcp.configuration import McpServer
    from ralph.mcp.helper_process import ServerProcess


class Question(Struct, frozen=True):
    request: Mapping[str, Any]
    """The request, including its `subtype`."""
    waiting_for: str
    """The text of heartbeats during the wait."""
    within_s: float
    """The time limit for the response, in seconds."""


_GONE = "the driver has closed standard input, so that nobody can answer"


class Replies:
    """Passes responses to the requests that wait. Called while the main thread waits in `Questions.ask`."""

    def __init__(self) -> None:
        self._waiting: dict[str, Mailbox] = {}
        self.is_closed = False
        """True if the driver can no longer respond."""

    def expect(self, request_id: str, mailbox: Mailbox) -> None:
        """From now on, `mailbox` gets the response to this request."""
        self._waiting[request_id] = mailbox

    def give_up(self, request_id: str) -> bool:
        """Ends the wait for a response. Returns whether the request was still open."""
        mailbox = self._waiting.pop(request_id, None)
        if mailbox is not None:
            mailbox.close()
        return mailbox is not None

    def take(self, response: Response) -> None:
        """Passes a response to the request that it answers, if that request is still open."""
        mailbox = self._waiting.get(response.request_id)
        if mailbox is not None:
            mailbox.put(response)

    def close(self) -> None:
        """Called when the driver can no longer respond: open and later requests get an error."""
        self.is_closed = True
        for request_id, mailbox in self._waiting.items():
            mailbox.put(Response(request_id, error=_GONE))


class Questions:
    def __init__(
        self, send: Callable[[dict[str, Any]], None], replies: Replies, waiter: Waiter, clock: Clock
    ) -> None:
        """`send` writes one line to the driver."""
        self._send = send
        self._replies = replies
        self._waiter = waiter
        self._clock = clock
        self._asked = 0

    def ask(self, questions: Sequence[Question]) -> list[Response]:
        """Sends all requests at once, and returns their responses in order. One that is not answered in time, or
        cannot be, has an error. An `Interrupted` cancels the open ones.
        """
        if self._replies.is_closed:
            return [Response("", error=_GONE) for _ in questions]
        started_s = self._clock.now_s()
        asked = [self._begin(question) for question in questions]
        try:
            return [
                self._reply(request_id, mailbox, question, started_s)
                for (request_id, mailbox), question in zip(asked, questions, strict=True)
            ]
        finally:
            for request_id, _ in asked:
                self._give_up(request_id)

    def _begin(self, question: Question) -> tuple[str, Mailbox]:
        self._asked += 1
        request_id, mailbox = f"ralph_{self._asked}", self._waiter.mailbox()
        self._replies.expect(request_id, mailbox)
        self._send(request_line(request_id, question.request))
        return request_id, mailbox

    def _reply(self, request_id: str, mailbox: Mailbox, question: Question, started_s: float) -> Response:
        until_s = started_s + question.within_s
        reply = self._waiter.wait(mailbox, until_s=until_s, waiting_for=question.waiting_for)
        if reply is TIMED_OUT:
            self._give_up(request_id)
            return Response(request_id, error=f"no answer within {question.within_s:g} s")
        self._replies.give_up(request_id)
        return reply  # type: ignore[no-any-return]  # only `take` and `close` put something into the mailbox

    def _give_up(self, request_id: str) -> None:
        """Tells the driver, if the request is still open, that nobody waits any more."""
        if self._replies.give_up(request_id) and not self._replies.is_closed:
            self._send(cancel_line(request_id))


# --- MCP servers in the driver's process
# The MCP servers that run inside the driver's own process. ralph exchanges messages with these servers in control
# requests, so they need neither the `mcp` package nor a process of their own.

PROTOCOL_VERSION = "2025-11-25"


def answer_to_server(message: Mapping[str, Any]) -> dict[str, Any]:
    """The response to a message that a server sent by itself: empty for a notification, a refusal for a request."""
    if "id" not in message:
        return {}
    error = {"code": -32601, "message": f"ralph does not offer {message.get('method')}"}
    return {"mcp_response": {"jsonrpc": "2.0", "id": message["id"], "error": error}}


class NoAnswerError(Exception):
    """A server gave no usable answer. The message says why."""

    code: object = None
    """The code of the server's own error."""


class DriverServers:
    """The driver's MCP servers. Implements `ServerGroup`."""

    def __init__(self, names: Sequence[str], questions: Questions, *, start_s: float, call_s: float) -> None:
        """Limits: `start_s` for each answer while connecting to a server, `call_s` for a tool call. 0 is no limit."""
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
        for _ in range(MOST_PAGES):
            try:
                page = self._asked(server, "tools/list", {"cursor": cursor} if cursor else {}, self._start_s)
            except NoAnswerError as error:
                if error.code != NO_METHOD:
                    raise
                return tools
            listed = page.get("tools")
            if not isinstance(listed, list) or not all(isinstance(tool, dict) for tool in listed):
                raise NoAnswerError("it lists no tools")
            tools += listed
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                return tools
        raise NoAnswerError(f"its list of tools has more than {MOST_PAGES} pages")

    def call(self, server: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._asked(server, "tools/call", {"name": tool, "arguments": arguments}, self._call_s)
        except NoAnswerError as error:
            raise CallFailedError(
                f"The MCP server {server!r} gave no result: {error}. {UNKNOWN_EFFECTS}"
            ) from None

    def close(self) -> None:
        """Does nothing, because the servers end with the driver."""

    def _asked(self, server: str, method: str, params: dict[str, Any], within_s: float) -> dict[str, Any]:
        """The result of a request to a server. Raises NoAnswerError and Interrupted."""
        self._sent += 1
        message = {"jsonrpc": "2.0", "id": self._sent, "method": method, "params": params}
        answer = self._send(server, message, within_s)
        if isinstance(error := answer.get("error"), dict):
            refused = NoAnswerError(str(error.get("message") or error))
            refused.code = error.get("code")
            raise refused
        result = answer.get("result")
        if not isinstance(result, dict):
            raise NoAnswerError(f"the answer to {method} has no result")
        return result

    def _send(self, server: str, message: dict[str, Any], within_s: float) -> dict[str, Any]:
        request = {"subtype": "mcp_message", "server_name": server, "message": message}
        waiting_for = f"the driver's MCP server {server}"
        [reply] = self._questions.ask([Question(request, waiting_for, within_s)])
        if reply.error is not None:
            raise NoAnswerError(reply.error)
        answer = reply.fields.get("mcp_response")
        if not isinstance(answer, dict):
            raise NoAnswerError("the answer has no mcp_response")
        return answer
