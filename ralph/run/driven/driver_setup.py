"""Decodes the `initialize` request of a driver, which contains settings for the session. No I/O happens here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import replace

from ralph.run.driven.hooks import HookTable, hook_table
from ralph.run.options import RequestedReport
from ralph.run.report_schema import read_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.run.options import RunOptions

# Keys that ask for what ralph does not have. An empty value asks for nothing.
NOT_OFFERED = ("mcpServers", "plugins", "toolAliases", "planModeInstructions")

_LONGEST_TITLE = 200
"""The maximum number of characters in a title. A longer title is cut."""


class _Asked(Struct, frozen=True, rename="camel"):
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
        """Applies the driver's settings to the options of the run, and returns the result. A driver's setting
        replaces the option on the command line. Only the title on the command line takes precedence over the driver's
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
    """Decodes the fields of `initialize`. Raises ValueError if they request something that ralph does not support.

    The TypeScript SDK sends `systemPrompt` as a list, and sends `[""]` if the program sets no system prompt. The
    Python SDK uses `--system-prompt ""` for that.
    """
    refused = [name for name in NOT_OFFERED if fields.get(name)]
    if refused:
        raise ValueError(f"initialize: ralph does not offer {', '.join(refused)}; leave that out")
    try:
        asked = convert(dict(fields), _Asked)
    except ValidationError as error:
        raise ValueError(f"initialize: {error}") from error
    system = asked.system_prompt
    text = "\n\n".join(part for part in system if part) if isinstance(system, tuple) else system
    return DriverSetup(
        text,
        asked.append_system_prompt or None,
        None if asked.json_schema is None else _checked_schema(asked.json_schema),
        hook_table(fields.get("hooks")),
        " ".join((asked.title or "").split())[:_LONGEST_TITLE] or None,
        asked.sdk_mcp_servers or (),
    )


def _checked_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema. Raises ValueError if reports cannot be checked against it."""
    try:
        return read_schema(json.dumps(schema), ".")
    except ValueError as error:
        raise ValueError(f"initialize: jsonSchema: {error}") from error
