"""Checks the permission rules and hooks in settings files that were made for Claude Code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.cli.checks.finding import Finding, fail, ok, warn
from ralph.machine.own_programs import search_around
from ralph.machine.trees import LocalDisk
from ralph.permissions.claude_settings import GuardError, read_all
from ralph.permissions.judge import RulePlaces, places_not_read
from ralph.permissions.rule import RuleError
from ralph.run.hooks import doubts, missing_program, plan_hooks
from ralph.run.permission_rules import not_kept
from ralph.sandbox.box_plan import CannotConfineError, plan_box, with_denied_reads
from ralph.settings.claude_files import ClaudeFileError, document_of, read_claude_files
from ralph.settings.merge import SettingsError
from ralph.settings.tables import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ralph.permissions.claude_settings import ClaudeSettings, HookCommand

_NAME = "permission rules"
_HOOKS = "hooks"


def look_at_claude_rules(
    cwd: Path, environment: Mapping[str, str], settings: Settings | None = None
) -> Iterator[Finding]:
    """Findings about the settings files for Claude Code: which files contain rules that a run would apply, and which
    of their rules it would not apply. A run would have the sandbox and the tools that `settings` name.
    """
    try:
        files = read_claude_files(cwd, environment)
        read = read_all(((file, document_of(file)) for file in files), ("user",))
    except (ClaudeFileError, GuardError) as error:
        yield fail(_NAME, str(error), "correct that file: no run begins without its rules")
        return
    for found in read:
        if found.rules or found.hooks:
            counts = f"{len(found.rules)} rules" + (f", {len(found.hooks)} hooks" if found.hooks else "")
            yield ok(_NAME, f"{found.file.name}: {counts}")
        if found.sandbox.keys:
            yield ok(_NAME, f"{found.file.name}: commands are restricted by {', '.join(found.sandbox.keys)}")
        for fact, advice in not_kept(found):
            yield warn(_NAME, fact, advice)
    settings = settings or Settings()
    yield from _about_hooks(cwd, environment, settings, [hook for found in read for hook in found.hooks])
    yield from _about_denied_reads(cwd, environment, settings, read)


def _about_hooks(
    cwd: Path, environment: Mapping[str, str], settings: Settings, hooks: Sequence[HookCommand]
) -> Iterator[Finding]:
    if not hooks:
        return
    search = search_around(environment, (cwd,), settings.sandbox.written(environment))
    try:
        plan = plan_box(settings.sandbox, environment, (cwd,))
        made = plan_hooks(settings, environment, hooks, plan, search=search, roots=(cwd,))
    except CannotConfineError:  # the finding about the sandbox says so
        return
    except SettingsError as error:
        yield fail(_HOOKS, str(error), "no run begins with it")
        return
    more = ", ".join((*made.write[len(plan.write) :], *made.sockets[len(plan.sockets) :]))
    where = f"in the sandbox of commands{f', with {more}' if more else ''}"
    yield ok(_HOOKS, f"{len(hooks)} run {where if made.is_confined else 'without a sandbox'}")
    for fact, advice in doubts(hooks, made, search.roots):
        yield warn(_HOOKS, fact, advice)
    for hook in hooks:
        missing = missing_program(hook.command, cwd, environment)
        if missing is not None:
            yield warn(_HOOKS, f"the {hook.event} hook ({hook.name}) names {missing}", "it does not exist")


def _about_denied_reads(
    cwd: Path, environment: Mapping[str, str], settings: Settings, read: Sequence[ClaudeSettings]
) -> Iterator[Finding]:
    rules = [rule for found in read for rule in found.rules]
    home = environment.get("HOME", "")
    try:
        places = RulePlaces(str(cwd), home if home.startswith("/") else "", LocalDisk())
        denied = places_not_read(rules, settings.tools.disallowed, places, (str(cwd),))
    except RuleError as error:
        yield fail(_NAME, str(error), "correct that rule: no run begins without it")
        return
    if not (denied.paths or denied.unsearched):
        return
    try:
        plan = plan_box(settings.sandbox, environment, (cwd,))
    except CannotConfineError:  # the finding about the sandbox says so
        return
    if plan.is_confined:
        told = with_denied_reads(plan, denied.paths, (cwd,), denied.unsearched).notices[len(plan.notices) :]
        for notice in told:
            yield warn(_NAME, notice.text, notice.advice)
