"""Makes a task's prompt from a command file if the user's prompt calls a command (`/name`), and puts the files that a
prompt names by `@path` below its text.

ralph runs each shell line of a command file and reads each file by a tool call, to which all rules of the run apply.
The rules in a command file's frontmatter apply during its task in addition: they can only forbid calls. If the file
requests a protection that ralph does not have, ralph runs nothing.
"""

from __future__ import annotations

import re
import shlex
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.agent.tool_turn import PromptCalls, PromptRefusedError
from ralph.permissions.gate import CommandRules, RulesInForce
from ralph.permissions.rule import Effect, parse_rule
from ralph.prompt.commands import Command, CommandCall, as_names, as_text, read_command
from ralph.prompt.judged_file import path_of_file
from ralph.prompt.memory import imported_paths, is_meant_as_path
from ralph.run.permission_rules import judge_by
from ralph.values.answer import Block, Runnable
from ralph.values.claude_file import misspelt
from ralph.values.events import Notice
from ralph.values.tool_choice import READ_ONLY, TOOL_NAMES, is_elsewhere, known_name, tool_of, with_background

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.permissions.judge import Permissions
    from ralph.permissions.rule import PermissionRule
    from ralph.prompt.commands import Command
    from ralph.values.ports import Events

ALLOWED, FORBIDDEN = "allowed-tools", "disallowed-tools"
# Fields that change how a command runs, and that ralph does not honour. None of them is a guard.
_NOT_HONOURED = ("model", "effort", "context", "agent", "shell")
# Each costs a call and a part of the prompt. Nobody names more.
_MOST_FILES = 20
_MOST_BYTES = 1_000_000
# A long text is a log or source code, in which most names are not files.
_MOST_SEARCHED = 1_000_000
_MOST_NAMES = 1000


class CommandPrompt(Struct, frozen=True):
    """Makes the prompt of one task from a command file. `make` is called after the task has begun."""

    call: CommandCall
    cwd: Path
    home: str
    session_id: str
    rules: RulesInForce
    events: Events
    above: str = ""
    """The text before the call in the user's prompt, such as a loop's text. It is not an argument of the command."""
    below: str = ""
    """The text after the call, such as piped data. It is not an argument either."""

    @property
    def name(self) -> str:
        return f"/{self.call.file.name}"

    def make(self, calls: PromptCalls) -> str | list[Block]:
        """Makes the prompt. Raises PromptRefusedError if a rule forbids a shell line, or if the command file is
        faulty.
        """
        command, rules = self._read()
        self.rules.begin_task(rules)
        self._announce(command, rules.tools)
        facts = {
            "CLAUDE_SKILL_DIR": str(Path(command.file.path).parent),
            "CLAUDE_SESSION_ID": self.session_id,
        }
        expansion = expand(command, self.call.arguments, facts)
        # All of them are judged before the first one runs.
        parts = [self._judged(part, calls) for part in expansion.parts]
        shown = [part if isinstance(part, str) else self._output(part, calls) for part in parts]
        if command.file.is_skill:
            shown.insert(0, f"Base directory of this skill: {facts['CLAUDE_SKILL_DIR']}\n\n")
        texts = (self.above.strip(), "".join(shown).strip(), self.below.strip())
        text = "\n\n".join(filter(None, texts))
        if not text:
            raise PromptRefusedError(f"{self.name} has no text: {command.file.path}")
        return with_files(
            text, expansion.own_text, calls, cwd=self.cwd, events=self.events, command=self.name
        )

    def _read(self) -> tuple[Command, CommandRules]:
        try:
            command = read_command(self.call.file)
            rules = rules_of_command(command, self.cwd, self.home)
        except ValueError as error:
            raise PromptRefusedError(f"{self.name} is not run: {self.call.file.path}: {error}") from None
        if command.fields.get("hooks"):
            why = "it has hooks, which ralph does not run for a single command: put them into ~/.claude/settings.json"
            raise PromptRefusedError(f"{self.name} is not run: {command.file.path}: {why}")
        return command, rules

    def _announce(self, command: Command, tools: frozenset[str] | None) -> None:
        self._tell(f"{self.name} is {command.file.path}")
        if tools is not None:
            self._tell(f"{self.name} allows these tools alone: {', '.join(sorted(tools)) or 'none'}")
        ignored = [f"{key}: {as_text(command.fields[key])}" for key in _NOT_HONOURED if key in command.fields]
        if ignored:
            self._tell(f"{self.name} asks for {', '.join(ignored)}, which has no effect")
        if may_count_from_1(command.body):
            self._tell(
                f"{self.name} uses $1 and not $0: the first argument is $0 now, as in Claude Code, and $1 the second"
            )

    def _tell(self, text: str) -> None:
        self.events.emit(Notice(text))

    def _judged(self, part: str | ShellLine, calls: PromptCalls) -> str | Runnable:
        if isinstance(part, str):
            return part
        judged = calls.judge("Bash", {"command": part.command})
        if isinstance(judged, Runnable):
            return judged
        raise PromptRefusedError(f"{self.name} needs Bash {part.command}: {judged.content}")

    def _output(self, part: Runnable, calls: PromptCalls) -> str:
        content = calls.run(self.name, part).content
        return content if isinstance(content, str) else ""


def rules_of_command(command: Command, cwd: Path, home: str) -> CommandRules:
    """Reads the rules in a command file. Raises ValueError for a key or a rule that ralph cannot apply."""
    name = f"/{command.file.name}"
    found = misspelt(command.fields, (ALLOWED, FORBIDDEN, "hooks"))
    if found is not None:
        raise ValueError(f"{found[0]} is not known, and is perhaps meant as {found[1]}; nothing was run")
    allowed, forbidden = _names(command, ALLOWED), _names(command, FORBIDDEN)
    if ALLOWED not in command.fields and not forbidden:
        return CommandRules(name)
    tools = with_background(map(tool_of, allowed)) if ALLOWED in command.fields else frozenset(TOOL_NAMES)
    offered = frozenset(TOOL_NAMES) & ((tools | set(READ_ONLY)) - set(map(known_name, forbidden)))
    has_patterns = any("(" in entry for entry in (*allowed, *forbidden))
    return CommandRules(name, offered, _patterns(command, cwd, home) if has_patterns else None)


def _names(command: Command, key: str) -> tuple[str, ...]:
    """The entries of the field `key` that begin with the name of one of ralph's tools. Leaves out entries for tools
    that only other agents have. Raises ValueError for an unknown tool.
    """
    names = as_names(command.fields.get(key, ()))
    for name in names:
        if tool_of(name) not in TOOL_NAMES and not is_elsewhere(name):
            raise ValueError(f"{key} has {name}: no tool is called so; nothing was run")
    return tuple(name for name in names if tool_of(name) in TOOL_NAMES)


def _patterns(command: Command, cwd: Path, home: str) -> Permissions:
    def rules(key: str, effect: Effect) -> list[PermissionRule]:
        return [parse_rule(name, effect, command.file.path) for name in _names(command, key)]

    allowed = rules(ALLOWED, Effect.ALLOW) if ALLOWED in command.fields else None
    denied = [rule for rule in rules(FORBIDDEN, Effect.DENY) if rule.pattern is not None]
    return judge_by(denied, allowed, str(cwd), home)


def with_files(
    text: str, naming: str, calls: PromptCalls, *, cwd: Path, events: Events, command: str = ""
) -> str | list[Block]:
    """The text with the contents of the files that its part `naming` names. The result is a list of blocks if one of
    the files is an image.

    `command` is the command whose file contains the names, or empty if the user's own prompt contains them. A notice
    names each file that is left out.
    """
    teller = command or "the prompt"
    texts = [text]
    images: list[Block] = []
    left = _MOST_BYTES
    for name, path in _files(naming, teller, cwd, events):
        judged = calls.judge("Read", {"file_path": path})
        output = calls.run(command, judged) if isinstance(judged, Runnable) else judged
        size = len(str(output.content).encode("utf-8", "replace"))
        if output.is_error or size > left:
            why = output.content if output.is_error else "the files in a prompt exceed 1 MB in total"
            events.emit(Notice(f"{teller} names @{name}, which is not in the prompt: {why}"))
            continue
        left -= size
        if isinstance(output.content, str):
            texts.append(f"Contents of {name}:\n\n{output.content}")
        else:
            images += output.content
    whole = "\n\n".join(filter(None, texts))
    return [{"type": "text", "text": whole}, *images] if images else whole


def _files(naming: str, teller: str, cwd: Path, events: Events) -> Iterator[tuple[str, str]]:
    """Yields the name and the path of each file to read. Leaves out names that lead to no file."""
    count = 0
    for name in islice(imported_paths(naming[:_MOST_SEARCHED]), _MOST_NAMES):
        path = path_of_file(name, cwd)
        if path is not None and path.endswith("/"):
            events.emit(
                Notice(
                    f"{teller} names @{name}, which is a directory: ralph added none of its files to the prompt"
                )
            )
        elif path is not None:
            count += 1
            if count <= _MOST_FILES:
                yield name, path
        elif is_meant_as_path(name):
            events.emit(Notice(f"{teller} names @{name}, which is not a file"))
    if count > _MOST_FILES:
        events.emit(Notice(f"{teller} names {count} files: only the first {_MOST_FILES} are in the prompt"))


# --- Placeholders in a command's text, for arguments and for the output of shell lines. They are searched for only in the
# text of the file, so that an argument cannot add a shell line.

# A block of shell lines, and one line: !`...` at the beginning of a word.
_SHELL = re.compile(
    r"^```![^\S\n]*\n(?P<block>.*?)\n?```|(?:^|(?<=\s))!`(?P<line>[^`\n]+)`", re.MULTILINE | re.DOTALL
)
_PLACE = re.compile(
    r"\$ARGUMENTS\[(?P<index>\d+)\]|\$\{?(?P<all>ARGUMENTS)\b\}?|\$(?P<number>\d+)"
    r"|\$\{(?P<fact>CLAUDE_\w+)\}|\$(?P<name>[A-Za-z][\w-]*)"
)
_COUNTED_FROM_1 = re.compile(r"\$1(?!\d)")
_COUNTS_FROM_0 = re.compile(r"\$0(?!\d)|\$ARGUMENTS\[")


class ShellLine(Struct, frozen=True):
    """A shell command in a command's text, which its output replaces in the prompt."""

    command: str


class Expansion(Struct, frozen=True):
    """The text of a command with its arguments, split into plain text and lines to run in a shell."""

    parts: tuple[str | ShellLine, ...]

    @property
    def own_text(self) -> str:
        """The text without shell lines, which alone names files."""
        return "".join(part if isinstance(part, str) else " " for part in self.parts)


def expand(command: Command, arguments: str, facts: Mapping[str, str]) -> Expansion:
    """Inserts the arguments into the command's text. `facts` maps names such as `CLAUDE_SESSION_ID` to their values. Numbered
    placeholders count from 0, and stay without an argument, as in Claude Code. If no placeholder is replaced, the arguments
    are added at the end.
    """
    filling = _Filling(command, arguments, facts)
    parts: list[str | ShellLine] = []
    end = 0
    for found in _SHELL.finditer(command.body):
        parts.append(filling.filled(command.body[end : found.start()]))
        shell = found["block"] if found["block"] is not None else found["line"]
        parts.append(ShellLine(filling.filled(shell).strip()))
        end = found.end()
    parts.append(filling.filled(command.body[end:]))
    if arguments and not filling.has_place:
        parts.append(f"\n\nARGUMENTS: {arguments}")
    return Expansion(tuple(part for part in parts if part))


def may_count_from_1(body: str) -> bool:
    """Whether a command's text has `$1` and not `$0`, as for ralph 0.1.0, which counted from 1."""
    return _COUNTED_FROM_1.search(body) is not None and _COUNTS_FROM_0.search(body) is None


class _Filling:
    def __init__(self, command: Command, arguments: str, facts: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._words = _words(arguments)
        self._facts = facts
        self._names = as_names(command.fields.get("arguments", ()))
        self.has_place = False

    def filled(self, text: str) -> str:
        return _PLACE.sub(self._value, text)

    def _value(self, found: re.Match[str]) -> str:
        if found["fact"] is not None:
            return self._facts.get(found["fact"], found[0])
        if found["all"] is not None:
            value: str | None = self._arguments
        elif found["name"] is not None:
            if found["name"] not in self._names:
                return found[0]
            value = self._word(self._names.index(found["name"])) or ""
        elif found["index"] is not None:
            value = self._word(int(found["index"]))
        else:
            value = self._word(int(found["number"]))
        if value is None:
            return found[0]
        self.has_place = True
        return value

    def _word(self, index: int) -> str | None:
        return self._words[index] if 0 <= index < len(self._words) else None


def _words(arguments: str) -> Sequence[str]:
    """Splits the arguments as a shell does. A text with an unclosed quote, such as `don't`, is split at white space."""
    try:
        return shlex.split(arguments)
    except ValueError:
        return arguments.split()
