"""Reads TOML files of settings and judges their shape; which keys there are it is told by `ralph/settings.py`.

Refuses unknown tables and keys, and what could hang or flood a run (a pipe, a device, over a megabyte), each in
one line that names the file.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

MAX_BYTES = 1_000_000
"""Nobody writes a thousandth of this; a cloned repository may hold anything."""


class SettingsFileError(Exception):
    """The file is there and cannot be used. The text is one line: path, line number if known, reason."""


def user_settings_path(environment: Mapping[str, str]) -> Path | None:
    """The user's `config.toml`, there or not; None when neither XDG_CONFIG_HOME nor HOME is an absolute path.

    A relative one is ignored, as the XDG specification asks: it would lead into the working directory.
    """
    config_home = environment.get("XDG_CONFIG_HOME", "")
    if Path(config_home).is_absolute():
        return Path(config_home, "ralph", "config.toml")
    home = Path(environment.get("HOME", ""))
    return home / ".config" / "ralph" / "config.toml" if home.is_absolute() else None


def read_settings_file(path: Path, *, required: bool = False) -> dict[str, Any] | None:
    """The file's tables; None when there is no such file, unless it is `required`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SettingsFileError(f"{path}: not a regular file")
        if status.st_size > MAX_BYTES:
            raise SettingsFileError(f"{path}: larger than {MAX_BYTES} bytes")
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        if not required:
            return None
        raise SettingsFileError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise SettingsFileError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from error
    return _parsed(path, data)


def flattened(
    document: Mapping[str, Any], path: Path, allowed: Mapping[str, Collection[str]], lists: Collection[str]
) -> dict[str, Any]:
    """`{"model": {"name": x}}` -> `{"model.name": x}`. `allowed` holds the keys of each table.

    What stands under one of `lists` is kept as it is.
    """
    flat = {}
    for table, content in document.items():
        if table in lists:
            flat[table] = content
            continue
        if table not in allowed:
            known = ", ".join((*(f"[{name}]" for name in allowed), *(f"[[{name}]]" for name in lists)))
            raise SettingsFileError(
                f"{path}: unknown key {table!r}; a settings file holds the tables {known}"
            )
        if not isinstance(content, dict):
            raise SettingsFileError(f"{path}: {table!r} must be a table: [{table}]")
        for key, value in content.items():
            if key not in allowed[table]:
                known = ", ".join(allowed[table])
                raise SettingsFileError(f"{path}: unknown key {f'{table}.{key}'!r}; [{table}] holds {known}")
            flat[f"{table}.{key}"] = value
    return flat


def keys_at_any_depth(value: object, above: str = "") -> Iterator[tuple[str, str]]:
    """Each key of the document, in tables inside tables and lists too: its own name and its whole one."""
    if isinstance(value, list):
        for item in value:
            yield from keys_at_any_depth(item, above)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name, f"{above}{name}"
            yield from keys_at_any_depth(inner, f"{above}{name}.")


def _parsed(path: Path, data: bytes) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - most runs have no settings file, and start-up is a feature

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingsFileError(f"{path}:{line}: not valid TOML: not UTF-8") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        line = int(where[1]) if where and where[1] else text.rstrip("\n").count("\n") + 1
        reason = str(error)[: where.start()] if where else str(error)
        raise SettingsFileError(f"{path}:{line}: not valid TOML: {reason}") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, brackets 1,000 deep
        raise SettingsFileError(f"{path}: not valid TOML: {type(error).__name__}") from error
