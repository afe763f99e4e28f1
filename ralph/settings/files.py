"""Finds settings files (TOML), decides which of these files are trusted, and checks their structure. It refuses unknown
tables and keys. Each error is one line that names the file. `toml_file.py` reads a single file.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - decoded by its hints
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.sandbox.left_behind import why_left_behind
from ralph.settings.toml_file import SettingsFileError, read_settings_file, user_settings_path
from ralph.values.outcome import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from ralph.machine.own_programs import ProgramSearch

LOCAL_FILE = "ralph.toml"
"""The path of a repository's own settings file, relative to the working directory."""
# As for the keys of settings files for Claude Code.
_LEAST_LIKENESS = 0.8
_OF_ANOTHER = "; if the file belongs to another program, rename it, or start ralph elsewhere (-C DIR)"


class RecordedFile(Struct, frozen=True):
    """The content of a settings file at the start of a loop."""

    path: str
    text: str | None

    @property
    def data(self) -> bytes | None:
        return None if self.text is None else self.text.encode("utf-8", "surrogateescape")


class SettingsFile(Struct, frozen=True):
    """The content of a settings file at the time when it was read."""

    path: Path
    is_trusted: bool
    """False if a repository's author or an agent may have written the file (`search_around`, `why_open`). A file
    that the user named is always trusted."""
    data: bytes | None
    is_named: bool = False
    is_mcp: bool = False
    """True if the file configures MCP servers. Such a file contains JSON and no settings."""


def find_settings_files(
    environment: Mapping[str, str],
    cwd: Path,
    config_file: Path | None,
    search: ProgramSearch,
    *,
    recorded: Iterable[RecordedFile] = (),
    mcp_files: Iterable[Path] = (),
) -> tuple[SettingsFile, ...]:
    """Returns one `SettingsFile` for each place where a settings file may be, from the lowest to the highest
    precedence. If a file does not exist, its `data` is None.

    `config_file` is the path given with `--config`. `search` knows where an agent may write. Files that are in
    `recorded` are not read again. `mcp_files` are the paths of files with MCP servers, which come last in the
    result. Raises SettingsFileError.
    """
    known = {file.path: file.data for file in recorded}

    def file_at(path: Path, *, is_trusted: bool, is_named: bool = False) -> SettingsFile:
        if str(path) in known:
            return SettingsFile(path, is_trusted, known[str(path)], is_named)
        data = read_settings_file(path, required=is_named)
        if is_trusted and (why := why_left_behind(str(path), environment)):
            raise SettingsFileError(f"{path} {why}")
        return SettingsFile(path, is_trusted, data, is_named)

    files = []
    user_file = user_settings_path(environment)
    local_file = cwd / LOCAL_FILE
    named_file = None if config_file is None else cwd / config_file
    places = {} if user_file is None else {user_file: search.why_open(str(user_file)) is None}
    places[local_file] = False
    for path, is_trusted in places.items():
        # An untrusted file that `--config` names is read only once, as the trusted file that the user chose.
        if is_trusted or named_file is None or not is_same_file(named_file, path):
            files.append(file_at(path, is_trusted=is_trusted))
    if named_file is not None:
        files.append(file_at(named_file, is_trusted=True, is_named=True))
    files += [replace(file_at(path, is_trusted=True), is_named=True, is_mcp=True) for path in mcp_files]
    return tuple(files)


def is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def flattened(
    document: Mapping[str, Any], path: Path, allowed: Mapping[str, Collection[str]], lists: Collection[str]
) -> dict[str, Any]:
    """Makes a flat mapping from the tables of a document: `{"model": {"name": x}}` becomes `{"model.name": x}`.

    `allowed` lists the keys that each table may contain. The values of the keys in `lists`, such as `targets`, are
    copied unchanged. Raises SettingsFileError for an unknown table or key.
    """
    flat, about = {}, _OF_ANOTHER if path.name == LOCAL_FILE else ""
    for table, content in document.items():
        if table in lists:
            flat[table] = content
            continue
        if table not in allowed:
            known = ", ".join((*(f"[{name}]" for name in allowed), *(f"[[{name}]]" for name in lists)))
            raise SettingsFileError(
                f"{path}: unknown key {table!r}; a settings file holds the tables {known}{about}"
            )
        if not isinstance(content, dict):
            raise SettingsFileError(f"{path}: {table!r} must be a table: [{table}]")
        for key, value in content.items():
            if key not in allowed[table]:
                known = ", ".join(allowed[table])
                raise SettingsFileError(
                    f"{path}: unknown key {f'{table}.{key}'!r}; [{table}] holds {known}{about}"
                )
            flat[f"{table}.{key}"] = value
    return flat


def is_of_another_program(document: Mapping[str, Any], known: frozenset[str]) -> bool:
    """Whether a `ralph.toml` belongs to another program of that name: it has tables, and none of them is one of
    `known`, or nearly so.
    """
    if not known.isdisjoint(document) or not any(isinstance(one, dict) for one in document.values()):
        return False
    return not any(nearest(key.lower(), known, _LEAST_LIKENESS) for key in document)


def keys_at_any_depth(value: object, above: str = "") -> Iterator[tuple[str, str]]:
    """Yields all keys of a document, also those in nested tables and lists. Each item is a pair of the key's last
    part and its full name, such as `("name", "model.name")`.
    """
    if isinstance(value, list):
        for item in value:
            yield from keys_at_any_depth(item, above)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name, f"{above}{name}"
            yield from keys_at_any_depth(inner, f"{above}{name}.")
