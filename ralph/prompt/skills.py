"""Makes the list of skills for the model, with the name and the purpose of each, and the file to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.prompt.commands import Command, CommandFile, read_command
from ralph.prompt.frontmatter import as_text

if TYPE_CHECKING:
    from collections.abc import Sequence


MOST_LIST_BYTES = 8 * 1024
"""The bound of the list, which each request contains."""
_LONGEST_DESCRIPTION = 500
_INTRODUCTION = """\
# Skills

Each of these files says how to do a kind of task. If one fits your task, Read it first and do as it says. Paths in it \
begin at its own directory.
"""


class SkillList(Struct, frozen=True):
    text: str = ""
    """The section of the system prompt that lists the skills."""
    names: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


def list_skills(files: Sequence[CommandFile]) -> SkillList:
    """Lists these skills, in their order and within 8 KB. What ralph cannot keep is left out, with a notice."""
    lines, names, notices = [_INTRODUCTION], [], []
    left = MOST_LIST_BYTES - len(_INTRODUCTION)
    for file in files:
        try:
            line = _line(file, read_command(file))
        except ValueError as error:
            notices.append(f"{file.path} is left out: {error}")
            continue
        if line is None:
            continue
        left -= len(line.encode("utf-8", "replace")) + 1
        if left < 0:
            notices.append(f"{file.path} is left out: the list of skills would exceed 8 KB")
            continue
        lines.append(line)
        names.append(file.name)
    return SkillList("\n".join(lines) if names else "", tuple(names), tuple(notices))


def _line(file: CommandFile, skill: Command) -> str | None:
    """The line about a skill. None if the skill's author hides the skill from models."""
    if as_text(skill.fields.get("disable-model-invocation", "")).lower() == "true":
        return None
    if skill.fields.get("hooks"):
        raise ValueError("it has hooks, which ralph cannot honour")
    said = [as_text(skill.fields.get(key, "")) for key in ("description", "when_to_use")]
    about = " ".join(filter(None, said)) or skill.body.partition("\n")[0].lstrip("# ")
    if len(about) > _LONGEST_DESCRIPTION:
        about = f"{about[:_LONGEST_DESCRIPTION]}..."
    return f"- {file.name} ({file.path}): {about}"
