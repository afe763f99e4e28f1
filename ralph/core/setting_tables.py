"""The settings as values: one frozen dataclass for each table, and all of them together.

Refuses to know where a value came from or what it may be: `ralph/settings.py` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from ralph.core.clocks import ClockLimits
from ralph.core.credentials import looks_like_credential_name, looks_like_credential_value
from ralph.core.endpoint import DEFAULT_BASE_URL
from ralph.core.models import ALIASES, DEFAULT_MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ralph.core.credentials import Credential
    from ralph.core.target import Target

EFFORTS = ("low", "medium", "high", "xhigh", "max")
RETRY_POLICIES = ("standard", "patient", "off", "custom")


@dataclass(frozen=True)
class ModelSettings:
    name: str = ALIASES["sonnet"]
    """The model's id; aliases are resolved."""
    max_tokens: int = DEFAULT_MAX_TOKENS
    """Largest answer in tokens, >= 1; `models.max_tokens_for` lowers it to what the model is known for."""
    effort: str | None = None
    """One of `EFFORTS`; None: the API's own choice."""
    base_url: str = DEFAULT_BASE_URL
    """Without a closing `/` or `/v1`: `base_url + "/v1/messages"` is right."""
    ca_file: Path | None = None
    """PEM file of trusted certificate authorities, absolute; None: the usual ones. Not checked to exist."""


@dataclass(frozen=True)
class RetrySettings:
    policy: str = "standard"
    """One of `RETRY_POLICIES`. The three numbers count for "custom" only."""
    enabled: bool = True
    """False: nothing is retried, whatever the policy."""
    max_retries: int = 4
    """Retries after the first call; 0: none."""
    base_delay_s: float = 2
    """Seconds before the first retry, doubled for each further one; 0: retry at once."""
    max_delay_s: float = 300
    """A wait over so many seconds ends the chain; 0 or less: no maximum."""
    strategy: str = "fallback"
    revert: str = "cooldown-expiry"


@dataclass(frozen=True)
class LimitSettings:
    max_time_s: float | None = None
    """Seconds from the start of the process after which the run ends (exit 124); None: no limit."""


@dataclass(frozen=True)
class ClockSettings(ClockLimits):
    heartbeat_s: float = 30.0
    """Seconds without anything to show until a heartbeat says what is awaited; 0: no heartbeats."""


@dataclass(frozen=True)
class SessionSettings:
    keep_days: int = 30
    """Journals that nothing was written to for so many days are removed; 0: none is."""
    keep_mb: int = 1000
    """Megabytes of journals beyond which the oldest are removed; 0: none is."""


@dataclass(frozen=True)
class ToolsSettings:
    allowed: tuple[str, ...] | None = None
    """Names out of `setting_checks.TOOL_NAMES`; None: all, empty: none."""
    disallowed: tuple[str, ...] = ()
    """Names taken away from `allowed`; empty: none is."""
    bash_timeout_s: float = 120
    """Seconds a command gets when the model names no time; > 0, at most `bash_max_timeout_s`."""
    bash_max_timeout_s: float = 600
    """Seconds a command gets at most; a longer wish of the model is clamped. > 0."""
    max_output_bytes: int = 30_000
    """Bytes of a tool's output that reach the model; >= 1."""
    pass_env: tuple[str, ...] = ()
    """Variables that tools see although they look like credentials; empty: none."""


@dataclass(frozen=True)
class Settings:
    model: ModelSettings = ModelSettings()
    retry: RetrySettings = RetrySettings()
    limits: LimitSettings = LimitSettings()
    clocks: ClockSettings = ClockSettings()
    sessions: SessionSettings = SessionSettings()
    tools: ToolsSettings = ToolsSettings()
    targets: tuple[Target, ...] = ()
    """Who is asked, the first first; `load_settings` gives at least one."""
    credential: Credential | None = None
    """Of the environment. None: requests carry no key (a local server)."""
    custom_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Name and value, sent with every request in this order; latin-1."""
    warnings: tuple[str, ...] = ()
    """Sentences for the start of the run; none of them stops it."""
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """For each name in `KEYS`: "flag --model", a variable's name, a file's path, or "default"."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never be shown: the credential, and the custom headers that look like one."""
        secrets = [] if self.credential is None else [self.credential.secret]
        for name, value in self.custom_headers:
            if _is_secret_header(name, value):
                secrets += [value, value.rpartition(" ")[2]]  # `Bearer x`: x alone is secret too
        return tuple(dict.fromkeys(filter(None, secrets)))


def _is_secret_header(name: str, value: str) -> bool:
    return looks_like_credential_name(name) or looks_like_credential_value(value)
