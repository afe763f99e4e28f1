"""Finds and reads TOML files of settings, says which of them are trusted, and judges their shape.

`ralph/settings/merge.py` says which keys there are. Refuses unknown tables and keys, and what could hang or flood a
run (a pipe, a device, over a megabyte), each in one line that names the file.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

LOCAL_FILE = "ralph.toml"
"""In the working directory."""
MAX_BYTES = 100_000
"""Nobody writes a tenth of this; a cloned repository may hold anything."""
_MOST_DOTS_IN_LINE = 100
"""A key stands in one line, and tomllib's time and memory grow with the square of its parts: 80 KB take all memory."""
_MOST_LEVELS = 50
"""Nested tables and lists; settings have five levels. A walk through 200 and more would overflow the stack."""
_MOST_LINKS = 40
"""Linux follows no more of them in one path."""


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


class RecordedFile(Struct, frozen=True):
    """A file as it was when the loop began."""

    path: str
    """Absolute."""
    text: str | None
    """The text; None: the file was not there."""


class SettingsFile(Struct, frozen=True):
    """One file that settings may come from, as it was at one moment."""

    path: Path
    is_trusted: bool
    """False: it lies in the working directory, so that it may have come with a repository or be an agent's."""
    data: bytes | None
    """The content; None: there is no such file."""
    is_named: bool = False
    """Named by `--config`."""


def find_settings_files(
    environment: Mapping[str, str],
    cwd: Path,
    config_file: Path | None,
    known: Mapping[str, bytes | None] = MappingProxyType({}),
) -> tuple[SettingsFile, ...]:
    """A value for each place that may hold settings, from the weakest to the strongest. `config_file` is `--config`.

    `known`: the content of some paths, which are then not read. Raises SettingsFileError.
    """

    def file_at(path: Path, *, is_trusted: bool, is_named: bool = False) -> SettingsFile:
        data = known[str(path)] if str(path) in known else read_settings_file(path, required=is_named)
        return SettingsFile(path, is_trusted, data, is_named)

    files = []
    user_file = user_settings_path(environment)
    local_file = cwd / LOCAL_FILE
    named_file = None if config_file is None else cwd / config_file
    places = {} if user_file is None else {user_file: not leads_through(user_file, cwd)}
    places[local_file] = False
    for path, is_trusted in places.items():
        if (
            is_trusted or named_file is None or not _is_same(named_file, path)
        ):  # named by the user, it is trusted
            files.append(file_at(path, is_trusted=is_trusted))
    if named_file is not None:
        files.append(file_at(named_file, is_trusted=True, is_named=True))
    return tuple(files)


def leads_through(path: Path, directory: Path) -> bool:
    """Whether the absolute path passes through the directory, links followed: what lies there decides which file it means."""
    fence = os.path.realpath(directory)
    inside = fence.rstrip(os.sep) + os.sep
    at, links = os.sep, 0
    left = [*reversed(path.parts[1:])]
    while left:
        part = left.pop()
        if part == os.pardir:
            at = os.path.dirname(at)  # noqa: PTH120 - without links by now
            continue
        here = os.path.join(at, part)  # noqa: PTH118 - the path is walked as the system walks it
        if here.startswith(inside):
            return True
        try:
            target = os.readlink(here)  # noqa: PTH115
        except OSError:  # no link, or nothing at all
            at = here
            continue
        links += 1
        if links > _MOST_LINKS:
            return True  # the system does not follow it either
        at = os.sep if target.startswith(os.sep) else at
        left += reversed([one for one in Path(target).parts if one != os.sep])
    return False


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def read_settings_file(path: Path, *, required: bool = False) -> bytes | None:
    """The content; None: there is no such file, and it is not `required`. Raises SettingsFileError."""
    try:
        # Not blocking: an agent could have put a pipe there.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SettingsFileError(f"{path}: not a regular file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError) as error:
        if not required:
            return None
        raise SettingsFileError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise SettingsFileError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from error
    if len(data) > MAX_BYTES:
        raise SettingsFileError(f"{path}: larger than {MAX_BYTES} bytes")
    return data


def flattened(
    document: Mapping[str, Any], path: Path, allowed: Mapping[str, Collection[str]], lists: Collection[str]
) -> dict[str, Any]:
    """`{"model": {"name": x}}` -> `{"model.name": x}`. `allowed` holds the keys of each table.

    A value under one of `lists` is kept as it is.
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


def parsed(path: Path, data: bytes) -> dict[str, Any]:
    """The file's tables. Raises SettingsFileError."""
    import tomllib  # noqa: PLC0415 - most runs have no settings file, and start-up is a feature

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingsFileError(f"{path}:{line}: not valid TOML: not UTF-8") from error
    for line, content in enumerate(text.split("\n"), start=1):
        if content.count(".") > _MOST_DOTS_IN_LINE:
            raise SettingsFileError(f"{path}:{line}: more than {_MOST_DOTS_IN_LINE} dots in a line")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        line = int(where[1]) if where and where[1] else text.rstrip("\n").count("\n") + 1
        reason = str(error)[: where.start()] if where else str(error)
        raise SettingsFileError(f"{path}:{line}: not valid TOML: {reason}") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, brackets 1,000 deep
        raise SettingsFileError(f"{path}: not valid TOML: {type(error).__name__}") from error
    if _is_deeper(document, _MOST_LEVELS):
        raise SettingsFileError(f"{path}: tables and lists are nested deeper than {_MOST_LEVELS} levels")
    return document


def _is_deeper(document: dict[str, Any], most_levels: int) -> bool:
    """Whether it has more levels. It is walked level by level: recursion would end at Python's own limit."""
    level: list[Any] = [document]
    for _ in range(most_levels):
        inner = [one for each in level for one in (each.values() if isinstance(each, dict) else each)]
        level = [one for one in inner if isinstance(one, dict | list)]
        if not level:
            return False
    return True
