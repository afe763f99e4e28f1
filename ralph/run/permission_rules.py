"""Builds the permission rules of a run from its options and from settings files made for Claude Code."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ralph.machine.files.trees import LocalDisk
from ralph.permissions.claude_settings import GuardError, read_all, strictest_mode, wrong_at_top
from ralph.permissions.rule import Effect, RuleError, parse_rule
from ralph.run.parts import RunGuards
from ralph.settings.files import ClaudeFileError, document_of, guards_in_short, judged
from ralph.settings.merge import SettingsError
from ralph.values.controls import PermissionMode
from ralph.values.tool_choice import is_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.permissions.claude_settings import ClaudeSettings
    from ralph.permissions.gate import RuleVerdict
    from ralph.permissions.judge import Permissions
    from ralph.permissions.rule import PermissionRule
    from ralph.run.options import RunOptions
    from ralph.run.parts import RunContext
    from ralph.values.answer import ToolCall

_MOST_SHOWN = 5
"""The maximum number of rules of one file that a notice lists."""
_MODES_WITHOUT_BYPASS = (PermissionMode.PLAN, PermissionMode.DONT_ASK)


def built_guards(context: RunContext, kept: Mapping[str, tuple[str, ...]], *, is_asked: bool) -> RunGuards:
    """Builds the rules of the settings files, unless they have none and `is_asked` is False: nothing else asks for any. `kept` is
    that of `build_guards`, which says what is raised.
    """
    options, controls, files = context.options, context.controls, context.settings.claude_files
    if files:
        files = judged(files, context.search(), context.environment)
    try:
        documents = [document_of(file) for file in files]
        has_files = guards_in_short(files) or any(map(wrong_at_top, documents))
    except ClaudeFileError as error:
        raise SettingsError(str(error), from_flag=error.from_flag) from error
    if not (has_files or is_asked):
        return RunGuards()
    try:
        read = read_all(zip(files, documents, strict=True) if has_files else (), options.setting_sources)
    except GuardError as error:
        raise SettingsError(str(error)) from error
    mode = None if options.permission_mode is not None else strictest_mode(read)
    in_force = mode or controls.permission_mode
    _refuse_bypass(in_force, read)
    is_narrow = in_force is PermissionMode.DONT_ASK
    counting = _allowing(options, read, mode)
    try:
        judge = _judge(context, read, counting, kept)
    except RuleError as error:
        raise SettingsError(str(error), from_flag=True) from error
    hooks = tuple(hook for found in read if _is_chosen(found, options) for hook in found.hooks)
    told = _about_rules(
        read, counting if is_narrow else (), left_out_are_told=is_narrow and not options.names_sources
    )
    has_sandbox = context.settings.sandbox.mode != "off"
    return RunGuards(
        judge,
        hooks,
        mode,
        tuple((found.file.name, found.sandbox) for found in read if found.sandbox.keys),
        (*told, *_notices(read, in_force, has_sandbox=has_sandbox)),
        partial(_verdict_by, str(context.cwd), context.home),
    )


def _judge(
    context: RunContext,
    read: Sequence[ClaudeSettings],
    counting: Sequence[ClaudeSettings],
    kept: Mapping[str, tuple[str, ...]],
) -> Permissions:
    """`counting` are the files whose allow rules are used. Raises RuleError."""
    controls, tools, origins = context.controls, context.settings.tools, context.settings.origins
    sources = [
        (origins.get(f"tools.{key}") or "settings").removeprefix("flag ") for key in ("disallowed", "allowed")
    ]
    of_session = "the session's options"
    listed = [parse_rule(name, Effect.ALLOW, sources[1]) for name in tools.allowed or ()]
    return judge_by(
        (
            *(parse_rule(name, Effect.DENY, sources[0]) for name in filter(is_pattern, tools.disallowed)),
            *(parse_rule(name, Effect.DENY, of_session) for name in kept.get("disallowed", ())),
            *(rule for found in read for rule in found.rules if rule.effect is not Effect.ALLOW),
        ),
        listed if any(rule.pattern is not None for rule in listed) else None,
        str(context.cwd),
        context.home,
        context.options.writable,
        narrow=(*listed, *(rule for found in counting for rule in found.allowing)),
        kept=[parse_rule(name, Effect.ALLOW, of_session) for name in kept.get("allowed", ())] or None,
        is_narrow=lambda: controls.permission_mode is PermissionMode.DONT_ASK,
    )


def _verdict_by(cwd: str, home: str, rule: PermissionRule, call: ToolCall) -> RuleVerdict:
    return judge_by((rule,), None, cwd, home).judge(call)


def judge_by(
    denied: Sequence[PermissionRule],
    allowed: Sequence[PermissionRule] | None,
    cwd: str,
    home: str,
    writable: Sequence[str] = (),
    **others: Any,
) -> Permissions:
    """The judge of these rules, on the disk. A relative `home` does not count. `others` are as in `Permissions`."""
    from ralph.permissions.judge import Permissions, RulePlaces  # noqa: PLC0415 - 10 ms, and few runs have rules

    places = RulePlaces(cwd, home if home.startswith("/") else "", LocalDisk(), writable)
    return Permissions(denied, allowed, places, **others)


def _is_chosen(found: ClaudeSettings, options: RunOptions) -> bool:
    return found.file.kind == "flag" or found.file.kind in options.setting_sources


def _allowing(
    options: RunOptions, read: Sequence[ClaudeSettings], mode: PermissionMode | None
) -> list[ClaudeSettings]:
    """The files whose allow rules are used in the mode dontAsk. `mode` is the mode that a file requests, or None.

    If the user or a driver chooses this mode, a repository's allow rules would permit more calls than the user
    expects. So they are used only if the command line names the sources. If only the repository requests this mode,
    its allow rules are used.
    """
    is_users_mode = mode is None or any(one.file.is_trusted and one.mode == "dontAsk" for one in read)
    may_all = options.names_sources or not (is_users_mode or options.takes_messages)
    return [one for one in read if _is_chosen(one, options) and (one.file.is_trusted or may_all)]


def _refuse_bypass(mode: PermissionMode, read: Sequence[ClaudeSettings]) -> None:
    """Raises SettingsError if `mode` permits calls without a question, but the user's settings forbid such a mode."""
    forbids = (one.file.name for one in read if one.forbids_bypass and one.file.is_trusted)
    name = None if mode in _MODES_WITHOUT_BYPASS else next(forbids, None)
    if name is not None:
        raise SettingsError(
            f"{name}: permissions.disableBypassPermissionsMode cannot be honoured in the permission mode "
            f"{mode}, which asks nobody: use --permission-mode dontAsk or plan"
        )


def _about_rules(
    read: Sequence[ClaudeSettings], counting: Sequence[ClaudeSettings], *, left_out_are_told: bool
) -> Iterator[str]:
    """Notices about the rules in force, and about a repository's allow rules that are not used."""
    in_force, left_out = [], []
    for found in read:
        counts = any(found is one for one in counting)
        number = len(found.rules) - (0 if counts else len(found.allowing))
        in_force += [f"{number} of {found.file.name}"] if number else []
        if found.allowing and left_out_are_told and not counts and not found.file.is_trusted:
            left_out.append(f"{found.file.name} ({_listed([rule.text for rule in found.allowing])})")
    if in_force:
        yield f"permission rules in force: {', '.join(in_force)}"
    if left_out:
        yield (
            f"ralph ignores allow rules of the repository: {', '.join(left_out)}; --setting-sources user,project,local "
            "lets them"
        )


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_SHOWN
    return ", ".join(texts[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _notices(read: Sequence[ClaudeSettings], mode: PermissionMode, *, has_sandbox: bool) -> Iterator[str]:
    for found in read:
        name = found.file.name
        yield from (f"{fact}: {advice}" for fact, advice in not_kept(found, mode))
        if found.sandbox.keys and not found.file.is_trusted:
            yield f"{name}: commands are restricted by {', '.join(found.sandbox.keys)}"
        if found.wants_sandbox and not has_sandbox:
            yield f"{name}: sandbox.enabled has no effect with --sandbox off ([sandbox] mode)"


def not_kept(found: ClaudeSettings, mode: PermissionMode | None = None) -> Iterator[tuple[str, str]]:
    """The requests of a settings file that ralph does not fulfil in this permission mode, each with advice."""
    name, is_trusted = found.file.name, found.file.is_trusted
    unused = ", ".join(found.unused_hooks)
    if unused and found.hooks_off:
        yield f"{name}: hooks for {unused} are not run", f"disableAllHooks of {found.hooks_off} says so"
    elif unused and is_trusted:
        yield f"{name}: hooks for {unused} are not run", "ralph has no such event"
    elif unused:
        yield (
            f"hooks of {name} are not run ({unused})",
            "a repository may not start programs; pass hooks that you trust with --settings",
        )
    for hook in found.hooks:
        if hook.calls.unknown:
            yield (
                f"{name}: no tool is called {', '.join(hook.calls.unknown)}, which the matcher {hook.matcher!r} names",
                "the hook is called only for its other tools",
            )
    if found.idle_sandbox:
        yield (
            f"{name}: keys without effect: {', '.join(found.idle_sandbox)}",
            "a repository may only restrict commands; use --net, --allow-host or [sandbox] in your own settings",
        )
    if found.forbids_bypass and mode not in _MODES_WITHOUT_BYPASS:
        does = "lets no run begin" if is_trusted else "is not honoured"
        yield (
            f"{name}: permissions.disableBypassPermissionsMode {does}",
            "--permission-mode dontAsk runs only what a rule allows",
        )
    if found.unknown_permissions and not is_trusted:  # else `wishes_of` names them
        listed = ", ".join(found.unknown_permissions[:_MOST_SHOWN])
        yield (
            f"{name}: permissions has keys that ralph does not know ({listed})",
            "they have no effect; correct or remove them",
        )
