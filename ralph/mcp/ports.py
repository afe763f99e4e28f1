"""The port of a group of MCP servers that are reached in the same way, and its errors. `servers.py` implements it for
servers with a process or an address, `run/driven/driver_servers.py` for a driver's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.mcp.configuration import McpServer
    from ralph.mcp.server_process import ServerProcess


class ServerFailedError(Exception):
    """A server could not be started in time. The message is one line that names the server."""


class CallFailedError(Exception):
    """A call has no result. The message is written for the model."""


class ServerGroup(Protocol):
    @property
    def names(self) -> Sequence[str]: ...

    def begin(self, start: Callable[[McpServer], ServerProcess]) -> None:
        """Begins to connect to the servers, without waiting. Calls `start` for each server that needs a process.
        Raises ServerFailedError.
        """
        ...

    def tools(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Waits until all servers are connected. Returns the tools of each server in the form of the protocol's
        `tools/list`. Raises ServerFailedError and Interrupted.
        """
        ...

    def call(self, server: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Calls a tool and returns the result in the form of the protocol's `tools/call`. Raises CallFailedError.
        Raises Interrupted after it has told the server that nobody waits for the result any more.
        """
        ...

    def close(self) -> None:
        """Ends the servers."""
        ...
