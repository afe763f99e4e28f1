"""Makes the system prompt. It contains the role of the agent, its working directory, and the project's instructions.

The system prompt contains no time, because it must not change during a session. A change would invalidate the prompt
cache and the signatures of thinking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from ralph.prompt.memory import MemoryFile

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


class PromptParts(Struct, frozen=True):
    cwd: str
    platform: str
    replacement: str | None = None
    """The text that replaces ralph's own system prompt (`--system-prompt`). None if ralph's own is used."""
    appendix: str | None = None
    """The text that is added at the end of the system prompt (`--append-system-prompt`). None if there is none."""
    sandbox: str = ""
    """The sentence about the sandbox in which commands run. Empty if the system prompt says nothing about it."""
    memory: tuple[MemoryFile, ...] = ()
    skills: str = ""
    """The section that lists the skills. Empty if there are none."""


def system_prompt(parts: PromptParts) -> str:
    """Joins the parts of the system prompt in order, with blank lines between them."""
    identity = IDENTITY.format(platform=parts.platform, cwd=parts.cwd)
    sections = [identity if parts.replacement is None else parts.replacement, parts.sandbox]
    sections += [file.section for file in parts.memory]
    sections.append(parts.skills)
    if parts.appendix is not None:
        sections.append(parts.appendix)
    return "\n\n".join(section for section in sections if section.strip())
