"""Finds rules and hooks that people wrote for Claude Code, so that ralph can report that it does not apply them.

The files belong to another program, so a mistake in them does not stop a run. At most a megabyte of a file is read. A
pipe is never read, because ralph could wait for it without end.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.machine.repository import up_to_repository_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST_BYTES = 1_000_000
"""The maximum size of a file. A cloned repository may contain files of any size. Nobody writes rules that need more
than a tenth of this maximum."""
_PROJECT_FILES = (".claude/settings.json", ".claude/settings.local.json")
_USER_FILE = ".claude/settings.json"
_LISTS = ("deny", "ask")
_TIGHT_MODES = ("plan", "dontAsk")


def rules_not_honoured(cwd: Path, environment: Mapping[str, str]) -> str | None:
    """One sentence, without a full stop, about all files that contain rules. None if no file contains rules."""
    found = [(path, rules) for path in _files(cwd, environment) if (rules := _rules_in(path)) is not None]
    if not found:
        return None
    listed = "; ".join(f"{path}: {rules}" for path, rules in found)
    return f"not honoured yet, so that no call is stopped by them: {listed}"


def _files(cwd: Path, environment: Mapping[str, str]) -> list[Path]:
    """The paths of the files to look at.

    Each path occurs once, even if the home directory is the working directory.
    """
    files = [directory / name for directory in up_to_repository_root(cwd) for name in _PROJECT_FILES]
    home = Path(environment.get("HOME", ""))
    if home.is_absolute():
        files.append(home / _USER_FILE)
    return list(dict.fromkeys(files))


def _rules_in(path: Path) -> str | None:
    """The names of the rules in a file, or the reason why the file cannot be read.

    None if the file contains no rules.
    """
    try:
        data = _read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"cannot be read ({error.strerror or type(error).__name__}), whatever rules it holds"
    if data is None:
        return "no regular file, whatever rules are behind it"
    if len(data) > _MOST_BYTES:
        return f"more than {_MOST_BYTES:,} bytes, whatever rules it holds"
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return "no valid JSON, whatever rules it holds"
    return ", ".join(_names(document)) or None


def _read(path: Path) -> bytes | None:
    """The content of a file, or None if the path is not a regular file. Raises OSError.

    At most one byte more than the limit is read, which is enough to see that the file is too large.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(_MOST_BYTES + 1)
    finally:
        os.close(descriptor)


def _names(document: Any) -> Iterator[str]:
    """The settings in a file that make Claude Code refuse tool calls, ask about them, or run hooks.

    Rules that only allow tool calls are not reported, because ignoring them takes away no protection.
    """
    if not isinstance(document, dict):
        return
    permissions = document.get("permissions")
    if isinstance(permissions, dict):
        yield from (f"permissions.{name}" for name in _LISTS if permissions.get(name))
        if permissions.get("defaultMode") in _TIGHT_MODES:
            yield "permissions.defaultMode"
    elif permissions:
        yield "permissions"
    hooks = document.get("hooks")
    if any(hooks.values()) if isinstance(hooks, dict) else hooks:
        yield "hooks"
