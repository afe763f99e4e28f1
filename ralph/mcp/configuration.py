"""Decodes the configuration of MCP servers from `.mcp.json` files and settings. No I/O happens here.

The format is that of Claude Code. Unknown keys are usually ignored. If a key would change what a server may do, and
ralph does not support the key, it is an error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, ValidationError, convert, field

from ralph.values.credentials import Secret, address_secrets, argument_secrets, secret_header_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Transport = Literal["stdio", "http", "sse", "sdk"]
_TRANSPORTS: dict[str, Transport] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamableHttp": "http",
    "sse": "sse",
    "sdk": "sdk",
}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_NOT_HONOURED = ("headersHelper", "oauth")


class McpServer(Struct, frozen=True, kw_only=True):
    name: str
    transport: Transport
    command: str = ""
    arguments: tuple[str, ...] = ()
    environment: Secret[dict[str, str]] = field(default_factory=lambda: Secret({}))
    """Environment variables for the server. The server gets them in addition to the variables that commands get."""
    url: str = ""
    headers: Secret[dict[str, str]] = field(default_factory=lambda: Secret({}))
    call_s: float | None = None
    """The time limit of a call in seconds. If it is None, the general setting applies."""
    is_confined: bool = True
    """False if the server runs outside the sandbox."""
    variables: frozenset[str] = frozenset()
    """The names of the variables whose values are in the configuration."""
    is_asked_for: bool = False
    """True if the command line of this run names the server's configuration."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values of the server's variables, headers, arguments and address, as far as they look like credentials."""
        named = secret_header_values((*self.environment.plain.items(), *self.headers.plain.items()))
        return tuple(dict.fromkeys((*named, *address_secrets(self.url), *argument_secrets(self.arguments))))


class _Entry(Struct, frozen=True):
    type: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str | None = None
    headers: dict[str, str] = {}
    timeout: int | None = None
    """The time limit of a call in milliseconds."""
    sandbox: bool = True


class _Document(Struct, frozen=True):
    mcp_servers: dict[str, dict[str, Any]] = field(name="mcpServers")


def entries_of(document: Any) -> dict[str, dict[str, Any]]:
    """The entries of a document of the form `{"mcpServers": {NAME: {...}}}`, by name. Raises ValueError if the
    document has another form.
    """
    try:
        return convert(document, _Document).mcp_servers
    except ValidationError as error:
        raise ValueError(f'must contain {{"mcpServers": {{NAME: {{...}}}}}}: {error}') from None


def server_of(
    name: str, raw: Mapping[str, Any], variables: Mapping[str, str], *, may_leave_sandbox: bool = False
) -> McpServer:
    """Decodes one entry. Values from `variables` replace `${NAME}` and `${NAME:-default}` in the entry.

    Raises ValueError. The error contains the server's name, but no value of the entry, which may be a credential.
    """
    try:
        return _server_of(name, raw, variables, may_leave_sandbox=may_leave_sandbox)
    except ValueError as error:
        raise ValueError(f"the MCP server {name!r} {error}") from None


def _server_of(
    name: str, raw: Mapping[str, Any], variables: Mapping[str, str], *, may_leave_sandbox: bool
) -> McpServer:
    if not name or not name.isprintable():
        raise ValueError("has a name that is empty or not printable")
    for key in _NOT_HONOURED:
        if raw.get(key):
            raise ValueError(f"needs {key!r}, which ralph does not have")
    try:
        entry = convert(raw, _Entry)
    except ValidationError as error:
        raise ValueError(f"is not configured as it must be: {error}") from None
    transport = _transport(entry)
    if not entry.sandbox and not may_leave_sandbox:
        raise ValueError(
            "asks to leave the sandbox, which only [mcp.servers] in your own config.toml may grant"
        )

    used = set[str]()

    def expanded(text: str) -> str:
        used.update(found[1] for found in _VARIABLE.finditer(text) if variables.get(found[1]))
        return _VARIABLE.sub(lambda found: _value(found, variables), text)

    return McpServer(
        name=name,
        transport=transport,
        command=expanded(entry.command or ""),
        arguments=tuple(map(expanded, entry.args)),
        environment=Secret({key: expanded(value) for key, value in entry.env.items()}),
        url=expanded(entry.url or ""),
        headers=Secret({key: expanded(value) for key, value in entry.headers.items()}),
        call_s=None if not entry.timeout or entry.timeout < 0 else entry.timeout / 1000,
        is_confined=entry.sandbox,
        variables=frozenset(used),  # the values above have been made
    )


def _transport(entry: _Entry) -> Transport:
    named = entry.type or ("http" if entry.url and not entry.command else "stdio")
    transport = _TRANSPORTS.get(named)
    if transport is None:
        raise ValueError(f"has the type {named!r}; ralph knows stdio, http and sse")
    if transport == "stdio" and not entry.command:
        raise ValueError("needs a command, or a url")
    if transport in {"http", "sse"} and not (entry.url or "").startswith(("http://", "https://", "${")):
        raise ValueError("needs a url that begins with https:// or http://")
    return transport


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    name, default = match[1], match[2]
    value = variables.get(name)
    if value is not None and (value or default is None):
        return value
    if default is None:
        raise ValueError(
            f"needs the variable {name}, which is not set, or is kept from tools (--pass-env {name})"
        )
    return default


def names_in(document: Any) -> Iterator[str]:
    """Yields the names of the servers in a document, even if the document has faults in other places."""
    if isinstance(document, dict) and isinstance(document.get("mcpServers"), dict):
        yield from map(str, document["mcpServers"])
