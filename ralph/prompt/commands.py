"""Finds commands and skills: Markdown files in `.claude/commands` and `.claude/skills` that contain a prompt or instructions.
Of several with one name, the user's own counts, then the nearest, and in one folder a skill before a command. A file is
read only when it is called or, for a skill, when its description is needed.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.files.paths import up_to_repository_root
from ralph.prompt.judged_file import ALL_SOURCES, Place, entries_for_model, markdown_below, read_for_model
from ralph.values.outcome import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MOST_COMMAND_BYTES = 256 * 1024
# The one rule for names: what a file may be called is what a prompt can call. A path has a second slash.
_NAME = r"\w[^\s/]*"
_CALLED = rf"/({_NAME})(?:\s+|$)"


Field = str | tuple[str, ...]
"""The value of a field in the frontmatter of a Markdown file."""


class CommandFile(Struct, frozen=True):
    """A file that a prompt can call as `/name`."""

    name: str
    path: str
    place: Place
    is_skill: bool = False


class Command(Struct, frozen=True):
    file: CommandFile
    fields: dict[str, Field]
    body: str


class CommandCall(Struct, frozen=True):
    file: CommandFile
    arguments: str


class Library(Struct, frozen=True):
    """The commands and skills of a run, by name."""

    files: dict[str, CommandFile] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.files))

    @property
    def skills(self) -> tuple[CommandFile, ...]:
        return tuple(self.files[name] for name in self.names if self.files[name].is_skill)

    def called(self, prompt: str) -> CommandCall | None:
        """The command that the prompt calls at its beginning, or None."""
        begins = re.match(_CALLED, prompt)
        file = None if begins is None else self.files.get(begins[1])
        return None if file is None or begins is None else CommandCall(file, prompt[begins.end() :].strip())

    def why_unknown(self, prompt: str) -> str | None:
        """An error message if the prompt begins with a call of a command that there is not, otherwise None."""
        begins = re.match(_CALLED, prompt)
        if begins is None or begins[1] in self.files:
            return None
        by_lower = {name.lower(): name for name in self.names}
        near = nearest(begins[1].lower(), by_lower)
        meant = f": did you mean /{by_lower[near]}?" if near else ""
        known = ", ".join(f"/{name}" for name in self.names)
        there = (
            f"commands: {known}"
            if known
            else "there are no commands in .claude/commands or ~/.claude/commands"
        )
        return (
            f"there is no command /{begins[1]}{meant} ({there}); to send such text as a prompt, use a pipe, a file or "
            "--disable-slash-commands"
        )


def find_commands(
    cwd: Path,
    user: str | None,
    sources: frozenset[str] = ALL_SOURCES,
    denied: Sequence[str] = (),
    why_not_read: Callable[[str], str | None] | None = None,
) -> Library:
    """Finds those of the repository around the working directory `cwd`, and of the user's folder `user`. `denied` and
    `why_not_read` are as in `read_memory`.
    """
    places: list[tuple[str, Place]] = []
    if user is not None and "user" in sources:
        places.append((user, Place(user, is_users=True, denied=denied, why_not_read=why_not_read)))
    if "project" in sources:
        directories = up_to_repository_root(cwd)
        place = Place(str(directories[-1]), denied=denied, why_not_read=why_not_read)
        places += [(f"{directory}/.claude", place) for directory in directories]
    files: dict[str, CommandFile] = {}
    for folder, place in places:
        for name in entries_for_model(f"{folder}/skills", place, _is_name):
            path = f"{folder}/skills/{name}/SKILL.md"
            if os.path.isfile(path):  # noqa: PTH113 - strings throughout
                files.setdefault(name, CommandFile(name, path, place, is_skill=True))
        for name, path in markdown_below(f"{folder}/commands", place, _is_name):
            called = name.replace("/", ":")
            files.setdefault(called, CommandFile(called, path, place))
    return Library(files)


def read_command(file: CommandFile) -> Command:
    """Reads a command file. If the file cannot be used, raises ValueError with the reason."""
    fields, body = split_frontmatter(read_for_model(file.path, file.place, MOST_COMMAND_BYTES))
    return Command(file, fields, body.strip())


def _is_name(name: str) -> bool:
    return re.fullmatch(_NAME, name) is not None and name.isprintable()


# --- The list of skills
# It has the name and the purpose of each skill, and the file to read.

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
    names: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


def list_skills(files: Sequence[CommandFile]) -> SkillList:
    """Lists these skills, in their order and within 8 KB. What ralph cannot keep is left out, with a notice."""
    lines, names, notices = [_INTRODUCTION], [], []
    left = MOST_LIST_BYTES - len(_INTRODUCTION)
    for file in files:
        try:
            line = _skill_line(file, read_command(file))
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


def _skill_line(file: CommandFile, skill: Command) -> str | None:
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


# --- Frontmatter: fields between two lines of `---`, in the part of YAML that people use for Claude Code: scalars, lists,
# block scalars and nested blocks. Any other line is an error, because it could restrict what may run.

_FENCE = "---"
_KEY = r"([A-Za-z][\w-]*)[ \t]*:(?:[ \t]+(.*))?$"
_ITEM = r"[ \t]*-[ \t]+(.*)$"
# The parts of a list in brackets: quoted texts, and words that may have a pattern in parentheses.
_PART = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'|(?:[^,(]|\([^)]*\))+"


def split_frontmatter(text: str) -> tuple[dict[str, Field], str]:
    """The fields of the frontmatter, if there is one, and the text after it. The value of a nested block is its text. Raises
    ValueError with the first line that is not supported.
    """
    lines = text.split("\n")
    ends = [index for index, line in enumerate(lines) if index and line.rstrip() == _FENCE]
    if lines[0].rstrip() != _FENCE:
        return {}, text
    if not ends:
        if re.match(_KEY, lines[1] if len(lines) > 1 else ""):
            raise ValueError(f"its head has no end: no line is {_FENCE}")
        return {}, text
    return _fields(lines[1 : ends[0]]), "\n".join(lines[ends[0] + 1 :])


def _fields(lines: Sequence[str]) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key = re.match(_KEY, line)
        if key is None or key[1] in fields:
            raise ValueError(f"line {index + 1} of its head is not understood")
        start = index
        while index < len(lines) and not _begins_field(lines[index]):
            index += 1
        written = (key[2] or "").strip()
        below = lines[start:index]
        if written and not all(line[:1].isspace() or line[0] == "]" for line in below if line):
            raise ValueError(f"the value of {key[1]} in its head is not understood: items below a text")
        fields[key[1]] = _value(written, below)
    return fields


def _begins_field(line: str) -> bool:
    """Whether the line begins a field. Otherwise it continues one, as the end of a list in brackets does."""
    return bool(line.strip()) and not line[0].isspace() and line[0] != "]" and re.match(_ITEM, line) is None


def _value(written: str, below: Sequence[str]) -> Field:
    """`written` is the text after the key, and `below` are the lines that follow."""
    if written[:1] in {"|", ">"}:
        return ("\n" if written[0] == "|" else " ").join(line.strip() for line in below).strip()
    items = [re.match(_ITEM, line) for line in below if line.strip()]
    if not written and items and all(items):
        return tuple(_scalar(item[1].strip()) for item in items if item is not None)
    whole = " ".join(filter(None, [written, *(line.strip() for line in below)]))
    if whole.startswith("[") and whole.endswith("]"):
        return tuple(_scalar(part.strip()) for part in re.findall(_PART, whole[1:-1]) if part.strip())
    if not written:
        return "\n".join(below).strip()
    return " ".join([_scalar(written), *(line.strip() for line in below)]).strip()


def _scalar(written: str) -> str:
    if written[:1] == written[-1:] == "'" and len(written) > 1:
        return written[1:-1].replace("''", "'")
    if written[:1] == written[-1:] == '"' and len(written) > 1:
        try:
            return str(json.loads(written))
        except ValueError:
            return written[1:-1]
    return written.partition(" #")[0].rstrip()


def as_names(field: Field) -> tuple[str, ...]:
    """The names in a list, or in a text in which commas or white space separate them."""
    words = (field,) if isinstance(field, str) else field
    return tuple(name for word in words for name in re.findall(r"[^\s,(]+(?:\([^)]*\))?", word))


def as_text(field: Field) -> str:
    """The value of the field as one line of text."""
    return " ".join((field if isinstance(field, str) else ", ".join(field)).split())
