"""The table of all settings: each one's name, where it can come from, what it must be, and who may not set it.

Refuses to read anything: `ralph/settings/merge.py` does. docs/settings.md explains the table to users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ralph.settings import checks as must_be
from ralph.settings import tightening as may
from ralph.settings.tables import (
    EFFORTS,
    RETRY_POLICIES,
    REVERTS,
    STRATEGIES,
    ClockSettings,
    LoopSettings,
    ModelSettings,
    RetrySettings,
    SessionSettings,
    ToolsSettings,
)
from ralph.values.limits import LimitSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

    from ralph.settings.tightening import Tightening

TABLES: dict[str, type[Struct]] = {
    "model": ModelSettings,
    "retry": RetrySettings,
    "limits": LimitSettings,
    "clocks": ClockSettings,
    "sessions": SessionSettings,
    "tools": ToolsSettings,
    "loop": LoopSettings,
}


TARGETS = "targets"
"""The list beside the tables: whom to ask."""


class Key(NamedTuple):
    """One setting: where it can come from and what it must be."""

    name: str
    """Table and key, with a dot between."""
    check: Callable[[object], Any]
    flag: str | None = None
    variable: str | None = None
    read: Callable[[str], object] = str
    """Reads the variable's text."""
    in_repository: Tightening | None = None
    """What a file that lies in the working directory may do to it; None: nothing (exit 78)."""

    @property
    def default(self) -> Any:
        table, _, key = self.name.partition(".")
        return getattr(TABLES[table](), key)


KEYS = (
    Key("model.name", must_be.text, "--model", "ANTHROPIC_MODEL", in_repository=may.ANY),
    Key("model.max_tokens", must_be.whole(1), "--max-tokens", in_repository=may.ANY),
    Key("model.effort", must_be.one_of(*EFFORTS), "--effort", in_repository=may.ANY),
    Key("model.base_url", must_be.base_url, "--base-url", "ANTHROPIC_BASE_URL"),
    Key("model.ca_file", must_be.path, None, "SSL_CERT_FILE"),
    Key("retry.policy", must_be.one_of(*RETRY_POLICIES), "--retry", in_repository=may.FEWER_RETRIES),
    Key("retry.strategy", must_be.one_of(*STRATEGIES)),
    Key("retry.revert", must_be.one_of(*REVERTS)),
    Key("retry.enabled", must_be.boolean),
    Key("retry.max_retries", must_be.whole(0)),
    Key("retry.base_delay_s", must_be.seconds),
    Key("retry.max_delay_s", must_be.seconds_or_none),
    Key("limits.max_turns", must_be.whole(1), "--max-turns", in_repository=may.SMALLER),
    Key("limits.max_budget_usd", must_be.positive_dollars, "--max-budget-usd", in_repository=may.SMALLER),
    Key("limits.max_time_s", must_be.duration, "--max-time", in_repository=may.SMALLER),
    *(
        Key(f"clocks.{clock}", must_be.seconds, in_repository=may.SMALLER)
        for clock in ClockSettings.__struct_fields__
    ),
    Key("sessions.keep_days", must_be.whole(0)),
    Key("sessions.keep_mb", must_be.whole(0)),
    Key("tools.allowed", must_be.tool_names, "--allowed-tools", in_repository=may.NARROWS),
    Key("tools.disallowed", must_be.tool_names, "--disallowed-tools", in_repository=may.ADDS),
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
    Key("tools.pass_env", must_be.variable_names, "--pass-env"),
    Key("loop.outage_waits_s", must_be.list_of_seconds),
    Key("loop.outage_budget_s", must_be.positive_seconds),
)
FALLBACK = Key("model.fallback", must_be.comma_separated, "--fallback-model")
"""A flag alone: what stands in a file for good is a target."""
EXACT_TOOLS = Key("tools.exact", must_be.exact_tools, "--tools")
"""A flag alone: it is about one run."""
BY_NAME = {key.name: key for key in (*KEYS, FALLBACK, EXACT_TOOLS)}
ALLOWED = {table: kind.__struct_fields__ for table, kind in TABLES.items()}
CUSTOM_ONLY = ("retry.max_retries", "retry.base_delay_s", "retry.max_delay_s")

# A repository may say these nowhere, at any depth, and is told where they can stand. `sandbox*`, which goes with them,
# does not exist yet: such a file is told why it may not, and not that it is unknown.
_AT_ANY_DEPTH: dict[str, tuple[str | None, ...]] = {
    "base_url": ("ANTHROPIC_BASE_URL", "--base-url"),
    "ca_file": ("SSL_CERT_FILE",),
    "pass_env": ("--pass-env",),
    "headers": ("ANTHROPIC_CUSTOM_HEADERS",),
    "api_key_env": ("ANTHROPIC_API_KEY",),
    "price": (),
}


def other_places(key: str, whole_name: str) -> tuple[str, ...] | None:
    """Variable and flag for what a file in the working directory may not say; None: it may, or there is no such key.

    `key` is the name that stands there, `whole_name` the one with all that it stands in.
    """
    known = BY_NAME.get(whole_name) if whole_name not in (FALLBACK.name, EXACT_TOOLS.name) else None
    if known is not None and known.in_repository is None:
        places: tuple[str | None, ...] = (known.variable, known.flag)
    elif key in _AT_ANY_DEPTH:
        places = _AT_ANY_DEPTH[key]
    elif whole_name == TARGETS or key.startswith("sandbox"):
        places = ()
    else:
        return None
    return tuple(place for place in places if place)
