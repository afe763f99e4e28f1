"""The settings as values: one Struct for each table, and all of them together.

Refuses to know where a value came from or what it may be: `ralph/settings/merge.py` reads them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ralph.api.clocks import ClockLimits
from ralph.retry.backoff import PATIENT_BUDGET_S, PATIENT_SCHEDULE_S
from ralph.values.credentials import NO_HEADERS, Secret, secret_header_values
from ralph.values.endpoint import DEFAULT_BASE_URL
from ralph.values.limits import LimitSettings
from ralph.values.models import ALIASES, DEFAULT_MAX_TOKENS, USUAL_MODEL
from ralph.values.tool_choice import enabled_tools

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ralph.conversation.target import Target
    from ralph.values.credentials import Credential, Headers
    from ralph.values.models import NamedModel

EFFORTS = ("low", "medium", "high", "xhigh", "max")
RETRY_POLICIES = ("standard", "patient", "off", "custom")
STRATEGIES = ("fallback", "round_robin")
REVERTS = ("cooldown-expiry", "never")


class ModelSettings(Struct, frozen=True):
    name: str = USUAL_MODEL
    """The model's id; aliases are resolved, unless there are targets, which it does not choose."""
    max_tokens: int = DEFAULT_MAX_TOKENS
    """Largest answer in tokens, >= 1; `models.max_tokens_for` lowers it to what the model is known for."""
    effort: str | None = None
    """One of `EFFORTS`; None: the API's own choice."""
    base_url: str = DEFAULT_BASE_URL
    """As `values/endpoint.normal_base_url` makes it."""
    ca_file: Path | None = None
    """PEM file of trusted certificate authorities, absolute; None: the usual ones. Not checked to exist."""


class RetrySettings(Struct, frozen=True):
    policy: str = "standard"
    """One of `RETRY_POLICIES`. The three numbers count for "custom" only."""
    strategy: str = "fallback"
    """One of `STRATEGIES`: which of several targets is asked."""
    revert: str = "cooldown-expiry"
    """One of `REVERTS`: when "fallback" goes back to an earlier target."""
    enabled: bool = True
    """False: nothing is retried, whatever the policy."""
    max_retries: int = 4
    """Retries after the first call; 0: none."""
    base_delay_s: float = 2
    """Seconds before the first retry, doubled for each further one; 0: retry at once."""
    max_delay_s: float = 300
    """A wait over so many seconds ends the chain; 0 or less: no maximum."""


class ClockSettings(ClockLimits, frozen=True):
    heartbeat_s: float = 30.0
    """Seconds without anything to show until a heartbeat says what is awaited; 0: no heartbeats."""
    input_s: float = 60.0
    """Seconds until a pipe on standard input has given its first byte; 0: it is waited for without a limit."""


class SessionSettings(Struct, frozen=True):
    keep_days: int = 30
    """Journals that nothing was written to for so many days are removed; 0: none is."""
    keep_mb: int = 1000
    """Megabytes of journals beyond which the oldest are removed; 0: none is."""


class ToolsSettings(Struct, frozen=True):
    allowed: tuple[str, ...] | None = None
    """Names that `tool_choice` knows: these and the read-only ones. None: all."""
    disallowed: tuple[str, ...] = ()
    """Names that are taken away; empty: none is."""
    bash_timeout_s: float = 120
    """Seconds a command gets when the model names no time; > 0, at most `bash_max_timeout_s`."""
    bash_max_timeout_s: float = 600
    """Seconds a command gets at most; a longer wish of the model is clamped. > 0."""
    max_output_bytes: int = 30_000
    """Bytes of a tool's output that reach the model; >= 1."""
    pass_env: tuple[str, ...] = ()
    """Variables that tools see although they look like credentials; empty: none."""


class LoopSettings(Struct, frozen=True):
    """Of `ralph loop`; the defaults are those of `--retry patient`."""

    outage_waits_s: tuple[float, ...] = PATIENT_SCHEDULE_S
    """Seconds to wait after the first, second, ... iteration in a row that ended with exit 75, the last repeated."""
    outage_budget_s: float = PATIENT_BUDGET_S
    """Seconds that such waits in a row may take together; > 0."""


class Remark(Struct, frozen=True):
    text: str
    advice: str
    """What to do about it."""


class Settings(Struct, frozen=True):
    model: ModelSettings = ModelSettings()
    retry: RetrySettings = RetrySettings()
    limits: LimitSettings = LimitSettings()
    clocks: ClockSettings = ClockSettings()
    sessions: SessionSettings = SessionSettings()
    tools: ToolsSettings = ToolsSettings()
    loop: LoopSettings = LoopSettings()
    exact_tools: tuple[str, ...] | None = None
    """`--tools`: these and no others; None: not given."""
    targets: tuple[Target, ...] = ()
    """Who is asked, the first first; `load_settings` gives at least one."""
    aliases: Mapping[str, NamedModel] = field(default_factory=lambda: ALIASES)
    """What short names of models stand for at the endpoint of the environment."""
    credential: Credential | None = None
    """Of the environment. None: requests carry no key (a local server)."""
    custom_headers: Headers = NO_HEADERS
    """Sent with every request."""
    key_variables: frozenset[str] = frozenset()
    """Named by any `api_key_env`: tools do not see them, however short what they hold is."""
    unused_secrets: Secret[tuple[str, ...]] = Secret(())
    """Of targets that are set somewhere and not asked: nobody else may see them either."""
    remarks: tuple[Remark, ...] = ()
    """What people should know of them; nothing of it stops a run."""
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """For each name in `KEYS`, "targets" and "tools" (those that limit them): "flag --model", a variable's name, a
    file's path, several of these with commas, or "default"."""

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        """What of ralph's tools a run may have."""
        return enabled_tools(self.exact_tools, self.tools.allowed, self.tools.disallowed)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the start of the run."""
        return tuple(remark.text for remark in self.remarks)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never be shown: every key, and every header that looks like one, whether it is sent or not."""
        secrets = [] if self.credential is None else [self.credential.secret]
        secrets += secret_header_values(self.custom_headers.plain)
        for target in self.targets:
            secrets += target.secrets
        return tuple(dict.fromkeys((*secrets, *self.unused_secrets.plain)))
