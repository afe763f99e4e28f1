"""Builds and connects the MCP servers of a run, and makes notices about them. To save time, ralph imports this module
only if the run has servers or the repository contains a `.mcp.json`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.mcp.helper_process import is_package_installed
from ralph.mcp.servers import OwnServers
from ralph.mcp.toolset import McpToolset, ServerFailedError, ServerGroup
from ralph.settings.mcp_servers import notice_on_repository
from ralph.settings.merge import SettingsError
from ralph.tools import mcp_call
from ralph.values.tool_choice import MCP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ralph.run.parts import RunContext
    from ralph.tools.toolbox import LocalToolbox


def build_mcp(context: RunContext, of_driver: ServerGroup | None = None) -> McpToolset | None:
    """The tools of the MCP servers. The servers are not started yet, but the helper process that speaks with servers
    is running. None if the run has no servers, or if it stays in plan mode, where no program runs. `of_driver` are the
    servers in the driver's own process. Raises SettingsError.
    """
    if context.controls.stays_in_plan:
        return None
    servers = [server for server in context.settings.mcp_servers if server.transport != "sdk"]
    known = () if of_driver is None else of_driver.names
    lost = [
        one.name for one in context.settings.mcp_servers if one.transport == "sdk" and one.name not in known
    ]
    if lost:
        raise SettingsError(
            f"the MCP server {lost[0]!r} is one of a driver (type sdk), which needs --input-format stream-json"
        )
    groups = () if of_driver is None else (of_driver,)
    lists, redact = context.settings.tool_lists, context.redactor.redact
    if not servers:
        return McpToolset(groups, asked_for=set(known), lists=lists, redact=redact) if groups else None
    if not is_package_installed():
        names = ", ".join(server.name for server in servers)
        raise SettingsError(
            f"MCP servers ({names}) need a package: pip install '.[mcp]' in ralph's clone, with ralph's Python"
        )
    mcp = context.settings.mcp
    try:
        own = OwnServers(
            servers,
            environment=context.safe_environment(),
            waiter=context.waiter,
            clock=context.clock,
            events=context.events,
            start_s=mcp.start_s,
            call_s=mcp.call_s,
        )
    except OSError as error:
        raise SettingsError(f"the process for MCP servers cannot be started: {error}") from error
    asked_for = {server.name for server in servers if server.is_asked_for}
    return McpToolset([*groups, own], asked_for={*asked_for, *known}, lists=lists, redact=redact)


def connect_servers(toolbox: LocalToolbox) -> None:
    """Starts the servers, and waits until they have listed their tools. Raises SettingsError and Interrupted."""
    try:
        toolbox.connect_servers(mcp_call.start_server, mcp_call.run)
    except ServerFailedError as error:
        raise SettingsError(str(error)) from error


def mcp_notices(context: RunContext, mcp: McpToolset | None, offered: Collection[str]) -> Iterator[str]:
    """Notices about the servers that this run starts, and about servers that it does not start. `offered` holds the
    tools that the session has offered to the model before.
    """
    settings = context.settings
    if settings.mcp_servers and mcp is None:
        yield "permission mode plan: no MCP server is started"
    if mcp is not None:
        yield from mcp.notices
    there = set() if mcp is None else {tool.name for tool in mcp.definitions}
    gone = sorted(name for name in offered if name.startswith(MCP_PREFIX) and name not in there)
    if gone:
        yield (
            f"MCP tools that this session had and this run does not: {', '.join(gone)} (--mcp-config names "
            "the servers again)"
        )
    unused = notice_on_repository(settings, context.cwd)
    if unused is not None:
        yield unused
