"""The hooks of settings files, which are commands: runs them and reads their answers, and decides what they may do beside
commands. `permissions/gate.py` decides when they run and what their answers lead to.

`[hooks]` in the user's own settings file lets hooks write and connect elsewhere, or run outside the sandbox.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.machine.files.paths import is_within_any
from ralph.permissions.gate import HookFailedError
from ralph.permissions.hook_answers import (
    AFTERWARDS,
    GUARDED,
    PROMPT,
    HookAnswer,
    context_answer,
    hook_answer,
)
from ralph.permissions.patterns import ANY
from ralph.permissions.shell import parse_line
from ralph.places.named_paths import absolute_path, shown, with_values
from ralph.places.own_commands import (
    ADVICE,
    ENTERS,
    FINDS_BY_ITSELF,
    digest_of,
    guarding_files,
    why_changeable,
)
from ralph.sandbox.box_plan import BoxPlan, CannotConfineError
from ralph.sandbox.bubblewrap import TEMPORARY
from ralph.sandbox.planning import with_hook_places
from ralph.settings.merge import SettingsError
from ralph.tools.hook_command import HookEnding, run_hook
from ralph.values.events import HookEnded, HookStarted, Notice
from ralph.values.ports import Events, Interrupted
from ralph.values.strict_json import unambiguous_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ralph.machine.own_programs import ProgramSearch
    from ralph.permissions.claude_settings import HookCommand
    from ralph.permissions.patterns import Word
    from ralph.permissions.rule import Matcher
    from ralph.run.opening import SessionParts
    from ralph.run.parts import RunContext
    from ralph.settings.tables import Settings

    RunHook = Callable[[HookCommand, bytes, str], HookEnding]
    """Executes a hook: the hook, the bytes for its standard input, and the text of heartbeats."""

_WORDS = re.compile(r"[\w-]+")
_IN_TEMPORARY = re.compile(rf"(?<![\w./~}}-]){TEMPORARY}/[^\s\"'`;|&()<>]+")
MORE = "[hooks] in your config.toml"
WRITE = "[hooks] write in your config.toml"
_BLOCKED = 2
"""The exit code of a hook's command that refuses the call, the task or the end. Claude Code uses the same code."""

_BLANK = " \t\r\n\ufeff"
"""White space, and the byte order mark that some programs print, may surround an answer."""


def command_hooks(parts: SessionParts) -> CommandHooks:
    """The hooks of a session, run in their sandbox."""
    context = parts.context

    def run_plain(hook: HookCommand, given: bytes, waiting_for: str) -> HookEnding:
        is_guard = hook.event not in AFTERWARDS
        command, limit_s = hook.command, hook.timeout_s
        return run_hook(command, given, limit_s, waiting_for, parts.toolbox.context, is_guard=is_guard)

    run: RunHook = run_plain
    if context.settings.hooks.gives_more and parts.plan.is_confined:
        run = only_unchanged(run, context.cwd, context.environment, context.search())
    if parts.guard_files:
        run = only_as_it_was(run, parts.guard_files)
    return CommandHooks(parts.hooks, run, context.events, is_told=context.options.includes_hook_events)


def plan_of_hooks(
    context: RunContext, hooks: Sequence[HookCommand], plan: BoxPlan
) -> tuple[BoxPlan, tuple[str, ...]]:
    """The sandbox of hooks, made from that of commands, and notices about them. Raises SettingsError."""
    if not plan.is_confined:
        return plan, ()
    search = context.search()
    roots = context.roots()
    made = plan_hooks(context.settings, context.environment, hooks, plan, search=search, roots=roots)
    found = doubts(hooks, made, search.roots, has_more=made is not plan)
    return made, tuple(f"{fact}: {advice}" for fact, advice in found)


def guard_files(context: RunContext, hooks: Sequence[HookCommand]) -> dict[str, str]:
    """The files of hooks that commands could change and that decide about calls, each with the digest of its content."""
    guards = [hook.command for hook in hooks if hook.event in GUARDED]
    known = {**context.environment, "CLAUDE_PROJECT_DIR": str(context.cwd)}
    return guarding_files(guards, str(context.cwd), known, context.search())


class CommandHooks:
    """Implements the port `Hooks`."""

    def __init__(self, hooks: Sequence[HookCommand], run: RunHook, events: Events, *, is_told: bool) -> None:
        """If `is_told` is True, an event is emitted for each command."""
        self._hooks = hooks
        self._run = run
        self._events = events
        self._is_told = is_told
        self._called = 0
        """The number of hook commands that were started. The id of a command in events contains this number."""
        self._told: set[tuple[str, str]] = set()
        """The notices that people got once, each with the command that it is about."""

    def answers(
        self, event: str, fields: Mapping[str, Any], covers: Callable[[Matcher], bool]
    ) -> Sequence[HookAnswer]:
        """Runs the commands of all hooks for an event, one after another, and returns the answers. Raises
        HookFailedError for one that fails before what it is asked about, and Interrupted.
        """
        given = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
        # Claude Code starts equal commands once per event. A shorter time limit would refuse what the longest allows.
        found: dict[str, HookCommand] = {}
        for hook in self._hooks:
            if hook.event == event and covers(hook.calls):
                known = found.get(hook.command, hook)
                found[hook.command] = max(known, hook, key=lambda one: one.timeout_s)
        tool = fields.get("tool_name", "")
        waiting_for = f"the {event} hook" + (f" of {tool}" if tool else "")
        name = f"{event}:{tool}" if tool else event
        endings = [(hook, self._ending(hook, name, given, waiting_for)) for hook in found.values()]
        return [self._answer(hook, ending, event) for hook, ending in endings]

    def _answer(self, hook: HookCommand, ending: HookEnding, event: str) -> HookAnswer:
        try:
            answer = answer_of(ending, event)
        except HookFailedError as error:
            if event not in AFTERWARDS:
                raise HookFailedError(f"{hook.name}: {error}") from error
            self._events.emit(Notice(f"the {event} hook failed: {hook.name}: {error}", is_vital=True))
            return HookAnswer()
        if answer is None and event in GUARDED:
            self._tell_once(hook, "printed text, and no answer: that is no opinion")
        if ending.status == 0 and ending.denied:
            self._tell_once(hook, f"says no failure, but {ending.denied}")
        return replace(answer or HookAnswer(), hook=f"({hook.name})")

    def _tell_once(self, hook: HookCommand, told: str) -> None:
        if (hook.command, told) not in self._told:
            self._told.add((hook.command, told))
            self._events.emit(Notice(f"the {hook.event} hook ({hook.name}) {told}"))

    def _ending(self, hook: HookCommand, name: str, given: bytes, waiting_for: str) -> HookEnding:
        self._called += 1
        hook_id = f"hook_{self._called}"
        if self._is_told:
            self._events.emit(HookStarted(hook_id, name, hook.event))
        try:
            ending = self._run(hook, given, waiting_for)
        except Interrupted as stop:
            self._tell_undone(hook, stop.undone)
            raise
        self._tell_undone(hook, ending.undone)
        if self._is_told:
            errors = ending.errors or ending.problem
            self._events.emit(HookEnded(hook_id, name, hook.event, ending.output, errors, ending.status))
        return ending

    def _tell_undone(self, hook: HookCommand, undone: str) -> None:
        if undone:
            self._events.emit(Notice(f"the {hook.event} hook: {undone}", is_vital=True))


def answer_of(ending: HookEnding, event: str) -> HookAnswer | None:
    """Converts the exit code and the output of a hook's command to the hook's answer. Returns None for text that contains
    no answer. Raises HookFailedError if the hook failed.

    Where the hook can refuse something, output with a `{` must contain exactly one answer: an object that begins a line
    and ends the output. So a refusal behind a line of a log is not lost.
    """
    if ending.status is None:
        raise HookFailedError(ending.problem)
    if ending.status == _BLOCKED:
        return HookAnswer(decision="block", reason=ending.errors or "no reason was given")
    if ending.status != 0:
        said = f": {ending.last_line}" if ending.last_line else ""
        denied = f"; {ending.denied}" if ending.denied else ""
        raise HookFailedError(f"it ended with exit {ending.status}{said}{denied}")
    text = ending.output.strip(_BLANK)
    if not text:
        return HookAnswer()
    before, brace, _ = text.partition("{")
    if not brace or (before and event not in GUARDED):
        return context_answer(text) if event == PROMPT else None
    if before.rpartition("\n")[2].strip(_BLANK):
        raise HookFailedError("its answer is not valid: something precedes it in its line")
    try:
        return hook_answer(unambiguous_json(text.removeprefix(before)))
    except (ValueError, RecursionError) as error:
        raise HookFailedError(f"its answer is not valid: {error}") from error


def plan_hooks(
    settings: Settings,
    environment: Mapping[str, str],
    hooks: Sequence[HookCommand],
    plan: BoxPlan,
    *,
    search: ProgramSearch,
    roots: Sequence[Path],
) -> BoxPlan:
    """The sandbox of the hooks, made from that of commands. `roots` are the directories that commands may write, and begin with
    the working directory. Raises SettingsError for a place that cannot be opened, and for a hook that may not have more than
    commands.
    """
    try:
        found = with_hook_places(plan, settings.hooks, settings.sandbox, environment, roots)
    except CannotConfineError as error:
        raise SettingsError(str(error)) from error
    if found is not plan:
        for hook in hooks:
            why = why_not_outside(hook.command, roots[0], environment, search)
            if why is not None:
                raise SettingsError(f"the {hook.event} hook ({hook.name}) {why}")
    return found


def why_not_outside(
    command: str, cwd: Path, environment: Mapping[str, str], search: ProgramSearch
) -> str | None:
    """The reason why a hook must not run with more rights than commands: they could change what it runs, and so have these rights
    too. None if they cannot, as far as the words of the hook tell.
    """
    known = {**environment, "CLAUDE_PROJECT_DIR": str(cwd)}
    why = why_changeable(command, str(cwd), known, search, takes_data=True, finds_there=True)
    line = parse_line(with_values(command, known, only_sure=True))
    moves = any(one.name in ENTERS for one in line.commands)
    for one in line.redirections if not why else ():
        named = _path_of(one.target, environment)
        is_elsewhere = moves and not (named.startswith("/") or os.path.lexists(cwd / named))
        is_elsewhere |= one.target.parts[:1] == (ANY,)
        root = None if is_elsewhere else search.root_around(str(cwd / named))
        if one.writes and not one.is_harmless and root:
            why = f"it writes {cwd / named} through {root}, where commands may write"
    return f"does not run with what {MORE} gives it: {why}; {ADVICE}" if why else None


def runner_of_the_work(command: str, *, has_more: bool) -> str:
    """The program of a hook that finds what it runs by files of the directory in which it starts. Empty if none is seen. With
    `has_more`, the hook has more rights than commands. Then git counts, which runs what the configuration of a nested repository
    names.
    """
    finding = FINDS_BY_ITSELF | {"git"} if has_more else FINDS_BY_ITSELF
    words = {*_WORDS.findall(command)}
    if finding.isdisjoint(words) or "--script" in words:
        return ""
    names = (one.words[0].text for one in parse_line(command).commands if one.words)
    return next((name for name in names if name in finding), "")


def missing_program(command: str, cwd: Path, environment: Mapping[str, str]) -> str | None:
    """The path of a program that a hook names and that does not exist, or None."""
    known = {"HOME": environment.get("HOME", ""), "CLAUDE_PROJECT_DIR": str(cwd)}
    line = parse_line(with_values(command, known))
    words = (one.words[0] for one in line.commands if one.words and one.words[0].text is not None)
    names = (_path_of(one, environment) for one in words)
    return next((name for name in names if "/" in name and not (cwd / name).exists()), None)


def _path_of(word: Word, environment: Mapping[str, str]) -> str:
    return absolute_path(shown(word.known), "", environment.get("HOME", ""))


def only_unchanged(run: RunHook, cwd: Path, environment: Mapping[str, str], search: ProgramSearch) -> RunHook:
    """The function `run`, but for a hook that may not have more than commands any more: a command has made a file that it names."""

    def run_unchanged(hook: HookCommand, given: bytes, waiting_for: str) -> HookEnding:
        why = why_not_outside(hook.command, cwd, environment, search)
        return HookEnding(None, problem=f"it {why}") if why else run(hook, given, waiting_for)

    return run_unchanged


def only_as_it_was(run: RunHook, guards: Mapping[str, str]) -> RunHook:
    """The function `run`, but no hook runs if one of the files `guards` has not the digest any more that it had, and none counts
    if one has changed meanwhile: a command in the background may exchange a script for the moment in which it is read.
    """

    def run_as_it_was(hook: HookCommand, given: bytes, waiting_for: str) -> HookEnding:
        before, ending = {path: _state_of(path) for path in guards}, None
        changed = next((path for path, digest in guards.items() if before[path][0] != digest), None)
        if changed is None:
            ending = run(hook, given, waiting_for)
            changed = next((path for path in guards if _state_of(path) != before[path]), None)
            if changed is None:
                return ending
        why = f"{changed}, which decides about calls, has changed since the run began: hooks no longer run; keep it elsewhere"
        return HookEnding(None, problem=why, undone="" if ending is None else ending.undone)

    return run_as_it_was


def _state_of(path: str) -> tuple[str, int, int]:
    """A digest of a file, and what changes with each write to it and nobody can set back. Empty if it cannot be read."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a string
    except OSError:
        return "", 0, 0
    return digest_of(path), status.st_ino, status.st_ctime_ns


def doubts(
    hooks: Sequence[HookCommand], plan: BoxPlan, roots: Sequence[str], *, has_more: bool
) -> Iterator[tuple[str, str]]:
    """Hooks that decide or have more rights and take code from the work, and files that hooks name and will not find as they expect, each with
    advice. `plan` is the sandbox of the hooks. `has_more`: it gives them more than commands have.
    """
    for hook in dict.fromkeys(
        one for one in hooks if one.event in GUARDED or has_more or not plan.is_confined
    ):
        if found := runner_of_the_work(hook.command, has_more=has_more):
            yield (
                f"the {hook.event} hook ({hook.name}) starts {found}, which takes code and settings of the project, as the model wrote it",
                "leave it in the sandbox of the commands"
                if found == "git"
                else "start its script with python3, node or uv run --script",
            )
    opened = (*roots, *plan.write, *plan.read, *plan.sockets)
    if not plan.has_namespaces or is_within_any(TEMPORARY, opened):
        return
    for hook in dict.fromkeys(hooks):
        named = [
            one
            for one in _IN_TEMPORARY.findall(hook.command)
            if not is_within_any(os.path.realpath(one), opened)
        ]
        if named:
            yield (
                f"the {hook.event} hook ({hook.name}) names {named[0]}, and hooks have a {TEMPORARY} that goes with the run",
                f"name it in {WRITE}",
            )
