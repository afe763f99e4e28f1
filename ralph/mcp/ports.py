"""The port of a group of MCP servers that are reached in the same way, and the errors of this port.

`servers.py` implements the port for servers that have a process or an address. `driven/questions.py`
implements it for the servers that a driver provides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.mcp.configuration import McpServer
    from ralph.mcp.helper_process import ServerProcess


MOST_PAGES = 100
"""A list of tools may come in pages. A server with more of them would fill the request, or never end its list."""
UNKNOWN_EFFECTS = "Its effects are unknown: look at the state of things before you repeat it."

NO_METHOD = -32601
"""The code of JSON-RPC with which a server that has no tools answers the question for their list. It may have named them among its
capabilities."""


class ServerFailedError(Exception):
    """A server did not start in time, or could not be started. The message is one line that contains the name of the
    server.
    """


class CallFailedError(Exception):
    """A tool call failed and has no result. The message is written for the model."""


class ServerGroup(Protocol):
    @property
    def names(self) -> Sequence[str]: ...

    def begin(self, start: Callable[[McpServer], ServerProcess]) -> None:
        """Begins to connect to the servers, and does not wait for them. Calls `start` for each server that needs a
        process. Raises ServerFailedError.
        """
        ...

    def tools(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Waits until all servers are connected. Returns the tools of each server, by the server's name. The tools
        have the form of the protocol's `tools/list`. Raises ServerFailedError and Interrupted.
        """
        ...

    def call(self, server: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Calls a tool and returns the result in the form of the protocol's `tools/call`. Raises CallFailedError.
        Also raises Interrupted. Before that, it tells the server that nobody waits for the result any more.
        """
        ...

    def close(self) -> None:
        """Ends the servers of the group."""
        ...
