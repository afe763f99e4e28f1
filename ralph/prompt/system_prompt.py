"""The system prompt: who the agent is, where it is, and the project's instructions. Pure and free of the clock:
it must not change within a session, or the prompt cache and the thinking signatures are lost.
"""

from __future__ import annotations

from msgspec import Struct

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


class ProjectInstructions(Struct, frozen=True):
    """A project's CLAUDE.md or AGENTS.md. `was_cut`: only the first 32 KB are here."""

    path: str
    text: str
    was_cut: bool = False


class PromptParts(Struct, frozen=True):
    cwd: str
    platform: str
    replacement: str | None = None
    """Takes the place of ralph's own words (`--system-prompt`)."""
    appendix: str | None = None
    """Goes to the very end (`--append-system-prompt`)."""
    instructions: tuple[ProjectInstructions, ...] = ()


def system_prompt(parts: PromptParts) -> str:
    """The parts in order, a blank line between them."""
    identity = IDENTITY.format(platform=parts.platform, cwd=parts.cwd)
    sections = [identity if parts.replacement is None else parts.replacement]
    for instructions in parts.instructions:
        note = f"\n[cut after {MOST_INSTRUCTION_BYTES // 1024} KB]" if instructions.was_cut else ""
        sections.append(f"# Project instructions ({instructions.path})\n\n{instructions.text.strip()}{note}")
    if parts.appendix is not None:
        sections.append(parts.appendix)
    return "\n\n".join(section for section in sections if section.strip())
