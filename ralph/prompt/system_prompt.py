"""Makes the system prompt: the role of the agent, its working directory, and the project's instructions.

The system prompt contains no time, because it must not change during a session: a change would invalidate the prompt
cache and the signatures of thinking. The project's instructions are the files CLAUDE.md in each directory from the
working directory up to the top of the repository. A directory without CLAUDE.md may have AGENTS.md instead. All files
together may have 32 KB.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.repository import up_to_repository_root

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = """\
You are ralph, a software agent that works alone in a directory on a {platform} machine. Nobody is watching and \
nobody can answer questions: decide for yourself, and say what you assumed.

Working directory: {cwd}

- Look before you change: read the files and search instead of guessing.
- Do what the task asks, whole, and no more. Keep to the style of the code around you.
- Check your work with the project's own tests and tools, and mend what you broke.
- Never wait for input, and start nothing that must outlive its command.
- Never reveal or store credentials.
- When the task is done, or cannot be done, end with a short plain answer: what you did, what you checked, \
what is left."""

MOST_INSTRUCTION_BYTES = 32 * 1024
_MOST_SHOWN = f"{MOST_INSTRUCTION_BYTES // 1024} KB"
NAMES = ("CLAUDE.md", "AGENTS.md")
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ProjectInstructions(Struct, frozen=True):
    """The text of a project's CLAUDE.md or AGENTS.md.

    `was_cut` is True if the end of the file is missing because all files together have more than 32 KB.
    """

    path: str
    text: str
    was_cut: bool = False


class PromptParts(Struct, frozen=True):
    cwd: str
    platform: str
    replacement: str | None = None
    """The text that replaces ralph's own system prompt (`--system-prompt`), or None."""
    appendix: str | None = None
    """The text that is added at the end (`--append-system-prompt`), or None."""
    sandbox: str = ""
    """The sentence about the sandbox of commands. Empty if there is nothing to say."""
    instructions: tuple[ProjectInstructions, ...] = ()


def system_prompt(parts: PromptParts) -> str:
    """The system prompt: the parts in order, with blank lines between them."""
    identity = IDENTITY.format(platform=parts.platform, cwd=parts.cwd)
    sections = [identity if parts.replacement is None else parts.replacement, parts.sandbox]
    for instructions in parts.instructions:
        note = f"\n[cut after {_MOST_SHOWN}]" if instructions.was_cut else ""
        sections.append(f"# Project instructions ({instructions.path})\n\n{instructions.text.strip()}{note}")
    if parts.appendix is not None:
        sections.append(parts.appendix)
    return "\n\n".join(section for section in sections if section.strip())


def read_project_instructions(cwd: Path) -> tuple[tuple[ProjectInstructions, ...], tuple[str, ...]]:
    """The instruction files, beginning with the outermost directory, and notices about files that were left out.

    The file nearest to the working directory comes last and so takes precedence. A file that cannot be read is
    ignored, and so is a link that leads out of the repository or to a secret file. If all files together have more
    than 32 KB, the nearest are kept, and the outer ones are cut or left out. A link or an outer file that is left out
    has a notice.
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
            if data and not left:
                notices.append(
                    f"{directory / name} is left out: nearer instruction files use up {_MOST_SHOWN}"
                )
            elif data[:left].strip():
                text = data[:left].decode("utf-8", "ignore" if len(data) > left else "replace")
                found.append(ProjectInstructions(str(directory / name), text, was_cut=len(data) > left))
                left -= min(left, len(data))
            break
    return tuple(reversed(found)), tuple(notices)


def _read(path: str, top: str, most_bytes: int, notices: list[str]) -> bytes | None:
    """The first `most_bytes` of the file. None if there is no such regular file, or if it cannot or must not be read.

    A FIFO with that name does not block. If a link is left out, the reason is added to `notices`.
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
