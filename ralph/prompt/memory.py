"""Reads the project's memory: files with instructions for models in a repository and in the user's own folder. They are
AGENTS.md, CLAUDE.md, .claude/CLAUDE.md and CLAUDE.local.md in the working directory and above it, up to the top of the
repository, ~/.claude/CLAUDE.md, and .claude/rules beside these. A file may import others by `@path`. All files together may
have 32 KB.

The model gets the instructions for another part of the repository when a tool first touches that part (`NestedMemory`). These
are the files of memory in directories that are not above the working directory, and the rules that name the touched file.

The system prompt contains the role of the agent, its working directory, and these instructions, and no time: a change
during a session would invalidate the prompt cache and the signatures of thinking.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.files.opened_file import closed_after
from ralph.machine.files.paths import is_within, up_to_repository_root
from ralph.prompt.commands import split_frontmatter
from ralph.prompt.judged_file import (
    ALL_SOURCES,
    Place,
    markdown_below,
    open_for_model,
    refuse_binary,
    why_not_for_model,
)
from ralph.values.events import ContextCompacted, Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path


MOST_MEMORY_BYTES = 32 * 1024
MOST_SHOWN = f"{MOST_MEMORY_BYTES // 1024} KB"
# The names in one directory, with the source that each belongs to. The last one counts most.
_NAMES = (
    ("AGENTS.md", "project"),
    ("CLAUDE.md", "project"),
    (".claude/CLAUDE.md", "project"),
    ("CLAUDE.local.md", "local"),
)
# A comma between patterns, and not within braces.
_PATTERN = r"(?:[^,{]|\{[^}]*\}?)+"
# As deep as Claude Code follows imports.
_MOST_DEPTH = 5
# Nobody writes more imports. Each costs the opening of a file.
_MOST_IMPORTS = 100
# What is installed there came with the packages of others, who do not know this project.
_OF_OTHERS = "node_modules"


class MemoryFile(Struct, frozen=True):
    path: str
    text: str
    imported_by: str | None = None
    is_users: bool = False
    was_cut: bool = False
    """True if all files together are too long, and the end of this file was left out."""
    is_rule: bool = False
    """Whether the file is in a folder `.claude/rules`."""
    paths: tuple[str, ...] = ()
    """The patterns of the files for which a rule is. Empty if it holds for all files."""

    @property
    def heading(self) -> str:
        whose = "The user's own instructions" if self.is_users else "Project instructions"
        via = f", imported by {self.imported_by}" if self.imported_by is not None else ""
        about = f", for {', '.join(self.paths)}" if self.paths else ""
        return f"# {whose} ({self.path}{via}{about})"

    @property
    def section(self) -> str:
        """The part of the system prompt that contains this file."""
        note = f"\n[cut after {MOST_SHOWN}]" if self.was_cut else ""
        return f"{self.heading}\n\n{self.text.strip()}{note}"


class Memory(Struct, frozen=True):
    files: tuple[MemoryFile, ...] = ()
    """The user's own file first, and those nearest to the working directory last."""
    notices: tuple[str, ...] = ()
    rules: tuple[MemoryFile, ...] = ()
    """The rules that name the files for which they are. They have no text, because they are not read yet."""
    known: frozenset[tuple[int, int] | str] = frozenset()
    """The device and inode of each file that was read, and the texts."""


def read_memory(
    cwd: Path,
    user: str | None,
    sources: frozenset[str] = ALL_SOURCES,
    denied: Sequence[str] = (),
    why_not_read: Callable[[str], str | None] | None = None,
) -> Memory:
    """Reads the memory of the project around `cwd`, an absolute path without symbolic links, and the user's own in the folder
    `user`. `denied` and `why_not_read` are as in `Place`. What must not or cannot be read is left out, with a notice. If all
    files together are too long, those nearest to `cwd` are kept, and the others are cut or left out, with a notice.
    """
    directories = up_to_repository_root(cwd)
    reader = MemoryReader()
    place = Place(str(directories[-1]), denied=denied, why_not_read=why_not_read)
    groups = [group for directory in directories for group in reader.of_directory(directory, sources, place)]
    if user is not None and "user" in sources:
        users = Place(user, is_users=True, denied=denied, why_not_read=why_not_read)
        groups += [reader.read(f"{user}/CLAUDE.md", users), reader.rules_in(f"{user}/rules", users)]
    return reader.memory([file for group in reversed(groups) for file in group])


def shown_paths(memory: Memory, cwd: Path, home: str) -> dict[str, str]:
    """Maps the path of each file to one relative to the working or the home directory. The user's own come last."""
    files = sorted(memory.files, key=lambda file: file.is_users)
    return {file.path: _shown(file, str(cwd), home.rstrip("/")) for file in files}


def _shown(file: MemoryFile, cwd: str, home: str) -> str:
    path = file.path
    if path.startswith(f"{cwd}/"):
        path = path[len(cwd) + 1 :]
    elif not file.is_users:
        path = os.path.relpath(path, cwd)
    elif home and path.startswith(f"{home}/"):
        path = f"~{path[len(home) :]}"
    return path if file.imported_by is None else f"{path} (imported)"


def _cut(files: Iterable[MemoryFile]) -> Iterator[str]:
    for file in files:
        if file.was_cut:
            yield f"{file.path} was cut: only {MOST_SHOWN} of instructions are read"


class MemoryReader:
    """Reads files until they have 32 KB together. If several names lead to one file, the file is read once."""

    def __init__(self, known: Iterable[tuple[int, int] | str] = ()) -> None:
        """`known` is that of a `Memory`. These files are not read again."""
        self.rules: list[MemoryFile] = []
        """The rules so far that name the files for which they are."""
        self.notices: list[str] = []
        self._left = MOST_MEMORY_BYTES
        self._imports = 0
        self._known: set[tuple[int, int] | str] = set(known)

    def memory(self, files: Sequence[MemoryFile]) -> Memory:
        """The files, with the notices since the last call."""
        notices, self.notices = (*self.notices, *_cut(files)), []
        return Memory(tuple(files), notices, tuple(self.rules), frozenset(self._known))

    def know(self, path: str) -> None:
        """Makes the reader leave out a file whose content the model has seen."""
        self._known.add(_identity(os.stat(path)))  # noqa: PTH116 - it is a str

    def of_directory(
        self, directory: Path | str, sources: frozenset[str], place: Place
    ) -> list[list[MemoryFile]]:
        """Reads the files in one directory, with their imports. The first group counts most, and gets room first."""
        groups = [
            self.read(f"{directory}/{name}", place) for name, source in reversed(_NAMES) if source in sources
        ]
        if "project" in sources:
            groups.append(self.rules_in(f"{directory}/.claude/rules", place))
        return groups

    def rules_in(self, folder: str, place: Place) -> list[MemoryFile]:
        """Reads the rules in a folder that hold for all files."""
        paths = (path for _, path in markdown_below(folder, place, lambda name: name[0] != "."))
        return [file for path in sorted(paths) for file in self.read(path, place, is_rule=True)]

    def read(
        self, path: str, place: Place, *, is_rule: bool = False, paths: tuple[str, ...] = ()
    ) -> list[MemoryFile]:
        """Reads a file and those that it imports. A rule that names the files for which it is, is left out unless `paths` are
        its patterns.
        """
        descriptor = open_for_model(path)
        if descriptor is None:
            if os.path.lexists(path):
                self.notices.append(f"{path} is left out: it cannot be opened")
            return []
        with closed_after(descriptor):
            file = MemoryFile(path, "", is_users=place.is_users, is_rule=is_rule, paths=paths)
            return self._read(descriptor, file, place, 0)

    def _read(self, descriptor: int, file: MemoryFile, place: Place, depth: int) -> list[MemoryFile]:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) and not os.path.islink(file.path):  # noqa: PTH114 - it is a str
            # Prose names directories as `@src/`, which is not an import.
            if file.imported_by is None or not stat.S_ISDIR(status.st_mode):
                self.notices.append(f"{file.path} is left out: it is not a regular file")
            return []
        why = why_not_for_model(descriptor, file.path, place, is_named_by_ralph=file.imported_by is None)
        if why is not None:
            self.notices.append(f"{file.path} is left out: {why}")
            return []
        identity = _identity(status)
        if identity in self._known:
            return []
        self._known.add(identity)
        return self._taken(descriptor, file, place, depth)

    def _taken(self, descriptor: int, file: MemoryFile, place: Place, depth: int) -> list[MemoryFile]:
        try:
            data = os.read(descriptor, MOST_MEMORY_BYTES + 1)
            text, paths = _text_and_patterns(data, is_rule=file.is_rule)
        except OSError as error:
            self.notices.append(f"{file.path} is left out: it cannot be read ({error.strerror})")
            return []
        except ValueError as error:
            self.notices.append(f"{file.path} is left out: {error}")
            return []
        if paths and not file.paths:
            self.rules.append(replace(file, paths=paths))
            self._known.discard(_identity(os.fstat(descriptor)))
            return []
        # Two copies of one text count as one file, such as CLAUDE.md and AGENTS.md.
        if not text.strip() or text.strip() in self._known:
            return []
        if not self._left:
            self.notices.append(f"{file.path} is left out: nearer instruction files already use {MOST_SHOWN}")
            return []
        content = text.encode()
        was_cut = len(data) > MOST_MEMORY_BYTES or len(content) > self._left
        text = content[: self._left].decode("utf-8", "ignore")
        self._known.add(text.strip())
        self._left -= min(self._left, len(content))
        taken = replace(file, text=text, was_cut=was_cut)
        return [taken, *self._imported(taken, place, depth)]

    def _imported(self, file: MemoryFile, place: Place, depth: int) -> Iterator[MemoryFile]:
        if "@" not in file.text:
            return
        for name in imported_paths(file.text):
            path = _resolved(name, file.path)
            descriptor = open_for_model(path)
            if descriptor is None:
                if is_meant_as_path(name):
                    self.notices.append(f"{file.path} imports {name}, which cannot be opened")
                continue
            with closed_after(descriptor):
                if self._has_room(name, file, depth):
                    imported = MemoryFile(path, "", file.path, file.is_users)
                    yield from self._read(descriptor, imported, place, depth + 1)

    def _has_room(self, name: str, importer: MemoryFile, depth: int) -> bool:
        """Whether one more import may be read. If it may not, adds a notice with the name of the import."""
        self._imports += 1
        if depth < _MOST_DEPTH and self._imports <= _MOST_IMPORTS:
            return True
        bound = f"{_MOST_IMPORTS} imports" if depth < _MOST_DEPTH else f"imports {_MOST_DEPTH} deep"
        self.notices.append(f"{importer.path} imports {name}, which is left out: at most {bound} are read")
        return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _text_and_patterns(data: bytes, *, is_rule: bool) -> tuple[str, tuple[str, ...]]:
    """The text in the first bytes of a file, and the patterns in a rule's head. Raises ValueError with the reason."""
    try:
        refuse_binary(data)
    except ValueError as error:
        raise ValueError(f"it {error}") from None
    errors = "ignore" if len(data) > MOST_MEMORY_BYTES else "replace"
    text = data.decode("utf-8", errors).removeprefix("\ufeff")
    if not is_rule:
        return text, ()
    fields, text = split_frontmatter(text.replace("\r\n", "\n"))
    named = fields.get("paths", ())
    words = (named,) if isinstance(named, str) else named
    return text, tuple(one.strip() for word in words for one in re.findall(_PATTERN, word) if one.strip())


def _resolved(name: str, importer: str) -> str:
    if name.startswith("~/"):
        return os.path.expanduser(name)  # noqa: PTH111 - strings throughout
    return os.path.normpath(os.path.join(os.path.dirname(importer), name))  # noqa: PTH118, PTH120 - strings throughout


IDENTITY = """\
You are ralph, a software agent that works alone in a directory on a {platform} machine. Nobody is watching and \
nobody can answer questions: decide for yourself, and say what you assumed.

Working directory: {cwd}

- Look before you change: read the files and search instead of guessing.
- Do what the task asks, whole, and no more. Keep to the style of the code around you.
- Check your work with the project's own tests and tools, and fix what you broke.
- Never wait for input, and start nothing that must outlive its command.
- Never reveal or store credentials.
- When the task is done, or cannot be done, end with a short plain answer: what you did, what you checked, \
what is left."""


class NestedMemory:
    """Knows which instructions the model has. It is an `Events` sink, because a new context lacks them."""

    def __init__(
        self,
        cwd: Path,
        memory: Memory,
        sources: frozenset[str],
        rules: Place,
        matches: Callable[[str, str], bool],
    ) -> None:
        """`memory` is that of the system prompt. `cwd` and `sources` are as in `read_memory`, and `rules` is a place without a
        folder. `matches` takes a pattern of a rule and a relative path.
        """
        self._cwd = str(cwd)
        self._above = tuple(map(str, up_to_repository_root(cwd)))
        self._place = replace(rules, top=self._above[-1])
        self._memory = memory
        self._sources = sources
        self._matches = matches
        self._begin()

    def _begin(self) -> None:
        self._reader = MemoryReader(self._memory.known)
        self._reader.rules = list(self._memory.rules)
        self._touched: set[str] = set()
        self._looked_into = set(self._above)

    def emit(self, event: Event) -> None:
        """Forgets what the model has got if a shorter context has replaced the old one."""
        if isinstance(event, ContextCompacted):
            self._begin()

    def is_new(self, path: str) -> bool:
        """Whether `about` has not been called for this path yet."""
        return path not in self._touched

    def about(self, path: str) -> Memory:
        """The instructions for a file or directory that the model does not have yet."""
        self._touched.add(path)
        named = os.path.expanduser(path)  # noqa: PTH111 - strings throughout
        real = os.path.realpath(os.path.join(self._cwd, named))  # noqa: PTH118 - strings throughout
        if not is_within(real, self._place.top):
            return Memory()
        if os.path.isfile(real):  # noqa: PTH113 - strings throughout
            self._reader.know(real)
        nearest_first = reversed(list(self._on_the_way_to(real)))
        groups = [
            group
            for directory in nearest_first
            for group in self._reader.of_directory(directory, self._sources, self._place)
        ]
        files = [file for group in reversed(groups) for file in group]
        for rule in [rule for rule in self._reader.rules if self._is_about(rule, real)]:
            self._reader.rules.remove(rule)
            users = replace(self._place, top=f"{_base(rule)}/.claude", is_users=True)
            place = users if rule.is_users else self._place
            files += self._reader.read(rule.path, place, is_rule=True, paths=rule.paths)
        return self._reader.memory(files)

    def _on_the_way_to(self, real: str) -> Iterator[str]:
        directory = self._place.top
        for name in os.path.relpath(real, directory).split("/"):
            directory = f"{directory.rstrip('/')}/{name}"
            is_there = os.path.isdir(directory)  # noqa: PTH112 - strings throughout
            if not is_there or name.startswith(".") or name == _OF_OTHERS:
                return
            if directory not in self._looked_into:
                self._looked_into.add(directory)
                yield directory

    def _is_about(self, rule: MemoryFile, real: str) -> bool:
        """Patterns are relative to the directory of `.claude`, and those of the user's own rules to the top of the repository."""
        base = self._place.top if rule.is_users else _base(rule)
        if real == base or not is_within(real, base):
            return False
        return any(self._matches(pattern, os.path.relpath(real, base)) for pattern in rule.paths)


def _base(rule: MemoryFile) -> str:
    return rule.path.rpartition("/.claude/rules/")[0]


class PromptParts(Struct, frozen=True):
    cwd: str
    platform: str
    replacement: str | None = None
    """The text of `--system-prompt`."""
    appendix: str | None = None
    """The text of `--append-system-prompt`."""
    sandbox: str = ""
    memory: tuple[MemoryFile, ...] = ()
    skills: str = ""


def system_prompt(parts: PromptParts) -> str:
    """Joins the parts of the system prompt in order, with blank lines between them."""
    identity = IDENTITY.format(platform=parts.platform, cwd=parts.cwd)
    sections = [identity if parts.replacement is None else parts.replacement, parts.sandbox]
    sections += [file.section for file in parts.memory]
    sections.append(parts.skills)
    if parts.appendix is not None:
        sections.append(parts.appendix)
    return "\n\n".join(section for section in sections if section.strip())


# --- Imported files
# Finds the files that a text imports by `@path`, as CLAUDE.md, commands and prompts do, but not in code. No I/O
# happens here.

# A fence of Markdown: three or more backticks or tildes at the beginning of a line, up to its like or to the end.
_FENCED = r"(?ms)^[ \t]*(`{3,}|~{3,})[^\n]*\n.*?(?:^[ \t]*\1[`~]*[ \t]*$|\Z)"
# A code span of Markdown: as many backticks before it as behind it, within a paragraph.
_SPAN = r"(?s)(?<!`)(`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)\1(?!`)"
# `\ ` stands for a space in a name, as in Claude Code.
_NAMED = r"(?:^|(?<=\s))@((?:\\ |[^\s\\])+)"
_TRAILING = ".,;:!?)]}>*\"'"
_LIKE_A_PATH = r"(?i)(\.{0,2}|~)/.|.*\.(md|txt)$"


def outside_code(text: str) -> str:
    """The text with spaces in place of its code blocks and code spans. The length of the text stays the same."""
    for code in (_FENCED, _SPAN):
        text = re.sub(code, lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def imported_paths(text: str) -> Iterator[str]:
    """Yields each path that the text imports once, without the punctuation after it."""
    known = set()
    for found in re.finditer(_NAMED, outside_code(text)):
        name = found[1].replace("\\ ", " ").partition("#")[0].rstrip(_TRAILING)
        if name and name not in known and not name.startswith("@"):
            known.add(name)
            yield name


def is_meant_as_path(name: str) -> bool:
    """Whether a name after `@` is certainly a path. Other names may be a person, or a package such as `@types/node`."""
    return re.match(_LIKE_A_PATH, name) is not None
