"""Finds and reads settings files (TOML), decides which are trusted, and checks their form.

Refuses unknown tables and keys, and files that could hang or flood a run (a pipe, a device, over a megabyte), each
in one line that names the file.
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
"""The path of the settings file in the working directory."""
MAX_BYTES = 100_000
"""Ten times as much as anyone writes; a cloned repository may contain anything."""
_MOST_DOTS_IN_LINE = 100
"""The most dots in a line, and so in a key: tomllib's time and memory grow with their square, and 80 KB of them
take all memory."""
_MOST_LEVELS = 50
"""The deepest nesting of tables and lists. Settings need five; a walk through 200 and more would overflow the
stack."""
_MOST_LINKS = 40
"""Links followed in one path: Linux follows no more."""


class SettingsFileError(Exception):
    """A settings file that exists and cannot be used. The text is one line: path, line number if known, reason."""


def user_settings_path(environment: Mapping[str, str]) -> Path | None:
    """The path of the user's `config.toml`, existing or not; None: neither XDG_CONFIG_HOME nor HOME is an absolute
    path.

    Relative ones are ignored, as the XDG specification demands: they would lead into the working directory.
    """
    config_home = environment.get("XDG_CONFIG_HOME", "")
    if Path(config_home).is_absolute():
        return Path(config_home, "ralph", "config.toml")
    home = Path(environment.get("HOME", ""))
    return home / ".config" / "ralph" / "config.toml" if home.is_absolute() else None


class RecordedFile(Struct, frozen=True):
    """A settings file as it was when the loop began."""

    path: str
    """Absolute."""
    text: str | None
    """The content; None: the file did not exist."""


class SettingsFile(Struct, frozen=True):
    """A settings file as it was when it was read."""

    path: Path
    is_trusted: bool
    """False: it lies in the working directory, so it may come from a repository or an agent."""
    data: bytes | None
    """The content; None: the file does not exist."""
    is_named: bool = False
    """The file was given with `--config`."""


def find_settings_files(
    environment: Mapping[str, str],
    cwd: Path,
    config_file: Path | None,
    known: Mapping[str, bytes | None] = MappingProxyType({}),
) -> tuple[SettingsFile, ...]:
    """One value per place for settings files, from the weakest to the strongest. Raises SettingsFileError.

    `config_file`: the path given with `--config`. `known`: the content of some paths, which are then not read.
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
    """Whether the absolute path, with links followed, passes through the directory.

    If it does, the directory's content decides which file the path means.
    """
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
    """The content; None: the file does not exist and is not `required`. Raises SettingsFileError."""
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
    """`{"model": {"name": x}}` -> `{"model.name": x}`.

    `allowed`: the keys of each table. Values of `lists` stay as they are.
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
    """All keys of the document, in nested tables and lists too: each key's own name and its full name."""
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
    """Whether the document is nested deeper than `most_levels`. Goes level by level: recursion could reach Python's
    limit.
    """
    level: list[Any] = [document]
    for _ in range(most_levels):
        inner = [one for each in level for one in (each.values() if isinstance(each, dict) else each)]
        level = [one for one in inner if isinstance(one, dict | list)]
        if not level:
            return False
    return True
