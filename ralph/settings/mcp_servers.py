"""Collects the MCP servers of a run from `--mcp-config` and from the user's settings. The servers in the repository's
`.mcp.json` are included only if the user wants that. It reads these files.

If an agent or a repository's author may have written the file that configures a server, the server gets no credential.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.machine.files.paths import up_to_repository_root
from ralph.mcp.configuration import McpServer, entries_of, names_in, server_of
from ralph.sandbox.left_behind import why_left_behind
from ralph.settings.merge import SettingsError
from ralph.settings.toml_file import SettingsFileError, read_settings_file
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.strict_json import unambiguous_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.machine.own_programs import ProgramSearch
    from ralph.settings.files import SettingsFile
    from ralph.settings.tables import Settings

REPOSITORY_FILE = ".mcp.json"
_FLAG = "--mcp-config"


def configured_servers(
    settings: Settings,
    environment: Mapping[str, str],
    cwd: Path,
    search: ProgramSearch,
    files: Sequence[SettingsFile] = (),
) -> tuple[McpServer, ...]:
    """The servers of the run. `files` are the files that a loop has read for all its iterations. `search` knows
    where commands may write.

    If several sources configure a server with the same name, the command line has the highest precedence, and the
    user's settings the second highest. Raises SettingsError.
    """
    mcp = settings.mcp
    known = {file.path: file.data for file in files if file.is_mcp}
    servers: dict[str, McpServer] = {}
    repository = None if mcp.strict or not mcp.repository else repository_file(cwd)
    if repository is not None:
        servers |= _from_file(repository, settings, environment, search, {})
    if not mcp.strict:
        servers |= _from_settings(settings, environment)
    for word in mcp.config:
        found = (
            _servers(_parsed(word, _FLAG), environment, _FLAG)
            if word.lstrip().startswith("{")
            else _from_file(Path(word), settings, environment, search, known, is_named=True)
        )
        servers |= {name: replace(server, is_asked_for=True) for name, server in found.items()}
    return tuple(servers.values())


def repository_file(cwd: Path) -> Path | None:
    """The path of the nearest `.mcp.json`, searched from the working directory up to the top of the repository.
    None if there is no such file.
    """
    found = (directory / REPOSITORY_FILE for directory in up_to_repository_root(cwd))
    return next((path for path in found if path.is_file()), None)


def notice_on_repository(settings: Settings, cwd: Path) -> str | None:
    """A notice that servers in a repository's `.mcp.json` are not started. None if there are no such servers."""
    path = None if settings.mcp.strict or settings.mcp.repository else repository_file(cwd)
    if path is None or str(path) in settings.mcp.config:
        return None
    try:
        names = ", ".join(names_in(json.loads(read_settings_file(path) or b"")))
    except (SettingsFileError, ValueError, RecursionError):
        names = "no readable servers"
    return (
        f"{path} is not used, as anybody could have written it: it names {names or 'no servers'} ({_FLAG} {path} starts "
        "MCP servers, and --strict-mcp-config ends this notice)"
    )


def _from_settings(settings: Settings, environment: Mapping[str, str]) -> dict[str, McpServer]:
    origin = settings.origins.get("mcp.servers", "mcp.servers")
    raw = {"mcpServers": {} if settings.mcp.servers is None else settings.mcp.servers.plain}
    return _servers(raw, environment, origin, may_leave_sandbox=True)


def _from_file(
    path: Path,
    settings: Settings,
    environment: Mapping[str, str],
    search: ProgramSearch,
    known: Mapping[Path, bytes | None],
    *,
    is_named: bool = False,
) -> dict[str, McpServer]:
    try:
        data = known[path] if path in known else read_settings_file(path, required=is_named)
    except SettingsFileError as error:
        raise SettingsError(f"{_FLAG}: {error}" if is_named else str(error), from_flag=is_named) from None
    if data is None:
        raise SettingsError(f"{_FLAG}: {path} did not exist when the loop began", from_flag=True)
    origin, variables, why = str(path), environment, search.why_open(str(path))
    if not why and path not in known and (left := why_left_behind(str(path), environment)):
        raise SettingsError(f"{path} {left}")
    if why or not is_named:
        secrets = known_secrets(environment, settings.secrets)
        variables = child_environment(environment, settings.tools.pass_env, secrets, settings.key_variables)
        origin = f"{path} (which gets no credential, as {why})" if why else origin
    return _servers(_parsed(data, str(path)), variables, origin)


def _parsed(data: str | bytes, origin: str) -> Any:
    try:
        return unambiguous_json(data if isinstance(data, str) else data.decode())
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else f": {error}"
        raise SettingsError(f"{origin}: no valid JSON{where}", from_flag=origin == _FLAG) from None


def _servers(
    document: Any, variables: Mapping[str, str], origin: str, *, may_leave_sandbox: bool = False
) -> dict[str, McpServer]:
    try:
        return {
            name: server_of(name, raw, variables, may_leave_sandbox=may_leave_sandbox)
            for name, raw in entries_of(document).items()
        }
    except ValueError as error:
        raise SettingsError(f"{origin}: {error}") from None
