"""Find and read a project's own instructions: CLAUDE.md, else AGENTS.md, in each directory from the working
directory up to the repository root. It reads at most 32 KB in all and says when it cut.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ralph.core.system_prompt import MOST_INSTRUCTION_BYTES, ProjectInstructions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("CLAUDE.md", "AGENTS.md")


def read_project_instructions(cwd: Path) -> tuple[ProjectInstructions, ...]:
    """Outermost first, so that what is nearest has the last word. Unreadable files count as absent.

    When all together exceed 32 KB, the nearest are kept and the outer ones are cut.
    """
    left = MOST_INSTRUCTION_BYTES
    found: list[ProjectInstructions] = []
    for directory in up_to_repository_root(cwd):
        for name in NAMES:
            data = _read(directory / name, left + 1)
            if data is None:
                continue
            if data[:left].strip():
                text = data[:left].decode("utf-8", "ignore" if len(data) > left else "replace")
                found.append(ProjectInstructions(str(directory / name), text, was_cut=len(data) > left))
                left -= min(left, len(data))
            break
    return tuple(reversed(found))


def up_to_repository_root(cwd: Path) -> Iterator[Path]:
    """The working directory alone when it is in no repository: what lies above is not this project's."""
    directories = [cwd, *cwd.parents]
    for index, directory in enumerate(directories):
        if os.path.exists(directory / ".git"):  # noqa: PTH110 - Path.exists raises where it may not look
            return iter(directories[: index + 1])
    return iter([cwd])


def _read(path: Path, most_bytes: int) -> bytes | None:
    """None when there is no such regular file, or it cannot be read. A FIFO of that name must not block."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, most_bytes) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(fd)
