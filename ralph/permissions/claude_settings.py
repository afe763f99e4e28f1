"""Reads the permission rules, hooks and permission mode from a settings file that was written for Claude Code. Raises GuardError if
the file asks for a protection that ralph cannot provide, or misspells a key of one. Nothing may run without this protection.
"""

from __future__ import annotations

import re
from shlex import quote
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.permissions.hook_answers import EVENTS, OF_TOOLS
from ralph.permissions.rule import Effect, Matcher, PermissionRule, RuleError, parse_matcher, parse_rule
from ralph.values.claude_file import CLAUDE_KEYS, SandboxLimits, misspelt, refused_keys
from ralph.values.controls import PermissionMode
from ralph.values.outcome import CannotError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ralph.values.claude_file import ClaudeFile

_DEFAULT_TIMEOUT_S = 60.0
_LONGEST_TIMEOUT_S = 86_400.0
_LONGEST_NAME = 80
_SCRIPT = re.compile(r"[\"']?[~/$.][\w~$./{}\"'-]*|[\w./-]+\.(?:sh|bash|py|js|mjs|ts|rb|pl)")
_TIGHT_MODES = ("plan", "dontAsk")
# Keys of Claude Code's own sandbox that restrict commands.
_SANDBOX_GUARDS = refused_keys("sandbox.")
_TOP = ("permissions", "hooks", "sandbox", "disableAllHooks")
"""The top-level keys that ask for a protection."""
_GUARDS_OF_PERMISSIONS = "deny ask allow defaultMode disableBypassPermissionsMode".split()
_OF_PERMISSIONS = tuple(
    key.name.removeprefix("permissions.") for key in CLAUDE_KEYS if key.name.startswith("permissions.")
)
_OF_SANDBOX = ("enabled", "network", "filesystem", "credentials", "failIfUnavailable")
# Behind the first two, Claude Code reads these only in files that are not of a repository, or they open something.
_OF_NETWORK = tuple(
    """
    allowedDomains deniedDomains strictAllowlist allowManagedDomainsOnly allowUnixSockets allowAllUnixSockets
    allowLocalBinding allowMachLookup httpProxyPort socksProxyPort tlsTerminate
    """.split()
)
_OF_FILESYSTEM = ("denyRead", "denyWrite", "allowWrite", "allowRead", "allowManagedReadPathsOnly", "disabled")
_OF_HOOKS = ("matcher", "hooks")
_OF_HOOK = ("type", "command", "timeout")
_BLOCKING_EVENTS = refused_keys("hooks.")
"""Events of Claude Code whose hooks can refuse something, and that ralph does not support. A hook for such an event
is an error."""
_KNOWN_EVENTS = (*EVENTS, *_BLOCKING_EVENTS)
_PLACES = {
    **{key.lower(): f"permissions.{key}" for key in _GUARDS_OF_PERMISSIONS},
    **{event.lower(): f"hooks.{event}" for event in _KNOWN_EVENTS},
}


class GuardError(CannotError):
    """A file asks for a protection that ralph cannot provide. The message names the file."""


class HookCommand(Struct, frozen=True):
    """A command that ralph runs when an event occurs."""

    event: str
    matcher: str
    """Says for which tool calls the command is started (`parse_matcher`). Empty means all."""
    command: str
    timeout_s: float

    @property
    def calls(self) -> Matcher:
        """The tool calls for which the command is started. Only for an event about a tool call."""
        return parse_matcher(self.matcher if self.event in OF_TOOLS else "")

    @property
    def name(self) -> str:
        """The program of the command, and the script that it runs, for messages. The rest may hold secrets, as in a webhook."""
        first = re.split(r"[;|&<>()]+", self.command.lstrip(" \t(!"))[0]
        words = [word for word in first.split() if "=" not in word]
        script = [word for word in words[1:2] if _SCRIPT.fullmatch(word)]
        return " ".join((*words[:1], *script))[:_LONGEST_NAME]


class ClaudeSettings(Struct, frozen=True, kw_only=True):
    file: ClaudeFile
    rules: tuple[PermissionRule, ...] = ()
    hooks: tuple[HookCommand, ...] = ()
    mode: str | None = None
    """The permission mode in the document, if it is stricter than the default mode. Otherwise None."""
    forbids_bypass: bool = False
    """True if the document forbids the permission mode in which all calls run without a question."""
    sandbox: SandboxLimits = SandboxLimits()
    wants_sandbox: bool = False
    """True if the document has `sandbox.enabled`, which is no reason to refuse a run without a sandbox."""
    idle_sandbox: tuple[str, ...] = ()
    """The keys of a repository's `sandbox` block that have no effect, because they restrict nothing."""
    unused_hooks: tuple[str, ...] = ()
    """The events whose hooks ralph does not run. A misspelt event has a hint."""
    hooks_off: str = ""
    """The name of the file whose `disableAllHooks` is the reason why no hook of this one runs. Otherwise empty."""
    unknown_permissions: tuple[str, ...] = ()
    """Keys of `permissions` that Claude Code does not have."""

    @property
    def allowing(self) -> list[PermissionRule]:
        """The rules that allow calls."""
        return [rule for rule in self.rules if rule.effect is Effect.ALLOW]


def read_all(
    documents: Iterable[tuple[ClaudeFile, object]], sources: Collection[str]
) -> list[ClaudeSettings]:
    """As `read_settings`, for several files. `disableAllHooks` of a trusted file is for the hooks of all, if it is that of the
    option or `sources` have its kind.
    """
    documents = tuple(documents)
    off = (
        file.name
        for file, one in documents
        if isinstance(one, dict) and one.get("disableAllHooks") is True and file.is_trusted
        if file.kind in ("flag", *sources)
    )
    hooks_off = next(off, "")
    return [read_settings(document, file, hooks_off) for file, document in documents]


def strictest_mode(read: Iterable[ClaudeSettings]) -> PermissionMode | None:
    """The strictest permission mode that a file sets, or None."""
    modes = {found.mode for found in read}
    return next((PermissionMode(mode) for mode in _TIGHT_MODES if mode in modes), None)


def read_settings(document: object, file: ClaudeFile, hooks_off: str = "") -> ClaudeSettings:
    """The rules, hooks and mode in a file with the JSON value `document`. The file `hooks_off`, if any, says that no hook runs.
    Raises GuardError if ralph cannot provide one of them.
    """
    if not isinstance(document, dict):
        raise GuardError(f"{file.name}: a settings file must contain a JSON object")
    _refuse(wrong_at_top(document), file, "")
    permissions = _object(document, "permissions", file)
    _refuse(misspelt(permissions, _OF_PERMISSIONS), file, "permissions.")
    block = _object(document, "sandbox", file)
    _refuse(misspelt(block, _OF_SANDBOX), file, "sandbox.")
    sandbox, idle = _sandbox(block, file)
    hooks, unused = _hooks(document, file, hooks_off)
    mode = permissions.get("defaultMode")
    if isinstance(mode, str):
        _refuse(misspelt((mode,), PermissionMode), file, "permissions.defaultMode = ")
    return ClaudeSettings(
        file=file,
        rules=tuple(_rules(permissions, file)),
        hooks=hooks,
        mode=mode if mode in _TIGHT_MODES else None,
        forbids_bypass=bool(permissions.get("disableBypassPermissionsMode")),
        sandbox=sandbox,
        wants_sandbox=block.get("enabled") is True,
        idle_sandbox=idle,
        unused_hooks=unused,
        hooks_off=hooks_off if file.is_trusted else "",
        unknown_permissions=tuple(key for key in permissions if key not in _OF_PERMISSIONS),
    )


def _object(parent: Mapping[str, Any], key: str, file: ClaudeFile, place: str = "") -> dict[str, Any]:
    found = parent.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise GuardError(f"{file.name}: {place}{key} must be an object")
    return found


def _refuse(found: tuple[str, str] | None, file: ClaudeFile, place: str) -> None:
    """Raises GuardError for a misspelt key, which would protect nothing, with the name that is perhaps meant."""
    if found is not None:
        raise GuardError(
            f"{file.name}: {place}{found[0]} is not known, and is perhaps meant as {found[1]}: correct it; nothing runs "
            "without a guard that was asked for"
        )


def _rules(permissions: Mapping[str, Any], file: ClaudeFile) -> Iterator[PermissionRule]:
    for effect in Effect:
        listed = permissions.get(effect.value)
        if listed is None:
            continue
        key = f"permissions.{effect.value}"
        if not isinstance(listed, list):
            if effect is not Effect.ALLOW:
                raise GuardError(f"{file.name}: {key} must be a list of rules")
            continue
        for text in listed:
            try:
                yield parse_rule(text, effect, f"{key} of {file.name}", file.root)
            except RuleError as error:
                # A rule that allows only widens what other rules narrow: without it less may run.
                if effect is not Effect.ALLOW:
                    raise GuardError(
                        f"{file.name}: {key}: {error}; nothing runs without this rule"
                    ) from error


def _sandbox(block: Mapping[str, Any], file: ClaudeFile) -> tuple[SandboxLimits, tuple[str, ...]]:
    """The restrictions of the `sandbox` block, and the keys of a repository's without effect. Raises GuardError for one not kept."""
    is_strict = bool(block.get("failIfUnavailable")) and block.get("enabled") is not False
    if file.is_trusted:
        for key in filter(block.get, _SANDBOX_GUARDS):
            raise _not_kept(file, key)
        return SandboxLimits(is_strict), ()
    if block.get("enabled") is False:  # Claude Code ignores the rest of the block too
        return SandboxLimits(), tuple(f"sandbox.{key}" for key in block)
    network, filesystem = (_object(block, part, file, "sandbox.") for part in ("network", "filesystem"))
    _refuse(misspelt(network, _OF_NETWORK), file, "sandbox.network.")
    _refuse(misspelt(filesystem, _OF_FILESYSTEM), file, "sandbox.filesystem.")
    if block.get("credentials"):
        raise _not_kept(file, "credentials")
    if filesystem.get("denyWrite"):
        raise _not_kept(file, "filesystem.denyWrite")
    read_deny = _texts(filesystem, "denyRead", file) or ()
    if any(not path.startswith(("/", "~/")) or set(path) & set("*?[") for path in read_deny):
        raise _not_kept(file, "filesystem.denyRead")
    hosts = _texts(network, "allowedDomains", file)
    limits = SandboxLimits(is_strict, hosts, _texts(network, "deniedDomains", file) or (), read_deny)
    given = [key for key in block if key not in ("network", "filesystem")]
    given += [f"network.{key}" for key in network] + [f"filesystem.{key}" for key in filesystem]
    # Ralph's own sandbox is on, so `enabled` is kept without a word.
    said = (*limits.keys, "sandbox.enabled", "sandbox.failIfUnavailable", "sandbox.credentials")
    return limits, tuple(f"sandbox.{key}" for key in given if f"sandbox.{key}" not in said)


def _texts(part: Mapping[str, Any], key: str, file: ClaudeFile) -> tuple[str, ...] | None:
    listed = part.get(key)
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise GuardError(f"{file.name}: sandbox: {key} must be a list of texts")
    return tuple(listed)


def _not_kept(file: ClaudeFile, key: str) -> GuardError:
    advice = (
        "set it with --net, --allow-host or [sandbox] in ralph's own settings"
        if file.is_trusted
        else "nothing runs without a guard that was asked for: use permissions.deny with Read(...) or Edit(...), or "
        "remove it"
    )
    return GuardError(f"{file.name}: sandbox.{key} cannot be honoured; {advice}")


def _hooks(
    document: Mapping[str, Any], file: ClaudeFile, hooks_off: str
) -> tuple[tuple[HookCommand, ...], tuple[str, ...]]:
    """The hooks that ralph runs, and the names of the events whose hooks it does not run."""
    if not file.is_trusted and not isinstance(document.get("hooks"), dict | None):
        return (), ("which are not objects",)
    asked = {event: entries for event, entries in _object(document, "hooks", file).items() if entries}
    if not file.is_trusted:
        named = []  # with a hint for a misspelt name
        for event, entries in asked.items():
            listed = entries if isinstance(entries, list) else ()
            inner = [key for entry in listed if isinstance(entry, dict) for key in entry]
            found = misspelt((event,), _KNOWN_EVENTS) or misspelt(inner, _OF_HOOKS)
            named.append(event if found is None else f"{event}: {found[0]} is perhaps meant as {found[1]}")
        return (), tuple(named)
    if hooks_off:
        return (), tuple(asked)
    _refuse(misspelt(document.get("hooks") or (), _KNOWN_EVENTS), file, "hooks.")
    for event in _BLOCKING_EVENTS:
        if event in asked:
            raise GuardError(
                f"{file.name}: hooks.{event}: ralph runs commands for {', '.join(EVENTS)} alone, and does not run "
                "without a hook that may refuse something; leave it out, or leave out the file (--setting-sources)"
            )
    made = [hook for event in asked if event in EVENTS for hook in _commands(event, asked[event], file)]
    return tuple(made), tuple(event for event in asked if event not in EVENTS)


def _commands(event: str, entries: object, file: ClaudeFile) -> Iterator[HookCommand]:
    where = f"{file.name}: hooks.{event}"
    if not isinstance(entries, list):
        raise GuardError(f"{where} must be a list")
    for entry in entries:
        found = entry if isinstance(entry, dict) else {}
        hooks, matcher = found.get("hooks"), found.get("matcher", "")
        if not isinstance(hooks, list) or not isinstance(matcher, str | None):
            raise GuardError(f"{where}: an entry must have a matcher and a list of hooks")
        _refuse(misspelt(found, _OF_HOOKS), file, f"hooks.{event}: ")
        if event in OF_TOOLS:
            try:
                parse_matcher(matcher)
            except ValueError as error:
                raise GuardError(f"{where}: the matcher {matcher!r} cannot be kept: {error}") from error
        for hook in hooks:
            yield _command(event, matcher or "", hook, file)


def _command(event: str, matcher: str, hook: object, file: ClaudeFile) -> HookCommand:
    where = f"{file.name}: hooks.{event}"
    kind = hook.get("type") if isinstance(hook, dict) else None
    if not isinstance(hook, dict) or kind != "command":
        raise GuardError(f"{where}: ralph runs hooks of the type command alone, not {kind!r}")
    _refuse(misspelt(hook, _OF_HOOK), file, f"hooks.{event}: ")
    command, timeout = hook.get("command"), hook.get("timeout", _DEFAULT_TIMEOUT_S)
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise GuardError(f"{where}: a hook needs a command")
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout <= _LONGEST_TIMEOUT_S:
        raise GuardError(f"{where}: timeout must be a number of seconds, more than 0 and at most a day")
    shell = hook.get("shell")
    for key in filter(hook.get, ("if", "asyncRewake", *(() if shell == "bash" else ("shell",)))):
        raise GuardError(f"{where}: a hook with {key!r} cannot be run")
    args = hook.get("args", ())
    if not isinstance(args, list | tuple) or not all(
        isinstance(one, str) and "\0" not in one for one in args
    ):
        raise GuardError(f"{where}: args must be a list of texts")
    command = _as_line([command, *args]) if "args" in hook else command
    return HookCommand(event, matcher, command, float(timeout))


def _as_line(words: Sequence[str]) -> str:
    """The line of a shell that starts a program with its arguments. Only the project's directory in them is replaced, as in Claude Code."""
    name = "CLAUDE_PROJECT_DIR"
    parted = (word.split(f"${{{name}}}") for word in words)
    return " ".join(
        f'"${name}"'.join(quote(part) if part else "" for part in parts) or "''" for parts in parted
    )


def wrong_at_top(keys: Iterable[str]) -> tuple[str, str] | None:
    """The first top-level key that is misspelt, or belongs elsewhere, such as `deny`, and what is meant, or None."""
    keys = tuple(keys)
    misplaced = ((key, _PLACES[key.lower()]) for key in keys if key.lower() in _PLACES)
    return misspelt(keys, _TOP) or next(misplaced, None)
