"""The port of a group of MCP servers that are reached in one way, and its errors. `servers.py` implements it for servers
of their own process or address; a driver's in-process servers would be another implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.mcp.configuration import McpServer
    from ralph.mcp.server_process import ServerProcess


class ServerFailedError(Exception):
    """A server did not start in time, or not at all. The message is one line that names the server."""


class CallFailedError(Exception):
    """A call has no result. The message is for the model."""


class ServerGroup(Protocol):
    @property
    def names(self) -> Sequence[str]: ...

    def begin(self, start: Callable[[McpServer], ServerProcess]) -> None:
        """Begins to connect to the servers. Does not wait. `start` starts the process of a server that has one. Raises
        ServerFailedError.
        """
        ...

    def tools(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Waits until all servers are connected, and returns the tools that each of them lists, as `tools/list` of the
        protocol has them. Raises ServerFailedError and Interrupted.
        """
        ...

    def call(self, server: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Calls a tool and returns the result of the protocol's `tools/call`. Raises CallFailedError, and Interrupted
        after the server was told that nobody waits any more.
        """
        ...

    def close(self) -> None:
        """Ends the servers."""
        ...
