"""Manages the MCP servers that have a process or an address of their own. The code runs on the main thread.

A helper process speaks with the servers. This module starts the servers, waits for them within time limits, and ends
them. If a server is lost, the next call connects to it again, after waits that grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.machine.connecting import choose_address, proxy_for
from ralph.mcp.helper_process import HELPER_GONE, HelperProcess, ServerProcess, end_servers
from ralph.mcp.toolset import UNKNOWN_EFFECTS, CallFailedError, ServerFailedError
from ralph.mcp.wire import (
    Call,
    CallNotSent,
    CallRefused,
    CallReturned,
    Cancel,
    Connect,
    Disconnect,
    HelperReady,
    Order,
    Ping,
    ServerAlive,
    ServerConnected,
    ServerLost,
)
from ralph.values.events import Notice
from ralph.values.ports import TIMED_OUT, Clock, Events, Interrupted, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.mcp.configuration import McpServer

_MOST_STDERR_CHARS = 400
_LAST_WORDS_S = 1.0
# It takes a second. A minute is for a machine on which nothing moves.
_HELPER_READY_S = 60.0
# The helper process waits for 10 s.
_ANSWERS_PING_S = 20.0
# The first try comes at once. A server that is away for long is a person's work, which five minutes more do not delay.
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 300.0


class _Link:
    """The state of one server, and the state of ralph's connection to this server."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.process: ServerProcess | None = None
        self.connection = 0
        """The number of the current connection. 0 before the first connection."""
        self.tools: list[dict[str, Any]] | None = None
        """The tools that the server has listed. None while the server is not connected."""
        self.why_lost: str | None = None
        """The reason why the connection was lost. None if it was not lost."""
        self.last_words = ""
        """The last bytes that the server wrote to its standard error before the connection was lost."""
        self.was_unreached = False
        """True if the connection was lost because the server could not be connected to."""
        self.is_doubtful = False
        """True if the server has to be pinged before the next call."""
        self.tries = 0
        """The number of times that the server was connected to again since it last answered a call."""
        self.next_try_s = 0.0
        """The time by the monotonic clock before which the server is not connected to again."""

    def take(self, news: ServerConnected | ServerAlive | ServerLost) -> None:
        match news:
            case ServerConnected():
                self.tools = news.tools
            case ServerAlive():
                self.is_doubtful = False
            case ServerLost():
                self.tools = None
                self.why_lost, self.was_unreached = news.error, news.is_unreached
                self.last_words = " ".join(news.stderr[-_MOST_STDERR_CHARS:].split())

    @property
    def epitaph(self) -> str:
        """A text with the reason why the connection was lost, and with the last bytes of the server's standard error."""
        return f"{self.why_lost or 'the connection ended'}{self.said}"

    @property
    def said(self) -> str:
        return f"; its last words: {self.last_words}" if self.last_words else ""


class OwnServers:
    """Implements `ServerGroup` for the servers that the user configured."""

    def __init__(
        self,
        servers: Sequence[McpServer],
        *,
        environment: Mapping[str, str],
        waiter: Waiter,
        clock: Clock,
        events: Events,
        start_s: float,
        call_s: float,
    ) -> None:
        """Starts the helper process at once, because its start takes a second.

        `environment` is the environment of the helper process, without credentials. `start_s` is the time limit in
        seconds for the start of a server, and for the wait of a call until a lost server is connected again.
        `call_s` is that for a call. Raises ShortageError or OSError.
        """
        self._environment = environment
        self._waiter = waiter
        self._clock = clock
        self._events = events
        self._start_s = start_s
        self._call_s = call_s
        self._links = {server.name: _Link(server) for server in servers}
        self._by_connection: dict[int, _Link] = {}
        self._answers: dict[int, CallReturned | CallRefused | CallNotSent] = {}
        self._calls = 0
        self._is_ready = False
        self._start: Callable[[McpServer], ServerProcess] | None = None
        for server in servers:
            choose_address(server.url)
        self._helper: HelperProcess | None = HelperProcess(environment, waiter)

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._links)

    def begin(self, start: Callable[[McpServer], ServerProcess]) -> None:
        self._start = start
        for link in self._links.values():
            self._connect(link)

    def tools(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        self._await_helper()
        until_s = self._clock.now_s() + self._start_s
        return {name: self._tools_of(link, until_s) for name, link in self._links.items()}

    def _await_helper(self) -> None:
        """Waits until the helper process takes orders. The time limits of the servers begin only after this wait.
        Raises ServerFailedError and Interrupted.
        """
        until_s = self._clock.now_s() + _HELPER_READY_S
        while not self._is_ready and self._next(until_s, "the process for MCP servers") is not TIMED_OUT:
            pass
        if not self._is_ready:
            raise ServerFailedError("the process that speaks with MCP servers has ended, or does not begin")

    def call(self, server: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        link = self._links[server]
        until_s = self._clock.now_s() + self._start_s
        while True:
            while self._next(self._clock.now_s(), "MCP servers") is not TIMED_OUT:
                pass
            if link.is_doubtful:
                self._ping(link)
            if link.tools is None:
                self._reconnect(link, until_s)
            result = self._asked(link, tool, arguments)
            if result is not None:
                return result
            self._give_up(link)

    def close(self) -> None:
        processes = [link.process for link in self._links.values() if link.process is not None]
        for link in self._links.values():
            link.process = None
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.close()  # which ends the input of the servers
        end_servers(processes, self._waiter, self._clock)

    # --- Connecting

    def _connect(self, link: _Link) -> None:
        """Starts the server and asks the helper process to connect to it. Raises ServerFailedError."""
        server, link.why_lost, link.was_unreached, link.is_doubtful = link.server, None, False, False
        link.connection = len(self._by_connection) + 1
        self._by_connection[link.connection] = link
        transport = server.transport
        if transport == "sdk":
            raise ServerFailedError(
                f"the MCP server {server.name!r} belongs to a driver, and this run has none"
            )
        descriptors: Sequence[int] = ()
        try:
            named = proxy_for(server.url) if server.url else None
            proxy = None if named is None else named.url.plain
            headers, address = server.headers.plain, choose_address(server.url)
            order = Connect(server.name, link.connection, transport, server.url, headers, proxy, address)
            if transport == "stdio":
                assert self._start is not None  # noqa: S101 - `begin` comes first
                link.process = self._start(server)
                descriptors = link.process.descriptors
            self._send(order, descriptors)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ServerFailedError(f"the MCP server {server.name!r} could not be started: {why}") from error
        finally:
            if link.process is not None and descriptors:
                link.process.hand_over()

    def _tools_of(self, link: _Link, until_s: float) -> Sequence[Mapping[str, Any]]:
        """Waits until the server has listed its tools, and returns them. Raises ServerFailedError and Interrupted."""
        name = link.server.name
        while link.tools is None:
            if link.why_lost is not None:
                is_silent = link.process is not None and not link.last_words
                said = (
                    f"{link.epitaph}; it wrote nothing to its standard error" if is_silent else link.epitaph
                )
                raise ServerFailedError(f"the MCP server {name!r} did not start: {said}")
            if self._next(until_s, f"the MCP server {name}") is TIMED_OUT:
                self._give_up(link)
                link.why_lost = f"it was not ready within {self._start_s:g} s"
                raise ServerFailedError(
                    f"the MCP server {name!r} did not start within {self._start_s:g} s{link.said}"
                )
        return link.tools

    def _give_up(self, link: _Link) -> None:
        link.tools = None
        self._send(Disconnect(link.connection))
        until_s = self._clock.now_s() + _LAST_WORDS_S
        while link.why_lost is None and self._next(until_s, "an MCP server's errors") is not TIMED_OUT:
            pass

    def _reconnect(self, link: _Link, until_s: float) -> None:
        """Connects again to a server whose connection was lost, and waits between the tries. Begins no try after
        `until_s`. Raises CallFailedError and Interrupted.
        """
        name = link.server.name
        while link.tools is None:
            why = link.epitaph
            wait_s = link.next_try_s - self._clock.now_s()
            if link.next_try_s > until_s:
                raise CallFailedError(
                    f"The call was not made: the MCP server {name!r} is unavailable ({why}). The first call after {wait_s:.0f} s "
                    "tries to reach it again. Do without its tools until then."
                )
            if wait_s > 0:
                self._waiter.sleep(wait_s, waiting_for=f"the MCP server {name} to come back")
            told = f"the MCP server {name!r} was lost ({why})"
            pause_s = min(_FIRST_WAIT_S * 2 ** min(link.tries, 10), _LONGEST_WAIT_S)
            link.tries += 1
            try:
                self._connect_again(link)
                self._events.emit(Notice(f"{told}: connected again"))
            except (ServerFailedError, OSError) as error:
                link.why_lost = link.why_lost or str(error)
                again = f"next try after {pause_s:g} s"
                self._events.emit(Notice(f"{told}: not connected again yet, {again} ({link.epitaph})"))
            finally:
                link.next_try_s = self._clock.now_s() + pause_s

    def _connect_again(self, link: _Link) -> None:
        """Raises ServerFailedError, OSError and Interrupted."""
        process, link.process = link.process, None
        if process is not None:
            end_servers([process], self._waiter, self._clock)
        if self._helper is None:
            self._is_ready, self._helper = False, HelperProcess(self._environment, self._waiter)
            self._await_helper()
        self._connect(link)
        self._tools_of(link, self._clock.now_s() + self._start_s)

    def _ping(self, link: _Link) -> None:
        """Pings a server, and waits until it answers or its connection is ended. Raises Interrupted."""
        self._send(Ping(link.connection))
        until_s = self._clock.now_s() + _ANSWERS_PING_S
        while link.is_doubtful and link.tools is not None:
            if self._next(until_s, f"the MCP server {link.server.name} to answer a ping") is TIMED_OUT:
                self._give_up(link)

    # --- Calls

    def _asked(self, link: _Link, tool: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """Calls a tool and returns the result. None if the call did not reach the server. Raises CallFailedError
        and Interrupted.
        """
        self._calls += 1
        order = Call(self._calls, link.connection, tool, arguments)
        self._send(order)
        try:
            answer = self._answer(link, order, link.server.call_s or self._call_s)
        except Interrupted:
            self._cancel(order)
            raise
        if not isinstance(answer, CallNotSent):
            link.tries, link.next_try_s = 0, 0.0
        match answer:
            case CallNotSent():
                return None
            case CallRefused():
                link.is_doubtful = answer.is_doubtful
                said = f"The MCP server {link.server.name!r} answered with an error: {answer.error}"
                raise CallFailedError(f"{said}. {UNKNOWN_EFFECTS}" if answer.is_doubtful else said)
        return answer.result

    def _answer(self, link: _Link, order: Call, limit_s: float) -> CallReturned | CallRefused | CallNotSent:
        until_s = self._clock.now_s() + limit_s
        while order.id not in self._answers:
            if link.was_unreached:
                return CallNotSent(order.id)
            if link.tools is None:
                raise CallFailedError(
                    f"The MCP server {link.server.name!r} ended during this call: {link.epitaph}. {UNKNOWN_EFFECTS} The next "
                    "call starts it again."
                )
            if self._next(until_s, f"{link.server.name}: {order.tool}") is TIMED_OUT:
                self._cancel(order)
                link.is_doubtful = True
                raise CallFailedError(
                    f"The call took longer than {limit_s:g} s, and the server was told to stop. {UNKNOWN_EFFECTS}"
                )
        return self._answers.pop(order.id)

    def _cancel(self, order: Call) -> None:
        self._send(Cancel(order.id))

    # --- The helper process

    def _send(self, order: Order, descriptors: Sequence[int] = ()) -> None:
        """Sends an order to the helper process. If the helper process has ended, marks all connections as lost."""
        if self._helper is None:
            return
        try:
            self._helper.send(order, descriptors)
        except OSError:
            self._lose_all()

    def _next(self, until_s: float, waiting_for: str) -> Any:
        """Waits for the next message from the helper process, handles it and returns it. TIMED_OUT if none comes in
        time, or if there is no helper process. Raises Interrupted.
        """
        if self._helper is None:
            return TIMED_OUT
        news = self._waiter.wait(self._helper.mailbox, until_s=until_s, waiting_for=waiting_for)
        match news:
            case ServerConnected() | ServerAlive() | ServerLost():
                link = self._by_connection.get(news.connection)
                if link is not None and link.connection == news.connection:  # it has no newer one
                    link.take(news)
            case HelperReady():
                self._is_ready = True
            case CallReturned() | CallRefused() | CallNotSent() if news.id == self._calls:
                self._answers[news.id] = news
        if news is HELPER_GONE:
            self._lose_all()
        return news

    def _lose_all(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.close()
        for link in self._links.values():
            link.tools = None
            link.why_lost = link.why_lost or "the process that speaks with it has ended"
