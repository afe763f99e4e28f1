"""Reads the permission rules, hooks and permission mode from a settings file that was written for Claude Code. Raises
GuardError if the file asks for a protection that ralph cannot provide. Nothing may run without this protection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.permissions import settings_keys as names
from ralph.permissions.hook_answers import EVENTS, why_no_matcher
from ralph.permissions.rule import Effect, PermissionRule, RuleError, parse_rule
from ralph.sandbox.sandbox_limits import SandboxLimits
from ralph.values.permission_mode import PermissionMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_DEFAULT_TIMEOUT_S = 60.0
_LONGEST_TIMEOUT_S = 86_400.0
_TIGHT_MODES = ("plan", "dontAsk")
# Keys of Claude Code's own sandbox that restrict commands.
_SANDBOX_GUARDS = ("network", "filesystem", "credentials")
_READ_KEYS = ("permissions", "hooks", "sandbox", "disableAllHooks", "$schema")


class GuardError(Exception):
    """A file asks for a protection that ralph cannot provide. The message is one line that names the file."""


class HookCommand(Struct, frozen=True):
    """A command that ralph runs when an event occurs."""

    event: str
    matcher: str
    """A pattern for the tools whose calls start the command, in the syntax of `matches`. Empty means all tools."""
    command: str
    timeout_s: float
    source: str


class SettingsSource(Struct, frozen=True):
    """Says where a settings document comes from: a file, or the text of a command-line option."""

    name: str
    """The path of the file, or the name of the option."""
    kind: str
    """One of `user`, `project`, `local` and `flag`."""
    root: str = ""
    """The directory to which the paths in the rules are relative."""

    @property
    def is_trusted(self) -> bool:
        """Whether the user wrote the document. A hook is a program, so ralph runs a hook only if its document is
        trusted.
        """
        return self.kind in ("user", "flag")


class ClaudeSettings(Struct, frozen=True):
    rules: tuple[PermissionRule, ...] = ()
    hooks: tuple[HookCommand, ...] = ()
    mode: str | None = None
    """The permission mode in the document, if it is stricter than the default mode. Otherwise None."""
    forbids_bypass: bool = False
    """True if the document forbids the permission mode in which all calls run without a question."""
    sandbox: SandboxLimits = SandboxLimits()
    wants_sandbox: bool = False
    """True if the document has `sandbox.enabled`, which is no reason not to run without a sandbox."""
    idle_sandbox: tuple[str, ...] = ()
    """The keys of a repository's `sandbox` block that have no effect, because they restrict nothing."""
    unused_hooks: tuple[str, ...] = ()
    """The events whose hooks ralph does not run. A misspelt event has a hint."""
    unread_keys: tuple[str, ...] = ()
    unknown_permissions: tuple[str, ...] = ()
    """Keys of `permissions` that Claude Code does not have."""


def read_settings(document: object, source: SettingsSource) -> ClaudeSettings:
    """The rules, hooks and mode in a settings document. Raises GuardError if ralph cannot provide one of them."""
    if not isinstance(document, dict):
        raise GuardError(f"{source.name}: a settings file must hold a JSON object")
    _refuse(names.wrong_at_top(document), source, "")
    permissions = document.get("permissions") or {}
    if not isinstance(permissions, dict):
        raise GuardError(f"{source.name}: permissions must be an object")
    _refuse_misspelt(permissions, names.OF_PERMISSIONS, source, "permissions.")
    block = document.get("sandbox")
    sandbox, idle = _sandbox(block, source)
    hooks, unused = _hooks(document, source)
    mode = permissions.get("defaultMode")
    if isinstance(mode, str):
        _refuse_misspelt((mode,), PermissionMode, source, "permissions.defaultMode = ")
    return ClaudeSettings(
        rules=tuple(_rules(permissions, source)),
        hooks=hooks,
        mode=mode if mode in _TIGHT_MODES else None,
        forbids_bypass=bool(permissions.get("disableBypassPermissionsMode")),
        sandbox=sandbox,
        wants_sandbox=isinstance(block, dict) and block.get("enabled") is True,
        idle_sandbox=idle,
        unused_hooks=unused,
        unread_keys=tuple(key for key in document if key not in _READ_KEYS),
        unknown_permissions=tuple(key for key in permissions if key not in names.OF_PERMISSIONS),
    )


def _refuse_misspelt(keys: Iterable[str], known: Iterable[str], source: SettingsSource, place: str) -> None:
    """Raises GuardError if a key resembles a known key but differs from it. Such a key is probably misspelt, and then
    it would protect nothing.
    """
    _refuse(names.misspelt(keys, known), source, place)


def _refuse(found: tuple[str, str] | None, source: SettingsSource, place: str) -> None:
    """Raises GuardError if `found` is a key with the name that is perhaps meant."""
    if found is not None:
        raise GuardError(
            f"{source.name}: {place}{found[0]} is not known, and is perhaps meant as {found[1]}: correct it; nothing runs "
            "without a guard that was asked for"
        )


def _rules(permissions: Mapping[str, Any], source: SettingsSource) -> Iterator[PermissionRule]:
    for effect in Effect:
        listed = permissions.get(effect.value)
        if listed is None:
            continue
        key = f"permissions.{effect.value}"
        if not isinstance(listed, list):
            if effect is not Effect.ALLOW:
                raise GuardError(f"{source.name}: {key} must be a list of rules")
            continue
        for text in listed:
            try:
                yield parse_rule(text, effect, f"{key} of {source.name}", source.root)
            except RuleError as error:
                # A rule that allows only widens what other rules narrow: without it less may run.
                if effect is not Effect.ALLOW:
                    raise GuardError(
                        f"{source.name}: {key}: {error}; nothing runs without this rule"
                    ) from error


def _sandbox(sandbox: object, source: SettingsSource) -> tuple[SandboxLimits, tuple[str, ...]]:
    """Returns the restrictions of the `sandbox` block, and the keys of a repository's block that have no effect. Raises
    GuardError for a restriction that ralph cannot keep.
    """
    if sandbox is None:
        return SandboxLimits(), ()
    if not isinstance(sandbox, dict):
        raise GuardError(f"{source.name}: sandbox must be an object")
    _refuse_misspelt(sandbox, names.OF_SANDBOX, source, "sandbox.")
    is_strict = bool(sandbox.get("failIfUnavailable")) and sandbox.get("enabled") is not False
    if not source.is_trusted:
        return _of_repository(sandbox, source, is_strict=is_strict)
    for key in _SANDBOX_GUARDS:
        if sandbox.get(key):
            raise _not_kept(source, key)
    return SandboxLimits(is_strict), ()


def _of_repository(
    sandbox: Mapping[str, Any], source: SettingsSource, *, is_strict: bool
) -> tuple[SandboxLimits, tuple[str, ...]]:
    if sandbox.get("enabled") is False:  # Claude Code ignores the rest of the block too
        return SandboxLimits(), tuple(f"sandbox.{key}" for key in sandbox)
    parts = {}
    for part, known in (("network", names.OF_NETWORK), ("filesystem", names.OF_FILESYSTEM)):
        parts[part] = sandbox.get(part) or {}
        if not isinstance(parts[part], dict):
            raise GuardError(f"{source.name}: sandbox.{part} must be an object")
        _refuse_misspelt(parts[part], known, source, f"sandbox.{part}.")
    network, filesystem = parts["network"], parts["filesystem"]
    if sandbox.get("credentials"):
        raise _not_kept(source, "credentials")
    if filesystem.get("denyWrite"):
        raise _not_kept(source, "filesystem.denyWrite")
    read_deny = _texts(filesystem, "denyRead", source) or ()
    if any(not path.startswith(("/", "~/")) or set(path) & set("*?[") for path in read_deny):
        raise _not_kept(source, "filesystem.denyRead")
    limits = SandboxLimits(
        is_strict,
        _texts(network, "allowedDomains", source),
        _texts(network, "deniedDomains", source) or (),
        read_deny,
    )
    inner = [f"{part}.{key}" for part, keys in parts.items() for key in keys]
    given = [f"sandbox.{key}" for key in (*(key for key in sandbox if key not in parts), *inner)]
    # Ralph's own sandbox is on, so `enabled` is kept without a word.
    said = (*limits.keys, "sandbox.enabled", "sandbox.failIfUnavailable", "sandbox.credentials")
    return limits, tuple(key for key in given if key not in said)


def _texts(part: Mapping[str, Any], key: str, source: SettingsSource) -> tuple[str, ...] | None:
    listed = part.get(key)
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise GuardError(f"{source.name}: sandbox: {key} must be a list of texts")
    return tuple(listed)


def _not_kept(source: SettingsSource, key: str) -> GuardError:
    advice = (
        "set it with --net, --allow-host or [sandbox] in ralph's own settings"
        if source.is_trusted
        else "nothing runs without a guard that was asked for: use permissions.deny with Read(...) or Edit(...), or "
        "remove it"
    )
    return GuardError(f"{source.name}: sandbox.{key} cannot be honoured; {advice}")


# --- Hooks


def _hooks(
    document: Mapping[str, Any], source: SettingsSource
) -> tuple[tuple[HookCommand, ...], tuple[str, ...]]:
    """Returns the hooks that ralph runs, and the names of the events whose hooks it does not run."""
    events = document.get("hooks") or {}
    if not source.is_trusted:
        return (), tuple(_named(events)) if isinstance(events, dict) else ("which are no object",)
    if not isinstance(events, dict):
        raise GuardError(f"{source.name}: hooks must be an object")
    if document.get("disableAllHooks") is True:
        return (), tuple(event for event, entries in events.items() if entries)
    _refuse_misspelt(events, (*EVENTS, *names.BLOCKING_EVENTS), source, "hooks.")
    made, unused = [], []
    for event, entries in events.items():
        if not entries:
            continue
        if event in names.BLOCKING_EVENTS:
            raise GuardError(
                f"{source.name}: hooks.{event}: ralph runs commands for {', '.join(EVENTS)} alone, and does not run "
                "without a hook that may refuse something; leave it out, or leave out the file (--setting-sources)"
            )
        if event not in EVENTS:
            unused.append(event)
            continue
        made += list(_commands(event, entries, source))
    return tuple(made), tuple(unused)


def _named(events: Mapping[str, object]) -> Iterator[str]:
    """The events of a repository's hooks, with a hint for a misspelt name."""
    for event, entries in events.items():
        if entries:
            listed = entries if isinstance(entries, list) else ()
            inner = [key for entry in listed if isinstance(entry, dict) for key in entry]
            found = names.misspelt((event,), (*EVENTS, *names.BLOCKING_EVENTS)) or names.misspelt(
                inner, names.OF_HOOKS
            )
            hint = "" if found is None else f": {found[0]} is perhaps meant as {found[1]}"
            yield f"{event}{hint}"


def _commands(event: str, entries: object, source: SettingsSource) -> Iterator[HookCommand]:
    where = f"{source.name}: hooks.{event}"
    if not isinstance(entries, list):
        raise GuardError(f"{where} must be a list")
    for entry in entries:
        hooks = entry.get("hooks") if isinstance(entry, dict) else None
        matcher = entry.get("matcher", "") if isinstance(entry, dict) else ""
        if not isinstance(hooks, list) or not isinstance(matcher, str | None):
            raise GuardError(f"{where}: an entry must have a matcher and a list of hooks")
        _refuse_misspelt(entry, names.OF_HOOKS, source, f"hooks.{event}: ")
        why = why_no_matcher(matcher)
        if why is not None:
            raise GuardError(f"{where}: the matcher {matcher!r} cannot be kept: {why}")
        for hook in hooks:
            yield _command(event, matcher or "", hook, source)


def _command(event: str, matcher: str, hook: object, source: SettingsSource) -> HookCommand:
    where = f"{source.name}: hooks.{event}"
    kind = hook.get("type") if isinstance(hook, dict) else None
    if not isinstance(hook, dict) or kind != "command":
        raise GuardError(f"{where}: ralph runs hooks of the type command alone, not {kind!r}")
    _refuse_misspelt(hook, names.OF_HOOK, source, f"hooks.{event}: ")
    command, timeout = hook.get("command"), hook.get("timeout", _DEFAULT_TIMEOUT_S)
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise GuardError(f"{where}: a hook needs a command")
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not 0 < timeout <= _LONGEST_TIMEOUT_S
    ):
        raise GuardError(f"{where}: timeout must be a number of seconds, more than 0 and at most a day")
    for key in ("if", "shell", "args", "asyncRewake"):
        if hook.get(key):
            raise GuardError(f"{where}: a hook with {key!r} cannot be run")
    return HookCommand(event, matcher, command, float(timeout), source.name)
