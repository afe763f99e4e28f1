"""A settings file that was made for Claude Code, as ralph reads it and hands it on, and the table of the keys in such a file."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.values.outcome import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable


class ClaudeFile(Struct, frozen=True):
    """A settings file for Claude Code, or the value of `--settings`."""

    name: str
    kind: str
    """`user`, `project`, `local` or `flag`. A user's file inside the working directory is a `project` file, because
    somebody else may have written it."""
    root: str
    """The directory to which relative paths in the file are relative. Empty means the working directory."""
    text: str
    why_open: str = ""
    """The reason why the user's own file, or that of `--settings`, can only tighten: somebody else may have written
    it. Otherwise empty."""

    @property
    def is_trusted(self) -> bool:
        """Whether the user wrote the file. A hook is a program, so ralph runs a hook only if its file is trusted."""
        return self.kind in ("user", "flag") and not self.why_open


class KeyEffect(StrEnum):
    """The effect of a key of a trusted file."""

    HONOURED = "honoured"
    NAMED = "named in a notice"
    REFUSED = "exit 78"


class ClaudeKey(Struct, frozen=True):
    name: str
    does: KeyEffect
    says: str = ""
    """The effect of the key in ralph, or what to use instead. Empty if there is nothing to use."""
    is_trusted_only: bool = False
    """True if the key counts in the user's own file and in that of `--settings`, but not where somebody else may
    have written the file."""


_NO_SERVER = "no server of a repository's `.mcp.json` starts unless `--mcp-config .mcp.json` or `[mcp] repository` says so"
_IN_A_PROMPT = "`--append-system-prompt`"
_GUARD = "`--net`, `--allow-host`, `[sandbox]` in ralph's own settings"

CLAUDE_KEYS = (
    ClaudeKey("permissions.deny", KeyEffect.HONOURED, "[permission rules](permissions.md)"),
    ClaudeKey("permissions.ask", KeyEffect.HONOURED, "[permission rules](permissions.md)"),
    ClaudeKey("permissions.allow", KeyEffect.HONOURED, "counts in the mode `dontAsk`"),
    ClaudeKey("permissions.defaultMode", KeyEffect.HONOURED, "`plan` and `dontAsk`; the others are ralph's default"),
    ClaudeKey("permissions.disableBypassPermissionsMode", KeyEffect.HONOURED, "needs the mode `dontAsk` or `plan`"),
    ClaudeKey("permissions.additionalDirectories", KeyEffect.HONOURED, "as `--add-dir`", is_trusted_only=True),
    ClaudeKey("permissions.disableAutoMode", KeyEffect.NAMED),
    ClaudeKey("permissions.skipDangerousModePermissionPrompt", KeyEffect.NAMED, "nobody is asked"),
    ClaudeKey("hooks", KeyEffect.HONOURED, "[hooks](permissions.md#hooks)", is_trusted_only=True),
    ClaudeKey("hooks.PermissionRequest", KeyEffect.REFUSED, "a `PreToolUse` hook"),
    ClaudeKey("disableAllHooks", KeyEffect.HONOURED, "no command hook runs", is_trusted_only=True),
    ClaudeKey("sandbox.enabled", KeyEffect.HONOURED, "`true` is what ralph does; `false` has no effect: `--sandbox off`"),
    ClaudeKey("sandbox.failIfUnavailable", KeyEffect.HONOURED, "as `--sandbox strict`"),
    ClaudeKey("sandbox.network", KeyEffect.REFUSED, _GUARD),
    ClaudeKey("sandbox.filesystem", KeyEffect.REFUSED, _GUARD),
    ClaudeKey("sandbox.credentials", KeyEffect.REFUSED, _GUARD),
    ClaudeKey("model", KeyEffect.HONOURED, "as `--model`; that of the user's own file is weaker than `config.toml`", is_trusted_only=True),
    ClaudeKey("env", KeyEffect.HONOURED, "[variables](#variables-and-output)", is_trusted_only=True),
    ClaudeKey("apiKeyHelper", KeyEffect.HONOURED, "a shell command that prints the key", is_trusted_only=True),
    ClaudeKey("$schema", KeyEffect.HONOURED, "for editors"),
    ClaudeKey("alwaysThinkingEnabled", KeyEffect.NAMED, "`--effort`, or `thinking` of a target"),
    ClaudeKey("effortLevel", KeyEffect.NAMED, "`--effort`"),
    ClaudeKey("fallbackModel", KeyEffect.NAMED, "`--fallback-model`"),
    ClaudeKey("cleanupPeriodDays", KeyEffect.NAMED, "`[sessions] keep_days`"),
    ClaudeKey("enableAllProjectMcpServers", KeyEffect.NAMED, _NO_SERVER),
    ClaudeKey("enabledMcpjsonServers", KeyEffect.NAMED, _NO_SERVER),
    ClaudeKey("disabledMcpjsonServers", KeyEffect.NAMED, _NO_SERVER),
    ClaudeKey("outputStyle", KeyEffect.NAMED, _IN_A_PROMPT),
    ClaudeKey("language", KeyEffect.NAMED, _IN_A_PROMPT),
    ClaudeKey("attribution", KeyEffect.NAMED, _IN_A_PROMPT),
    ClaudeKey("includeCoAuthoredBy", KeyEffect.NAMED, _IN_A_PROMPT),
    ClaudeKey("otelHeadersHelper", KeyEffect.NAMED, "`OTEL_EXPORTER_OTLP_HEADERS`"),
    ClaudeKey("enabledPlugins", KeyEffect.NAMED, "copy the plugin's commands and skills into `.claude/`"),
    ClaudeKey("extraKnownMarketplaces", KeyEffect.NAMED),
    ClaudeKey("awsAuthRefresh", KeyEffect.NAMED, "ralph signs no requests for Amazon Bedrock"),
    ClaudeKey("awsCredentialExport", KeyEffect.NAMED, "ralph signs no requests for Amazon Bedrock"),
    ClaudeKey("forceLoginMethod", KeyEffect.NAMED, "there is no login"),
    ClaudeKey("statusLine", KeyEffect.NAMED, "nobody looks at a screen"),
)  # fmt: skip
"""The keys of Claude Code's settings files, as ralph treats them in the user's own file and in `--settings`. Any other key is
named in a notice too. A key that holds a whole object stands for all keys in it."""

_BY_NAME = {key.name: key for key in CLAUDE_KEYS}
_OBJECTS = ("permissions", "sandbox")
TRUSTED_ONLY = tuple(key.name for key in CLAUDE_KEYS if key.is_trusted_only)


def keys_within(document: dict[str, object]) -> tuple[str, ...]:
    """The names of all keys of a document that have a row, or could have one, such as `permissions.deny`."""
    found = []
    for key, value in document.items():
        is_object = key in _OBJECTS and isinstance(value, dict)
        found += [f"{key}.{one}" for one in value] if is_object and isinstance(value, dict) else [key]
    return tuple(found)


def refused_keys(prefix: str) -> tuple[str, ...]:
    """The keys of an object for which nothing runs, without the name of the object, which is `prefix`."""
    return tuple(
        key.name.removeprefix(prefix)
        for key in CLAUDE_KEYS
        if key.does is KeyEffect.REFUSED and key.name.startswith(prefix)
    )


def key_named(name: str) -> ClaudeKey:
    """The row of a key. A key without a row has no effect."""
    return _BY_NAME.get(name) or ClaudeKey(name, KeyEffect.NAMED)


# `denny` and `deny` are 0.89 alike, `PostToolBatch` and `PostToolUse`, which are two events, 0.67.
_LEAST_LIKENESS = 0.8


def misspelt(keys: Iterable[str], names: Iterable[str]) -> tuple[str, str] | None:
    """The first key that resembles one of `names` but equals none, and the name that it resembles, or None."""
    names = tuple(names)
    return next(
        (
            (key, name)
            for key in keys
            if key not in names
            for name in names
            if nearest(name.lower(), (key.lower(),), _LEAST_LIKENESS)
        ),
        None,
    )


class SandboxLimits(Struct, frozen=True):
    """The restrictions of a `sandbox` block that ralph keeps for commands."""

    is_strict: bool = False
    """True if the run must not start unless its commands get a sandbox."""
    hosts: tuple[str, ...] | None = None
    """The only hosts that commands may reach. None means that the block names no such list."""
    denied_hosts: tuple[str, ...] = ()
    read_deny: tuple[str, ...] = ()
    """Paths that commands must not read. Each is absolute or begins with `~/`."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the block that hold these restrictions."""
        asked = {
            "failIfUnavailable": self.is_strict,
            "network.allowedDomains": self.hosts is not None,
            "network.deniedDomains": self.denied_hosts,
            "filesystem.denyRead": self.read_deny,
        }
        return tuple(f"sandbox.{key}" for key, value in asked.items() if value)
