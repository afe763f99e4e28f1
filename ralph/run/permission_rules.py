"""Builds the permission rules of a run from its options and from settings files made for Claude Code."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.settings.claude_files import ClaudeFileError, document_of, guards_in_short, read_claude_files
from ralph.settings.merge import SettingsError
from ralph.values.permission_mode import PermissionMode
from ralph.values.tool_choice import is_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.permissions.claude_settings import ClaudeSettings, HookCommand, SettingsSource
    from ralph.permissions.judge import Permissions
    from ralph.permissions.rule import Effect, PermissionRule
    from ralph.run.options import RunOptions
    from ralph.run.wiring import Surroundings
    from ralph.sandbox.sandbox_limits import SandboxLimits
    from ralph.settings.claude_files import ClaudeFile
    from ralph.values.controls import RunControls

_MOST_SHOWN = 5
"""The maximum number of rules of one file that a notice lists."""
_MODES_WITHOUT_BYPASS = (PermissionMode.PLAN, PermissionMode.DONT_ASK)
_MOST_PATHS = 50_000
"""The maximum number of paths in a directory that are compared with the rules. A larger directory counts as one that
contains a denied file."""


class RunGuards(Struct, frozen=True):
    """The protections that settings files and options require."""

    judge: Permissions | None = None
    """Applies the permission rules. None if there are none."""
    hooks: tuple[HookCommand, ...] = ()
    mode: PermissionMode | None = None
    """The permission mode that a settings file sets, or None."""
    sandbox: tuple[tuple[str, SandboxLimits], ...] = ()
    """The restrictions that settings files require for the sandbox of commands, with the names of the files."""
    notices: tuple[str, ...] = ()


def build_guards(
    around: Surroundings,
    options: RunOptions,
    controls: RunControls,
    kept: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> RunGuards:
    """Reads the settings files and builds the rules. `kept` contains the tool lists of the session that the run
    resumes. Raises SettingsError for a rule or a hook that ralph cannot apply.
    """
    try:
        files = around.settings.claude_files
        if files is None:
            files = read_claude_files(around.cwd, around.environment, options.claude_settings)
        documents = [document_of(file) for file in files]
        has_files = guards_in_short(files) or _may_be_misspelt(documents)
    except ClaudeFileError as error:
        raise SettingsError(str(error), from_flag=error.from_flag) from error
    tools = around.settings.tools
    has_patterns = any(map(is_pattern, (*(tools.allowed or ()), *tools.disallowed)))
    is_narrow = controls.permission_mode is PermissionMode.DONT_ASK
    if not (has_files or has_patterns or is_narrow or options.takes_messages or kept):
        return RunGuards()
    return _built(around, options, controls, files if has_files else (), kept)


def _may_be_misspelt(documents: Sequence[Mapping[str, object]]) -> bool:
    """Whether a file has a top-level key that may be meant as a guard."""
    if not any(documents):
        return False
    from ralph.permissions.settings_keys import wrong_at_top  # noqa: PLC0415 - few runs have settings files

    return any(wrong_at_top(document) for document in documents)


def patterns_of_tools(around: Surroundings) -> dict[str, tuple[str, ...]]:
    """The lists of allowed and of disallowed tools, if they contain patterns such as `Bash(git *)`. The journal
    records these lists.
    """
    tools = around.settings.tools
    lists = {"allowed": tools.allowed or (), "disallowed": tuple(filter(is_pattern, tools.disallowed))}
    return {name: names for name, names in lists.items() if any(map(is_pattern, names))}


def _built(
    around: Surroundings,
    options: RunOptions,
    controls: RunControls,
    files: Sequence[ClaudeFile],
    kept: Mapping[str, tuple[str, ...]],
) -> RunGuards:
    from ralph.permissions.claude_settings import GuardError, SettingsSource, read_settings  # noqa: PLC0415 - few runs have rules
    from ralph.permissions.judge import Permissions, RulePlaces  # noqa: PLC0415 - few runs have rules
    from ralph.permissions.rule import Effect, RuleError, parse_rule  # noqa: PLC0415 - few runs have rules

    try:
        sources = [SettingsSource(file.name, file.kind, file.root) for file in files]
        read = [read_settings(document_of(file), one) for file, one in zip(files, sources, strict=True)]
    except GuardError as error:
        raise SettingsError(str(error)) from error
    pairs = list(zip(sources, read, strict=True))
    mode = _mode(options, pairs)
    _refuse_bypass(mode or controls.permission_mode, pairs)
    try:
        always, listed = _rules_of_options(around)
        allowing = _allowing_sources(options, pairs, mode)
        denied, allowed = (
            [parse_rule(name, effect, "the session's options") for name in kept.get(key, ())]
            for effect, key in ((Effect.DENY, "disallowed"), (Effect.ALLOW, "allowed"))
        )
        judge = Permissions(
            (
                *always,
                *denied,
                *(rule for found in read for rule in found.rules if rule.effect is not Effect.ALLOW),
            ),
            listed if any(rule.pattern is not None for rule in listed or ()) else None,
            RulePlaces(str(around.cwd), _home(around), LocalDisk()),
            narrow=(*(listed or ()), *(rule for one in allowing for rule in _rules_that(Effect.ALLOW, one))),
            kept=allowed or None,
            is_narrow=lambda: controls.permission_mode is PermissionMode.DONT_ASK,
        )
    except RuleError as error:
        raise SettingsError(str(error), from_flag=True) from error
    if judge.needs_parser and not has_parser():
        raise SettingsError(
            "permission rules cannot be kept: the packages tree-sitter and tree-sitter-bash are missing, which parse "
            "commands; install them, or remove the rules"
        )
    hooks = tuple(hook for one, found in pairs if _is_chosen(one, options) for hook in found.hooks)
    limits = tuple((source.name, found.sandbox) for source, found in pairs if found.sandbox.keys)
    in_force = mode or controls.permission_mode
    is_narrow = in_force is PermissionMode.DONT_ASK
    told = _about_rules(
        pairs, allowing if is_narrow else (), left_out_are_told=is_narrow and not options.names_sources
    )
    unsafe = _without_sandbox(pairs) if around.settings.sandbox.mode == "off" else ()
    return RunGuards(judge, hooks, mode, limits, (*told, *_notices(pairs, in_force), *unsafe))


def has_parser() -> bool:
    """Whether the packages that parse shell commands are installed. It does not import them."""
    from importlib.util import find_spec  # noqa: PLC0415 - few runs have rules

    return all(find_spec(name) is not None for name in ("tree_sitter", "tree_sitter_bash"))


def _rules_of_options(around: Surroundings) -> tuple[list[PermissionRule], list[PermissionRule] | None]:
    """Returns the rules that deny calls and the rules that allow calls, both made from the tool lists in the
    settings. The second value is None if every tool is allowed.
    """
    from ralph.permissions.rule import Effect, parse_rule  # noqa: PLC0415 - few runs have rules

    tools, origins = around.settings.tools, around.settings.origins
    denied = [
        parse_rule(name, Effect.DENY, _source(origins.get("tools.disallowed")))
        for name in tools.disallowed
        if is_pattern(name)
    ]
    if tools.allowed is None:
        return denied, None
    source = _source(origins.get("tools.allowed"))
    return denied, [parse_rule(name, Effect.ALLOW, source) for name in tools.allowed]


def _source(origin: str | None) -> str:
    return (origin or "settings").removeprefix("flag ")


def _is_chosen(source: SettingsSource, options: RunOptions) -> bool:
    return source.kind == "flag" or source.kind in options.setting_sources


def _mode(
    options: RunOptions, pairs: Sequence[tuple[SettingsSource, ClaudeSettings]]
) -> PermissionMode | None:
    """The strictest permission mode that a file sets. None if no file does, or if the command line sets a mode."""
    modes = {found.mode for _, found in pairs}
    if options.permission_mode is not None:
        return None
    return next((PermissionMode(mode) for mode in ("plan", "dontAsk") if mode in modes), None)


def _allowing_sources(
    options: RunOptions,
    pairs: Sequence[tuple[SettingsSource, ClaudeSettings]],
    mode: PermissionMode | None,
) -> list[ClaudeSettings]:
    """The files whose allow rules are used in the mode dontAsk. `mode` is the mode that a file requests, or None.

    If the user or a driver chooses this mode, a repository's allow rules would permit more calls than the user
    expects. So they are used only if the command line names the sources. If only the repository requests this mode,
    its allow rules are used.
    """
    is_users_mode = mode is None or any(
        source.is_trusted and found.mode == "dontAsk" for source, found in pairs
    )
    may_all = options.names_sources or not (is_users_mode or options.takes_messages)
    return [
        found for source, found in pairs if _is_chosen(source, options) and (source.is_trusted or may_all)
    ]


def _refuse_bypass(mode: PermissionMode, pairs: Sequence[tuple[SettingsSource, ClaudeSettings]]) -> None:
    """Raises SettingsError if `mode` permits calls without a question, but the user's settings forbid such a mode."""
    if mode in _MODES_WITHOUT_BYPASS:
        return
    for source, found in pairs:
        if found.forbids_bypass and source.is_trusted:
            raise SettingsError(
                f"{source.name}: permissions.disableBypassPermissionsMode cannot be honoured in the permission mode "
                f"{mode}, in which nobody is asked: use --permission-mode dontAsk or plan"
            )


def _rules_that(effect: Effect, found: ClaudeSettings) -> list[PermissionRule]:
    return [rule for rule in found.rules if rule.effect is effect]


def _about_rules(
    pairs: Sequence[tuple[SettingsSource, ClaudeSettings]],
    allowing: Sequence[ClaudeSettings],
    *,
    left_out_are_told: bool,
) -> Iterator[str]:
    """Notices about the rules in force, and about a repository's allow rules that are not used. `allowing` are the
    files whose allow rules are used.
    """
    from ralph.permissions.rule import Effect  # noqa: PLC0415 - few runs have rules

    in_force, left_out = [], []
    for source, found in pairs:
        allows = _rules_that(Effect.ALLOW, found)
        counts = any(found is one for one in allowing)
        number = len(found.rules) - (0 if counts else len(allows))
        in_force += [f"{number} of {source.name}"] if number else []
        if allows and left_out_are_told and not counts and not source.is_trusted:
            left_out.append(f"{source.name} ({_listed(allows)})")
    if in_force:
        yield f"permission rules in force: {', '.join(in_force)}"
    if left_out:
        yield (
            f"allow rules of the repository do not count: {', '.join(left_out)}; --setting-sources user,project,local "
            "lets them"
        )


def _listed(rules: Sequence[PermissionRule]) -> str:
    shown = ", ".join(rule.text for rule in rules[:_MOST_SHOWN])
    return shown if len(rules) <= _MOST_SHOWN else f"{shown} and {len(rules) - _MOST_SHOWN} more"


def _notices(pairs: Sequence[tuple[SettingsSource, ClaudeSettings]], mode: PermissionMode) -> Iterator[str]:
    """Notices about the parts of the settings files that ralph does not use."""
    for source, found in pairs:
        for fact, advice in not_kept(source, found, mode):
            yield f"{fact}: {advice}"
        if found.sandbox.keys and not source.is_trusted:
            yield f"{source.name}: commands are restricted by {', '.join(found.sandbox.keys)}"
        if source.kind == "flag" and found.unread_keys:
            yield f"{source.name}: ralph does not read {', '.join(found.unread_keys)} there"


def _without_sandbox(pairs: Sequence[tuple[SettingsSource, ClaudeSettings]]) -> Iterator[str]:
    for source, found in pairs:
        if found.wants_sandbox:
            yield f"{source.name}: sandbox.enabled has no effect with --sandbox off ([sandbox] mode)"


def not_kept(
    source: SettingsSource, found: ClaudeSettings, mode: PermissionMode | None = None
) -> Iterator[tuple[str, str]]:
    """The requests of a settings file that ralph does not fulfil in this permission mode, each with advice."""
    if found.unused_hooks and source.is_trusted:
        yield (
            f"{source.name}: hooks for {', '.join(found.unused_hooks)} are not run",
            "ralph has no such event",
        )
    elif found.unused_hooks:
        yield (
            f"hooks of {source.name} are not run ({', '.join(found.unused_hooks)})",
            "a repository may not start programs; pass those that you trust by --settings",
        )
    if found.idle_sandbox:
        yield (
            f"{source.name}: keys without effect: {', '.join(found.idle_sandbox)}",
            "a repository may only restrict commands; use --net, --allow-host or [sandbox] in your own settings",
        )
    if found.forbids_bypass and mode not in _MODES_WITHOUT_BYPASS:
        does = "lets no run begin" if source.is_trusted else "is not honoured"
        yield (
            f"{source.name}: permissions.disableBypassPermissionsMode {does}",
            "--permission-mode dontAsk runs only what a rule allows",
        )
    if found.unknown_permissions:
        listed = ", ".join(found.unknown_permissions[:_MOST_SHOWN])
        yield (
            f"{source.name}: permissions has keys that ralph does not know ({listed})",
            "they guard nothing; correct or remove them",
        )


def _home(around: Surroundings) -> str:
    home = around.environment.get("HOME", "")
    return home if os.path.isabs(home) else ""  # noqa: PTH117 - a str


class LocalDisk:
    """Answers questions about the paths on this machine's disk. Implements `Disk`."""

    def real(self, path: str) -> str:
        return os.path.realpath(path)

    def paths_below(self, directory: str) -> list[str] | None:
        found: list[str] = []
        for above, directories, files in os.walk(directory):
            found += [os.path.join(above, name) for name in (*directories, *files)]  # noqa: PTH118 - strings throughout
            if len(found) > _MOST_PATHS:
                return None
        return found
