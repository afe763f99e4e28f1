"""Decides what the hooks of settings files may do beside commands: `[hooks]` in the user's own settings file lets them write
and connect elsewhere, or run outside of the sandbox. Finds hooks that cannot work so.
"""

from __future__ import annotations

import os
import re
from itertools import chain
from typing import TYPE_CHECKING

from ralph.machine.repository import is_within_any
from ralph.permissions.shell import parse_line
from ralph.permissions.wildcard import ANY
from ralph.places.own_commands import ENTERS, absolute_path, digest_of, scripts_of, why_changeable
from ralph.run.permission_rules import has_parser
from ralph.sandbox.box_plan import CannotConfineError, with_hook_places
from ralph.sandbox.bubblewrap import TEMPORARY
from ralph.settings.merge import SettingsError
from ralph.tools.hook_command import HookEnding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ralph.machine.own_programs import ProgramSearch
    from ralph.permissions.claude_settings import HookCommand
    from ralph.permissions.shell import ParsedLine
    from ralph.sandbox.box_plan import BoxPlan
    from ralph.settings.tables import Settings

_VARIABLES = re.compile(r"\$(?:\{(\w+)\}|(\w+))|(?<![^\s\"'=])(~)(?=/)")
_TESTS = frozenset({"test", "[", "[["})
_IN_TEMPORARY = re.compile(rf"(?<![\w./~}}-]){TEMPORARY}/[^\s\"'`;|&()<>]+")
MORE = "[hooks] in your config.toml"
WRITE = "[hooks] write in your config.toml"


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
    if not has_parser():
        return (
            f"cannot be looked through for {MORE}: tree-sitter and tree-sitter-bash are missing; install them"
        )
    line = _parsed(command, cwd, environment)
    names = [one.words[0].text for one in line.commands if one.words]
    if None in names or line.runs_unknown:
        return f"does not run with what {MORE} gives it: its program is known only when it runs; name it"
    plain = [name for name in names if name is not None and "/" not in name]
    known = {**environment, "CLAUDE_PROJECT_DIR": str(cwd)}
    why = why_changeable([command], str(cwd), known, search, programs=plain, takes_data=True)
    moves = not ENTERS.isdisjoint(plain)
    why = why or next(_missing_scripts(line, str(cwd), environment.get("HOME", ""), search), "")
    for one in _parsed(command, cwd, environment, environment).redirections if not why else ():
        begin, target = one.target.parts[:1], cwd / one.target.known
        is_elsewhere = moves and not (one.target.known.startswith("/") or os.path.lexists(target))
        is_elsewhere |= begin == (ANY,)
        if (
            one.writes
            and not one.is_harmless
            and not is_elsewhere
            and (root := search.root_around(str(target)))
        ):
            why = f"it writes {target} through {root}, where commands may write"
    return f"does not run with what {MORE} gives it: {why}; keep it elsewhere" if why else None


def _missing_scripts(line: ParsedLine, cwd: str, home: str, search: ProgramSearch) -> Iterator[str]:
    """Yields why a script that is missing must not be started: what runs beside the hook could make it between ralph's look and
    the start.
    """
    words = [[word.text or "" for word in one.words] for one in line.commands if one.words]
    words = [one for one in words if one[0] not in _TESTS]
    places = [
        cwd,
        *(absolute_path(" ".join(one[1:2]) or home, cwd, home) for one in words if one[0] in ENTERS),
    ]
    for script in filter(None, chain.from_iterable(map(scripts_of, words))):
        paths = [absolute_path(script, place, home) for place in places]
        roots = [] if any(map(os.path.lexists, paths)) else [*filter(None, map(search.root_around, paths))]
        if roots:
            yield f"{script} is not there, and commands may write {roots[0]}"


def missing_program(command: str, cwd: Path, environment: Mapping[str, str]) -> str | None:
    """The path of a program that a hook names and that does not exist, or None."""
    if not has_parser():
        return None
    names = (one.words[0].text for one in _parsed(command, cwd, environment).commands if one.words)
    return next((name for name in names if name and "/" in name and not (cwd / name).exists()), None)


def _parsed(
    command: str, cwd: Path, environment: Mapping[str, str], more: Mapping[str, str] = {}
) -> ParsedLine:
    """The parsed command of a hook, with the values of the variables that every hook has, and of `more`."""
    known = {**more, "HOME": environment.get("HOME", ""), "CLAUDE_PROJECT_DIR": str(cwd)}

    def value(found: re.Match[str]) -> str:
        return known.get("HOME" if found[3] else found[1] or found[2], found[0])

    return parse_line(_VARIABLES.sub(value, command))


def only_unchanged(
    run: Callable[[str, bytes, float, str], HookEnding],
    cwd: Path,
    environment: Mapping[str, str],
    search: ProgramSearch,
) -> Callable[[str, bytes, float, str], HookEnding]:
    """The function `run`, but for a hook that may not have more than commands any more: a command has made a file that it names."""

    def run_unchanged(command: str, given: bytes, limit_s: float, waiting_for: str) -> HookEnding:
        why = why_not_outside(command, cwd, environment, search)
        return HookEnding(None, problem=f"it {why}") if why else run(command, given, limit_s, waiting_for)

    return run_unchanged


def only_as_it_was(
    run: Callable[[str, bytes, float, str], HookEnding], guards: Mapping[str, str]
) -> Callable[[str, bytes, float, str], HookEnding]:
    """The function `run`, but no hook runs if one of the files `guards` has not the digest any more that it had, and none counts
    if one has changed meanwhile: a command in the background may exchange a script for the moment in which it is read.
    """

    def run_as_it_was(command: str, given: bytes, limit_s: float, waiting_for: str) -> HookEnding:
        before, ending = {path: _state_of(path) for path in guards}, None
        changed = next((path for path, digest in guards.items() if before[path][0] != digest), None)
        if changed is None:
            ending = run(command, given, limit_s, waiting_for)
            changed = next((path for path in guards if _state_of(path) != before[path]), None)
            if changed is None:
                return ending
        why = f"{changed}, which decides about calls, has changed since the run began: no hook runs any more; keep it elsewhere"
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
    hooks: Sequence[HookCommand],
    plan: BoxPlan,
    roots: Sequence[str],
) -> Iterator[tuple[str, str]]:
    """Files that hooks name and will not find as they expect, each with advice. `plan` is the sandbox of the hooks."""
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
