"""Reads one settings file (TOML). This module imports little, because the shell's completion reads the names of targets
while the user waits. `files.py` says which files are read and which are trusted.

It refuses a file that could block a run or fill its memory: a pipe, a device, or a file that is too large. Each error
is one line that names the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.machine.files.opened_file import open_regular_file
from ralph.values.nesting import is_deeper
from ralph.values.outcome import CannotError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_BYTES = 100_000
"""The maximum size of a settings file. A cloned repository may contain files of any size. Nobody writes more than a
tenth."""
_MOST_DOTS_IN_LINE = 100
"""The maximum number of dots in a line. tomllib splits a key at its dots, and the time and memory for that grow with
the square of their number. A line with 80,000 dots can take all memory."""
_MOST_LEVELS = 50
"""The maximum nesting of tables and lists. Settings need five levels. With 200, recursive code would overflow the
stack."""


class SettingsFileError(CannotError):
    """A settings file cannot be used, or a file given with `--config` does not exist. The message has the path, the
    line number if known, and the reason.
    """


def user_settings_path(environment: Mapping[str, str]) -> Path | None:
    """The path of the user's `config.toml`, which need not exist. None if neither XDG_CONFIG_HOME nor HOME is an
    absolute path.

    The XDG specification requires that relative paths are ignored. They would lead into the working directory.
    """
    config_home = environment.get("XDG_CONFIG_HOME", "")
    if Path(config_home).is_absolute():
        return Path(config_home, "ralph", "config.toml")
    home = Path(environment.get("HOME", ""))
    return home / ".config" / "ralph" / "config.toml" if home.is_absolute() else None


def read_settings_file(path: Path, *, required: bool = False) -> bytes | None:
    """The content of a settings file. If it does not exist, the result is None, unless `required` is True. Raises
    SettingsFileError if the file cannot be used.
    """
    try:
        with os.fdopen(open_regular_file(path), "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        if not required:
            return None
        raise SettingsFileError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        why = f"cannot be read: {getattr(error, 'strerror', error)}{about_home(path)}"
        raise SettingsFileError(f"{path}: {why}") from error
    if len(data) > MAX_BYTES:
        raise SettingsFileError(f"{path}: larger than {MAX_BYTES} bytes")
    return data


def about_home(path: Path) -> str:
    """Advice for an error about a file below a home directory of another user, as in a container whose user was
    changed. Empty for any other file.
    """
    home = os.environ.get("HOME", "")
    if not home or not path.is_relative_to(home) or os.access(home, os.R_OK | os.X_OK):
        return ""
    return f" (HOME is {home}, which uid {os.geteuid()} may not read: set HOME to a directory of that user)"


def parsed(path: Path, data: bytes) -> dict[str, Any]:
    """The tables of a settings file. Raises SettingsFileError if the content is not valid TOML or exceeds a limit."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingsFileError(f"{path}:{line}: not valid TOML: not UTF-8") from error
    for line, content in enumerate(text.split("\n"), start=1):
        if content.count(".") > _MOST_DOTS_IN_LINE:
            raise SettingsFileError(f"{path}:{line}: more than {_MOST_DOTS_IN_LINE} dots in a line")
    import tomllib  # noqa: PLC0415 - 1 ms, and many runs have no settings file

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        line = int(where[1]) if where and where[1] else text.rstrip("\n").count("\n") + 1
        reason = str(error)[: where.start()] if where else str(error)
        raise SettingsFileError(f"{path}:{line}: not valid TOML: {reason}") from error
    except (ValueError, RecursionError) as error:  # 5,000 digits, lists 1,000 deep
        raise SettingsFileError(f"{path}: not valid TOML: {type(error).__name__}") from error
    if is_deeper(document, _MOST_LEVELS + 1):  # the last level is that of values
        raise SettingsFileError(f"{path}: tables and lists are nested deeper than {_MOST_LEVELS} levels")
    return document


def named_targets(named: str | None) -> Iterator[tuple[str, str]]:
    """The names of the targets in the user's settings, and in the file `named`, each with a description."""
    for path in (user_settings_path(os.environ), Path.cwd() / Path(named).expanduser() if named else None):
        try:
            data = None if path is None else read_settings_file(path)
            targets = parsed(path, data).get("targets", []) if path is not None and data else []
        except SettingsFileError:  # `ralph doctor` reports it
            continue
        for target in targets if isinstance(targets, list) else []:
            if isinstance(target, dict) and isinstance(target.get("name"), str):
                yield target["name"], f"target: {target.get('model', '')}"
