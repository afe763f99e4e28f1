"""Starts the MCP servers of a run, as a run would, and says which tools they list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.cli.checks.finding import Finding, fail, ok, warn
from ralph.run.parts import RunContext, build_toolbox, plan_sandbox
from ralph.run.servers import build_mcp, connect_servers
from ralph.settings.merge import SettingsError
from ralph.values.credentials import known_secrets
from ralph.values.events import EventStream
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ralph.machine.waiter import InboxWaiter
    from ralph.settings.tables import Settings
    from ralph.values.ports import Clock

_NAME = "MCP servers"
_ADVICE = "correct --mcp-config or [mcp]: no run begins without its servers (`ralph help mcp`)"
_MOST_SHOWN = 8


def look_at_servers(
    settings: Settings, environment: Mapping[str, str], cwd: Path, waiter: InboxWaiter, clock: Clock
) -> Iterator[Finding]:
    """A finding for each server with its tools and for each notice of a run, or one failure if no run could begin. All
    servers have ended at the end.
    """
    redactor = Redactor(known_secrets(environment, settings.secrets))
    context = RunContext(settings, environment, cwd, waiter, clock, EventStream(), redactor)
    mcp = toolbox = None
    try:
        mcp = build_mcp(context)
        if mcp is None:
            return
        toolbox = build_toolbox(context, plan=plan_sandbox(context), mcp=mcp)
        connect_servers(toolbox)
    except SettingsError as error:
        yield fail(_NAME, str(error), _ADVICE)
        return
    finally:
        if toolbox is not None:
            toolbox.close()
        elif mcp is not None:
            mcp.close()
    for server, tools in mcp.tools_by_server().items():
        more = f" and {len(tools) - _MOST_SHOWN} more" if len(tools) > _MOST_SHOWN else ""
        listed = f" ({', '.join(tools[:_MOST_SHOWN])}{more})" if tools else ""
        yield ok(_NAME, f"{server}: connected, {len(tools)} tools{listed}")
    yield from (warn(_NAME, notice, "`ralph help mcp`") for notice in mcp.notices)
