"""The table of all settings: each one's name, where it can come from, what it must be, and who may not set it.

Refuses to read anything: `ralph/settings.py` does. docs/settings.md explains the table to users.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from ralph.core import setting_checks as must_be
from ralph.core.setting_tables import (
    EFFORTS,
    RETRY_POLICIES,
    REVERTS,
    STRATEGIES,
    ClockSettings,
    LimitSettings,
    LoopSettings,
    ModelSettings,
    RetrySettings,
    SessionSettings,
    ToolsSettings,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES: dict[str, type] = {
    "model": ModelSettings,
    "retry": RetrySettings,
    "limits": LimitSettings,
    "clocks": ClockSettings,
    "sessions": SessionSettings,
    "tools": ToolsSettings,
    "loop": LoopSettings,
}


class Key(NamedTuple):
    """One setting: where it can come from and what it must be."""

    name: str
    """Table and key, with a dot between."""
    check: Callable[[object], Any]
    flag: str | None = None
    variable: str | None = None
    read: Callable[[str], object] = str
    """Reads the variable's text."""
    trusted_only: bool = False
    """Not from the working directory's file."""

    @property
    def default(self) -> Any:
        table, _, key = self.name.partition(".")
        return getattr(TABLES[table], key)


KEYS = (
    Key("model.name", must_be.text, "--model", "ANTHROPIC_MODEL"),
    Key("model.max_tokens", must_be.whole(1), "--max-tokens"),
    Key("model.effort", must_be.one_of(*EFFORTS), "--effort"),
    Key("model.base_url", must_be.base_url, "--base-url", "ANTHROPIC_BASE_URL", trusted_only=True),
    Key("model.ca_file", must_be.path, None, "SSL_CERT_FILE", trusted_only=True),
    Key("retry.policy", must_be.one_of(*RETRY_POLICIES), "--retry"),
    Key("retry.strategy", must_be.one_of(*STRATEGIES)),
    Key("retry.revert", must_be.one_of(*REVERTS)),
    Key("retry.enabled", must_be.boolean),
    Key("retry.max_retries", must_be.whole(0)),
    Key("retry.base_delay_s", must_be.seconds),
    Key("retry.max_delay_s", must_be.seconds_or_none),
    Key("limits.max_turns", must_be.whole(1), "--max-turns"),
    Key("limits.max_budget_usd", must_be.positive_dollars, "--max-budget-usd"),
    Key("limits.max_time_s", must_be.duration, "--max-time"),
    *(Key(f"clocks.{clock.name}", must_be.seconds) for clock in fields(ClockSettings)),
    Key("sessions.keep_days", must_be.whole(0)),
    Key("sessions.keep_mb", must_be.whole(0)),
    Key("tools.allowed", must_be.tool_names, "--allowed-tools"),
    Key("tools.disallowed", must_be.tool_names, "--disallowed-tools"),
    Key(
        "tools.bash_timeout_s",
        must_be.positive_seconds,
        None,
        "BASH_DEFAULT_TIMEOUT_MS",
        must_be.milliseconds,
    ),
    Key(
        "tools.bash_max_timeout_s",
        must_be.positive_seconds,
        None,
        "BASH_MAX_TIMEOUT_MS",
        must_be.milliseconds,
    ),
    Key("tools.max_output_bytes", must_be.whole(1), None, "BASH_MAX_OUTPUT_LENGTH", must_be.number),
    Key("tools.pass_env", must_be.variable_names, "--pass-env", trusted_only=True),
    Key("loop.outage_waits_s", must_be.list_of_seconds),
    Key("loop.outage_budget_s", must_be.positive_seconds),
)
FALLBACK = Key("model.fallback", must_be.comma_separated, "--fallback-model")
"""A flag alone: what stands in a file for good is a target."""
BY_NAME = {key.name: key for key in (*KEYS, FALLBACK)}
ALLOWED = {table: tuple(key.name for key in fields(kind)) for table, kind in TABLES.items()}
CUSTOM_ONLY = ("retry.max_retries", "retry.base_delay_s", "retry.max_delay_s")

# What may stand nowhere in the working directory's file, at any depth, and the other places for it. `sandbox*`, which
# goes with them, does not exist yet: such a file is told why it may not, and not that it is unknown.
UNTRUSTED = {key.name.partition(".")[2]: (key.variable, key.flag) for key in KEYS if key.trusted_only} | {
    "headers": ("ANTHROPIC_CUSTOM_HEADERS", None),
    "api_key_env": ("ANTHROPIC_API_KEY", None),
}
