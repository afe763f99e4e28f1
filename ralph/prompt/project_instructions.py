"""Finds and reads a project's own instructions: CLAUDE.md, else AGENTS.md, in each directory from the working
directory up to the repository's top. It reads at most 32 KB in all and reports a cut.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ralph.machine.repository import up_to_repository_root
from ralph.prompt.system_prompt import MOST_INSTRUCTION_BYTES, ProjectInstructions

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("CLAUDE.md", "AGENTS.md")
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_project_instructions(cwd: Path) -> tuple[tuple[ProjectInstructions, ...], tuple[str, ...]]:
    """The instructions, the outermost first, so that the nearest have the last word; and notices about parts left
    out.

    An unreadable file, or a link that leads out of the repository, counts as absent. When all together exceed 32
    KB, the nearest are kept and the outer ones are cut.
    """
    left = MOST_INSTRUCTION_BYTES
    found: list[ProjectInstructions] = []
    notices: list[str] = []
    directories = up_to_repository_root(cwd)
    top = str(directories[-1])
    for directory in directories:
        for name in NAMES:
            data = _read(str(directory / name), top, left + 1, notices)
            if data is None:
                continue
            if data[:left].strip():
                text = data[:left].decode("utf-8", "ignore" if len(data) > left else "replace")
                found.append(ProjectInstructions(str(directory / name), text, was_cut=len(data) > left))
                left -= min(left, len(data))
            break
    return tuple(reversed(found)), tuple(notices)


def _read(path: str, top: str, most_bytes: int, notices: list[str]) -> bytes | None:
    """The content; None when the repository has no such file, or it cannot be read. A FIFO of that name does not
    block.
    """
    try:
        fd = os.open(path, _FLAGS | os.O_NOFOLLOW)
    except OSError:
        if not os.path.islink(path):  # noqa: PTH114 - it is a str
            return None
        return _read_link(path, top, most_bytes, notices)
    return _content(fd, most_bytes)


def _read_link(path: str, top: str, most_bytes: int, notices: list[str]) -> bytes | None:
    from ralph.prompt.named_file import why_not_of_repository  # noqa: PLC0415 - few projects have links there

    try:
        fd = os.open(path, _FLAGS)
    except OSError:
        return None
    why = why_not_of_repository(fd, path, top)
    if why is None:
        return _content(fd, most_bytes)
    os.close(fd)
    notices.append(f"{path} is left out: {why}")
    return None


def _content(fd: int, most_bytes: int) -> bytes | None:
    try:
        return os.read(fd, most_bytes) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(fd)
