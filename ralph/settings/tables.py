"""The table of settings: one field for each, with its type, its default and its row, and all of them together.

A new setting is one such field, here or in `LimitSettings` or `ClockLimits`; flags, variables, keys of
files, doctor's listing and docs/settings.md are made from it.
Refuses to know where a value came from: `ralph/settings/merge.py` reads them.
"""
# No `from __future__ import annotations` here: the rows are read from the annotations, without evaluating text.

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct, field

from ralph.api.clocks import ClockLimits
from ralph.retry.backoff import PATIENT_BUDGET_S, PATIENT_SCHEDULE_S
from ralph.settings import kinds as must_be
from ralph.values.credentials import NO_HEADERS, Secret, secret_header_values
from ralph.values.endpoint import DEFAULT_BASE_URL
from ralph.values.limits import LimitSettings
from ralph.values.models import ALIASES, DEFAULT_MAX_TOKENS, USUAL_MODEL
from ralph.values.setting import (
    ADDS,
    ANY,
    FEWER_RETRIES,
    LIST_OF_SECONDS,
    NARROWS,
    POSITIVE_SECONDS,
    SECONDS,
    SECONDS_OR_NONE,
    SMALLER,
    SWITCH,
    TEXT,
    Flag,
    Key,
    Takes,
    at_least,
    one_of,
)
from ralph.values.tool_choice import enabled_tools

if TYPE_CHECKING:
    from ralph.conversation.target import Target
    from ralph.values.credentials import Credential, Headers
    from ralph.values.models import NamedModel

EFFORTS = ("low", "medium", "high", "xhigh", "max")
RETRY_POLICIES = ("standard", "patient", "off", "custom")
STRATEGIES = ("fallback", "round_robin")
REVERTS = ("cooldown-expiry", "never")


class ModelSettings(Struct, frozen=True):
    name: Annotated[
        str,
        Key(
            TEXT,
            "an id, or a [short name](models.md)",
            Flag(
                "--model",
                "Model id, or opus, sonnet, haiku; where [[targets]] are set, the one to ask first. Default: sonnet.",
                "NAME",
            ),
            "ANTHROPIC_MODEL",
            in_repository=ANY,
        ),
    ] = USUAL_MODEL
    """The model's id; aliases are resolved, unless there are targets, which it does not choose."""
    fallback: Annotated[
        tuple[str, ...],
        Key(
            must_be.COMMA_SEPARATED,
            flag=Flag(
                "--fallback-model",
                "Ask these while the model is overloaded or out of reach, in this order (commas; names of [[targets]] "
                "where they are set).",
                "NAMES",
                Takes.JOINED,
            ),
            is_in_files=False,
        ),
    ] = ()
    """Names as they were typed, in order; empty: there is no fallback."""
    max_tokens: Annotated[
        int,
        Key(
            at_least(1),
            "tokens of the longest answer, 1 or more; lowered to the model's maximum",
            Flag("--max-tokens", "Longest single answer. Default: 32000.", "N"),
            in_repository=ANY,
        ),
    ] = DEFAULT_MAX_TOKENS
    """Largest answer in tokens, >= 1; `models.max_tokens_for` lowers it to what the model is known for."""
    effort: Annotated[
        str | None,
        Key(
            one_of(*EFFORTS),
            "`low`, `medium`, `high`, `xhigh`, `max`; none: the API's choice",
            Flag("--effort", "How hard the model thinks.", choices=EFFORTS),
            in_repository=ANY,
        ),
    ] = None
    """One of `EFFORTS`; None: the API's own choice."""
    base_url: Annotated[
        str,
        Key(
            must_be.BASE_URL,
            "address of the server, with or without `/v1` or `/v1/messages` at its end; no user, password, query",
            Flag("--base-url", "Any server that speaks the Messages API.", "URL"),
            "ANTHROPIC_BASE_URL",
        ),
    ] = DEFAULT_BASE_URL
    """The address in the form that `values/endpoint.normal_base_url` gives it."""
    ca_file: Annotated[
        Path | None,
        Key(
            must_be.PATH,
            "PEM file of certificate authorities; a relative path in a file starts from that file",
            variable="SSL_CERT_FILE",
        ),
    ] = None
    """PEM file of trusted certificate authorities, absolute; None: the usual ones. Not checked to exist."""


class RetrySettings(Struct, frozen=True):
    policy: Annotated[
        str,
        Key(
            one_of(*RETRY_POLICIES),
            "`standard`, `patient`, `off`, `custom`",
            Flag(
                "--retry",
                "After API failures: standard (4 retries, 30 s), patient (8 hours), off.",
                choices=("standard", "patient", "off"),
            ),
            in_repository=FEWER_RETRIES,
        ),
    ] = "standard"
    """One of `RETRY_POLICIES`. The three numbers count for "custom" only."""
    strategy: Annotated[
        str,
        Key(
            one_of(*STRATEGIES),
            "with several targets: `fallback` (the first that is not cooling down) or `round_robin`",
        ),
    ] = "fallback"
    """One of `STRATEGIES`: which of several targets is asked."""
    revert: Annotated[
        str,
        Key(one_of(*REVERTS), "back to an earlier target when its cooldown ends, or `never`"),
    ] = "cooldown-expiry"
    """One of `REVERTS`: when "fallback" goes back to an earlier target."""
    enabled: Annotated[bool, Key(SWITCH, "`false`: nothing is retried")] = True
    """False: nothing is retried, whatever the policy."""
    max_retries: Annotated[int, Key(at_least(0), "custom only: retries after the first call; 0: none")] = 4
    """Retries after the first call; 0: none."""
    base_delay_s: Annotated[
        float, Key(SECONDS, "custom only: first wait, doubled for each further retry")
    ] = 2
    """Seconds before the first retry, doubled for each further one; 0: retry at once."""
    max_delay_s: Annotated[
        float, Key(SECONDS_OR_NONE, "custom only: longest wait; 0 or less: no maximum")
    ] = 300
    """A wait over so many seconds ends the chain; 0 or less: no maximum."""


class ClockSettings(ClockLimits, frozen=True):
    heartbeat_s: Annotated[
        float,
        Key(SECONDS, "without anything to show, after which a heartbeat is shown", in_repository=SMALLER),
    ] = 30.0
    """Seconds without anything to show until a heartbeat says what is awaited; 0: no heartbeats."""
    input_s: Annotated[
        float,
        Key(
            SECONDS,
            "until the first byte of a pipe (standard input, `-f`), and from there to its end; 0: no limit",
            in_repository=SMALLER,
        ),
    ] = 60.0
    """Seconds until a pipe on standard input has given its first byte; 0: it is waited for without a limit."""


class SessionSettings(Struct, frozen=True):
    keep_days: Annotated[
        int,
        Key(
            at_least(0),
            "days after which an unchanged journal is removed; 0: never ([sessions](sessions.md))",
        ),
    ] = 30
    """Journals that nothing was written to for so many days are removed; 0: none is."""
    keep_mb: Annotated[
        int,
        Key(at_least(0), "megabytes of journals to keep, the newest; 0: no limit"),
    ] = 1000
    """Megabytes of journals beyond which the oldest are removed; 0: none is."""


class ToolsSettings(Struct, frozen=True):
    exact: Annotated[
        tuple[str, ...] | None,
        Key(
            must_be.EXACT_TOOLS,
            flag=Flag(
                "--tools",
                'Exactly these of Read, Write, Edit, Bash, Glob, Grep; "" for none, default for all. This list and the '
                "next ones take all words up to the next option, or a,b: put the prompt before them.",
                "NAMES...",
                Takes.WORDS,
            ),
            is_in_files=False,
        ),
    ] = None
    """These and no others; None: not given."""
    allowed: Annotated[
        tuple[str, ...] | None,
        Key(
            must_be.TOOLS,
            "tools that a run may use beside the read-only ones (`Read`, `Glob`, `Grep`); none: all tools",
            Flag(
                "--allowed-tools",
                "Only these, and the read-only ones: Read, Glob, Grep.",
                "NAMES...",
                Takes.WORDS,
                other_spellings=("--allowedTools",),
            ),
            in_repository=NARROWS,
        ),
    ] = None
    """Names that `tool_choice` knows: these and the read-only ones. None: all."""
    disallowed: Annotated[
        tuple[str, ...],
        Key(
            must_be.TOOLS,
            "tools that are taken away",
            Flag(
                "--disallowed-tools",
                "Take these tools away.",
                "NAMES...",
                Takes.WORDS,
                other_spellings=("--disallowedTools",),
            ),
            in_repository=ADDS,
        ),
    ] = ()
    """Names that are taken away; empty: none is."""
    bash_timeout_s: Annotated[
        float,
        Key(
            POSITIVE_SECONDS,
            "for a command for which the model names no timeout; more than 0",
            variable="BASH_DEFAULT_TIMEOUT_MS",
            read=must_be.milliseconds_as_seconds,
        ),
    ] = 120
    """Seconds a command gets when the model names no time; > 0, at most `bash_max_timeout_s`."""
    bash_max_timeout_s: Annotated[
        float,
        Key(
            POSITIVE_SECONDS,
            "for a command at most; a longer timeout that the model requests is clamped",
            variable="BASH_MAX_TIMEOUT_MS",
            read=must_be.milliseconds_as_seconds,
        ),
    ] = 600
    """Seconds a command gets at most; a longer timeout that the model requests is clamped. > 0."""
    max_output_bytes: Annotated[
        int,
        Key(
            at_least(1),
            "bytes of a tool's output that reach the model; 1 or more",
            variable="BASH_MAX_OUTPUT_LENGTH",
            read=must_be.number,
        ),
    ] = 30_000
    """Bytes of a tool's output that reach the model; >= 1."""
    pass_env: Annotated[
        tuple[str, ...],
        Key(
            must_be.VARIABLES,
            "variables that tools see although they look like credentials",
            Flag("--pass-env", "Let tools see this variable though it looks secret.", "NAME", Takes.NAMES),
        ),
    ] = ()
    """Variables that tools see although they look like credentials; empty: none."""


class LoopSettings(Struct, frozen=True):
    """Settings of `ralph loop`; the defaults are those of `--retry patient`."""

    outage_waits_s: Annotated[
        tuple[float, ...],
        Key(
            LIST_OF_SECONDS,
            "wait of `ralph loop` after the first, second, ... exit 75 in a row; the last is repeated "
            "([loop](loop.md))",
        ),
    ] = PATIENT_SCHEDULE_S
    """Seconds to wait after the first, second, ... iteration in a row that ended with exit 75, the last repeated."""
    outage_budget_s: Annotated[
        float,
        Key(POSITIVE_SECONDS, "sum of such waits in a row, after which the loop ends with 75"),
    ] = PATIENT_BUDGET_S
    """Seconds that such waits in a row may take together; > 0."""


TABLES: dict[str, type[Struct]] = {
    "model": ModelSettings,
    "retry": RetrySettings,
    "limits": LimitSettings,
    "clocks": ClockSettings,
    "sessions": SessionSettings,
    "tools": ToolsSettings,
    "loop": LoopSettings,
}


class Remark(Struct, frozen=True):
    text: str
    advice: str
    """A remedy, for doctor."""


class Settings(Struct, frozen=True):
    model: ModelSettings = ModelSettings()
    retry: RetrySettings = RetrySettings()
    limits: LimitSettings = LimitSettings()
    clocks: ClockSettings = ClockSettings()
    sessions: SessionSettings = SessionSettings()
    tools: ToolsSettings = ToolsSettings()
    loop: LoopSettings = LoopSettings()
    targets: "tuple[Target, ...]" = ()
    """Who is asked, the first first; `load_settings` gives at least one."""
    aliases: "Mapping[str, NamedModel]" = field(default_factory=lambda: ALIASES)
    """The models that short names stand for at the endpoint of the environment."""
    credential: "Credential | None" = None
    """The key in the environment. None: requests carry no key (a local server)."""
    custom_headers: "Headers" = NO_HEADERS
    """Sent with every request."""
    key_variables: frozenset[str] = frozenset()
    """Variables that any `api_key_env` names: tools do not see them, however short their values are."""
    unused_secrets: Secret[tuple[str, ...]] = Secret(())
    """Keys of targets that are set somewhere and not asked: nobody may see them either."""
    remarks: tuple[Remark, ...] = ()
    """Remarks for people; none stops a run."""
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """For each name in `KEYS`, "targets" and "tools" (those that limit them): "flag --model", a variable's name, a
    file's path, several of these with commas, or "default"."""

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        """The tools that a run may use."""
        return enabled_tools(self.tools.exact, self.tools.allowed, self.tools.disallowed)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the start of the run."""
        return tuple(remark.text for remark in self.remarks)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must never be shown: every key, and every header that looks like one, whether it is sent or not."""
        secrets = [] if self.credential is None else [self.credential.secret]
        secrets += secret_header_values(self.custom_headers.plain)
        for target in self.targets:
            secrets += target.secrets
        return tuple(dict.fromkeys((*secrets, *self.unused_secrets.plain)))
