"""The tables of settings. Each field is one setting, with its type, its default and its `Key`.

To add a setting, add a field here, in `LimitSettings`, `ClockLimits` or the Struct of its table. Its flag, variable and
key in files, its line in the output of `ralph doctor` and its line in docs/settings.md come from the field;
`ralph/settings/merge.py` reads the value. What is left is its use. After a change, run `make generated` and
`python -m tests.recorded.record doctor`.

Some settings are not allowed in a file in the working directory. For such a setting, `other_places` says where the user
can set it instead.
"""
# No `from __future__ import annotations` here: the rows are read from the annotations, without evaluating text.

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.retry.backoff import PATIENT_BUDGET_S, PATIENT_SCHEDULE_S
from ralph.sandbox.sandbox_settings import HookSettings, SandboxSettings
from ralph.settings import kinds as must_be
from ralph.values.credentials import NO_HEADERS, Secret, known_secrets, line_secrets, secret_header_values
from ralph.values.limits import ClockLimits, LimitSettings
from ralph.values.servers import ALIASES, ANTHROPIC, APIS, DEFAULT_BASE_URL, DEFAULT_MAX_TOKENS, USUAL_MODEL
from ralph.values.setting import (
    ADDS,
    ANY,
    FEWER_RETRIES,
    LIST_OF_SECONDS,
    NARROWS,
    POSITIVE_SECONDS,
    SECONDS,
    SECONDS_OR_NONE,
    SWITCH,
    TEXT,
    Arity,
    Flag,
    Key,
    at_least,
    lower_only,
    one_of,
)
from ralph.values.tool_choice import ToolLists, enabled_tools

if TYPE_CHECKING:
    from typing import Annotated

    from ralph.conversation.target import Target
    from ralph.mcp.configuration import McpServer
    from ralph.values.claude_file import ClaudeFile
    from ralph.values.credentials import Credential, Headers, KeyProgram
    from ralph.values.servers import NamedModel
else:
    from ralph.values.setting import Declared as Annotated

EFFORTS = ("low", "medium", "high", "xhigh", "max")
OF_VENDOR = "vendor of "
"""The origin of an API and a base URL that the vendor of the model has decided begins with these words."""

RETRY_POLICIES = ("standard", "patient", "off", "custom")
STRATEGIES = ("fallback", "round_robin")
REVERTS = ("cooldown-expiry", "never")


def number(text: str) -> int:
    """A whole number of at most 15 digits. Raises ValueError for other texts. No setting needs more digits, and
    `int` is slow for thousands.
    """
    if re.fullmatch(r"[0-9]{1,15}", text):
        return int(text)
    raise ValueError("must be a whole number")


def in_milliseconds(variable: str, meaning: str) -> Key:
    """A setting for a time limit in seconds. Its variable, which is one of Claude Code's, holds milliseconds."""
    return Key(POSITIVE_SECONDS, meaning, variable=variable, read=lambda text: number(text) / 1000)


class ModelSettings(Struct, frozen=True):
    name: Annotated[
        str,
        Key(
            TEXT,
            "an id, or a [short name](models.md)",
            Flag(
                "--model",
                "Model id, or opus, sonnet, haiku; with [[targets]], the name of the one to use first. Default: sonnet.",
                "MODEL",
            ),
            "ANTHROPIC_MODEL",
            in_repository=ANY,
        ),
    ] = USUAL_MODEL
    """The id of the model. If the settings contain `[[targets]]`, this is the name that the user wrote, even if it
    is an alias."""
    fallback: Annotated[
        tuple[str, ...],
        Key(
            must_be.COMMA_SEPARATED,
            flag=Flag(
                "--fallback-model",
                "Models to use, in this order, while the main one is overloaded or unavailable (separated by commas; "
                "with [[targets]], names of targets).",
                "MODELS",
                Arity.JOINED,
            ),
            is_in_files=False,
        ),
    ] = ()
    """The fallback models' names as the user wrote them, in the order in which ralph tries them. Empty if there are
    none."""
    betas: Annotated[
        tuple[str, ...],
        Key(
            must_be.BETAS,
            flag=Flag(
                "--betas",
                "Beta features of the API to enable (the header anthropic-beta).",
                "FEATURES...",
                Arity.NAMES,
            ),
            is_in_files=False,
        ),
    ] = ()
    max_tokens: Annotated[
        int,
        Key(
            at_least(1),
            "longest answer in tokens, 1 or more; lowered to the model's maximum",
            Flag("--max-tokens", "Longest single answer, in tokens. Default: 32000.", "N"),
            in_repository=ANY,
        ),
    ] = DEFAULT_MAX_TOKENS
    effort: Annotated[
        str | None,
        Key(
            one_of(*EFFORTS),
            "`low`, `medium`, `high`, `xhigh`, `max`; none: the API's choice",
            Flag("--effort", "How hard the model thinks.", choices=EFFORTS),
            in_repository=ANY,
        ),
    ] = None
    api: Annotated[
        str,
        Key(
            one_of(*APIS),
            "the API that the server speaks: `anthropic`, `openai-chat`, `openai-responses`; if it is not set, the "
            "[vendor of the model](models.md#models-of-other-vendors) decides",
            Flag(
                "--api",
                "The API of the server: anthropic (Messages), openai-chat (Chat Completions), openai-responses.",
                choices=APIS,
            ),
            "RALPH_API",
        ),
    ] = ANTHROPIC
    base_url: Annotated[
        str,
        Key(
            must_be.BASE_URL,
            "address of the server, with or without `/v1` or `/v1/messages` at its end; no user, password, query; "
            "`OPENAI_BASE_URL` is the variable of the other two APIs",
            Flag("--base-url", "The server to ask, which speaks the API that --api names.", "URL"),
            "ANTHROPIC_BASE_URL",
        ),
    ] = DEFAULT_BASE_URL
    """The server's address, as `values/servers.normal_base_url` returns it for `api`."""
    ca_file: Annotated[
        Path | None,
        Key(
            must_be.PATH,
            "PEM file of the only certificate authorities to trust; a relative path starts from the settings file",
            variable="SSL_CERT_FILE",
        ),
    ] = None


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
    strategy: Annotated[
        str,
        Key(
            one_of(*STRATEGIES),
            "which of several targets gets a request: `fallback` (the first that is not cooling down) or `round_robin`",
        ),
    ] = "fallback"
    revert: Annotated[
        str,
        Key(
            one_of(*REVERTS),
            "when `fallback` returns to an earlier target: `cooldown-expiry` (when its cooldown ends) or `never`",
        ),
    ] = "cooldown-expiry"
    enabled: Annotated[bool, Key(SWITCH, "`false`: no retries")] = True
    max_retries: Annotated[
        int, Key(at_least(0), "custom only: number of retries after the first request; 0: none")
    ] = 4
    base_delay_s: Annotated[
        float, Key(SECONDS, "custom only: wait before the first retry, doubled for each further one")
    ] = 2
    max_delay_s: Annotated[
        float, Key(SECONDS_OR_NONE, "custom only: longest wait before one retry; 0 or less: no maximum")
    ] = 300


class ClockSettings(ClockLimits, frozen=True):
    heartbeat_s: Annotated[
        float, lower_only("time without output after which ralph prints a heartbeat; 0: never")
    ] = 30.0
    input_s: Annotated[
        float, lower_only("time to wait for the first byte of a pipe (standard input, `-f`); 0: no limit")
    ] = 60.0
    driver_s: Annotated[
        float,
        lower_only(
            "time to wait for the answer of a driver that is asked for a permission, after which the call is denied; "
            "0: no limit"
        ),
    ] = 3600.0


class SessionSettings(Struct, frozen=True):
    keep_days: Annotated[
        int,
        Key(
            at_least(0),
            "days after its last change on which a journal is removed; 0: never ([sessions](sessions.md))",
        ),
    ] = 30
    keep_mb: Annotated[
        int,
        Key(
            at_least(0),
            "maximum size of all journals in megabytes; beyond that the oldest are removed; 0: no limit",
        ),
    ] = 1000


class ToolsSettings(Struct, frozen=True):
    exact: Annotated[
        tuple[str, ...] | None,
        Key(
            must_be.EXACT_TOOLS,
            flag=Flag(
                "--tools",
                'Only these tools, of Read, Write, Edit, Bash, Glob, Grep; "" means none, default means all. A list takes '
                "all words up to the next option (a,b works too), so put the prompt before it.",
                "TOOLS...",
                Arity.NAMES,
            ),
            is_in_files=False,
        ),
    ] = None
    allowed: Annotated[
        tuple[str, ...] | None,
        Key(
            must_be.TOOLS,
            "tools that a run may use besides the read-only ones (`Read`, `Glob`, `Grep`); not set: all tools",
            Flag(
                "--allowed-tools",
                "Only these tools, and the read-only ones: Read, Glob, Grep.",
                "TOOLS...",
                Arity.NAMES,
                other_spellings=("--allowedTools",),
            ),
            in_repository=NARROWS,
        ),
    ] = None
    disallowed: Annotated[
        tuple[str, ...],
        Key(
            must_be.TOOLS,
            "tools that a run may not use",
            Flag(
                "--disallowed-tools",
                "Not these tools.",
                "TOOLS...",
                Arity.NAMES,
                other_spellings=("--disallowedTools",),
            ),
            in_repository=ADDS,
        ),
    ] = ()
    bash_timeout_s: Annotated[
        float,
        in_milliseconds(
            "BASH_DEFAULT_TIMEOUT_MS", "timeout of a command for which the model requests none; more than 0"
        ),
    ] = 120
    bash_max_timeout_s: Annotated[
        float,
        in_milliseconds(
            "BASH_MAX_TIMEOUT_MS",
            "longest timeout of a command; if the model requests a longer one, it gets this one",
        ),
    ] = 600
    max_output_bytes: Annotated[
        int,
        Key(
            at_least(1),
            "maximum size in bytes of a result of Bash, Glob or Grep that the model gets; 1 or more",
            variable="BASH_MAX_OUTPUT_LENGTH",
            read=number,
        ),
    ] = 30_000
    pass_env: Annotated[
        tuple[str, ...],
        Key(
            must_be.VARIABLES,
            "environment variables that tools get although they look like credentials",
            Flag(
                "--pass-env",
                "Pass this environment variable to tools although it looks like a secret.",
                "VARIABLE",
                Arity.NAMES,
            ),
        ),
    ] = ()


class McpSettings(Struct, frozen=True):
    """The settings of MCP servers. Only trusted sources may set them."""

    config: Annotated[
        tuple[str, ...],
        Key(
            must_be.PLACES_OR_JSON,
            flag=Flag(
                "--mcp-config",
                "MCP servers: files like .mcp.json, or JSON. Takes all words up to the next option. Needs the extra mcp.",
                "FILE|JSON...",
                Arity.PLACES,
            ),
            is_in_files=False,
        ),
    ] = ()
    strict: Annotated[
        bool,
        Key(
            SWITCH,
            flag=Flag(
                "--strict-mcp-config", "Use only the MCP servers of --mcp-config, not those of the settings."
            ),
            is_in_files=False,
        ),
    ] = False
    servers: Annotated[
        Secret[dict[str, dict[str, Any]]] | None,
        Key(must_be.SERVERS, "MCP servers, one table each: `[mcp.servers.NAME]` ([MCP](mcp.md))"),
    ] = None
    repository: Annotated[
        bool,
        Key(
            SWITCH, "`true`: also start the servers in a repository's own `.mcp.json`, without a look at them"
        ),
    ] = False
    start_s: Annotated[
        float,
        in_milliseconds(
            "MCP_TIMEOUT",
            "time for an MCP server to start; a server that is not ready by then ends the run (exit 78)",
        ),
    ] = 30
    call_s: Annotated[
        float, in_milliseconds("MCP_TOOL_TIMEOUT", "longest time of one call of an MCP server's tool")
    ] = 600


class LoopSettings(Struct, frozen=True):
    """Settings of `ralph loop`. The default waits are the waits of `--retry patient`."""

    outage_waits_s: Annotated[
        tuple[float, ...],
        Key(
            LIST_OF_SECONDS,
            "waits of `ralph loop` after the first, second, ... exit 75 in a row; the last one is repeated "
            "([loop](loop.md))",
        ),
    ] = PATIENT_SCHEDULE_S
    outage_budget_s: Annotated[
        float,
        Key(POSITIVE_SECONDS, "longest time for all these waits in a row; then the loop ends with exit 75"),
    ] = PATIENT_BUDGET_S
    git_filters: Annotated[
        tuple[str, ...],
        Key(
            must_be.NAMES,
            "filters of your git configuration that ralph's own commits run besides git-lfs, also in a fleet, outside the sandbox "
            "([loop](loop-reference.md#git))",
        ),
    ] = ()


class NotifySettings(Struct, frozen=True):
    """The program that is told about ends and outages. Only the user's own settings file may set it."""

    command: Annotated[
        str | None,
        Key(
            TEXT,
            "a command that gets the result at the end and a notice of a long outage ([notify](output.md#a-notification))",
            Flag(
                "--notify",
                "Run this command at the end and in a long outage, with a JSON object on standard input.",
                "CMD",
            ),
            is_users_alone=True,
        ),
    ] = None


TABLES: dict[str, type[Struct]] = {
    "model": ModelSettings,
    "retry": RetrySettings,
    "limits": LimitSettings,
    "clocks": ClockSettings,
    "sessions": SessionSettings,
    "tools": ToolsSettings,
    "sandbox": SandboxSettings,
    "hooks": HookSettings,
    "mcp": McpSettings,
    "loop": LoopSettings,
    "notify": NotifySettings,
}


class Remark(Struct, frozen=True):
    text: str
    advice: str


class Settings(Struct, frozen=True):
    model: ModelSettings = ModelSettings()
    retry: RetrySettings = RetrySettings()
    limits: LimitSettings = LimitSettings()
    clocks: ClockSettings = ClockSettings()
    sessions: SessionSettings = SessionSettings()
    tools: ToolsSettings = ToolsSettings()
    sandbox: SandboxSettings = SandboxSettings()
    hooks: HookSettings = HookSettings()
    mcp: McpSettings = McpSettings()
    loop: LoopSettings = LoopSettings()
    notify: NotifySettings = NotifySettings()
    targets: "tuple[Target, ...]" = ()
    aliases: "Mapping[str, NamedModel]" = field(default_factory=lambda: ALIASES)
    """The models for which opus, sonnet and haiku are aliases at the endpoint that the environment names."""
    mcp_servers: "tuple[McpServer, ...]" = ()
    credential: "Credential | None" = None
    """The API key from the environment. None if no key is set, which is usual for a local server."""
    custom_headers: "Headers" = NO_HEADERS
    """The headers from ANTHROPIC_CUSTOM_HEADERS. They are not sent to a target whose entry sets a base URL or keys."""
    key_variables: frozenset[str] = frozenset()
    """The variables that an `api_key_env` names. Tools never get them, even if the values are too short to be
    recognised as secrets."""
    unused_secrets: Secret[tuple[str, ...]] = Secret(())
    """The keys and secret headers of all configured targets. Those of unused targets are included, because they
    must not be shown either."""
    claude_files: "tuple[ClaudeFile, ...]" = ()
    variables: Secret[dict[str, str]] = Secret({})
    """The variables of these files that act as the environment, with the values that count."""
    command_variables: Secret[dict[str, str]] = Secret({})
    directories: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()
    """Warnings for people. They do not stop a run."""
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The origin of each value, by its name in `KEYS`, or by "targets" or "tools". An origin is "flag --model", the
    name of a variable, the path of a file, several of these separated by commas, or a text that begins with
    "default"."""

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        """The tools that the run may use, in their usual order."""
        return enabled_tools(self.tools.exact, self.tools.allowed, self.tools.disallowed)

    @property
    def tool_lists(self) -> ToolLists:
        return ToolLists(self.tools.exact, self.tools.allowed, self.tools.disallowed)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings to print at the start of the run."""
        return tuple(remark.text for remark in self.remarks)

    @property
    def key_programs(self) -> "tuple[KeyProgram, ...]":
        """The programs that print keys of the targets, without repetitions."""
        programs = (key.program for target in self.targets for key in target.credentials)
        return tuple(dict.fromkeys(program for program in programs if program is not None))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must never be shown: all API keys, all headers that look like keys, and what looks
        like a key in variables, headers, arguments and addresses of MCP servers. Headers that ralph does not send are included.
        """
        secrets = [] if self.credential is None else [self.credential.secret]
        secrets += secret_header_values(self.custom_headers.plain)
        for target in self.targets:
            secrets += target.secrets
        for server in self.mcp_servers:
            secrets += server.secrets
        secrets += known_secrets(self.command_variables.plain)
        if self.notify.command is not None:
            secrets += line_secrets(self.notify.command)
        return tuple(dict.fromkeys((*secrets, *self.unused_secrets.plain)))


TARGETS = "targets"
"""The name of the list of targets in a settings file. The list contains the preferred target first."""


def _rows(table: str, kind: type[Struct]) -> Iterator[Key]:
    # The annotations are read directly, because `typing.get_type_hints` would take a millisecond per table.
    annotations: dict[str, Any] = {}
    for one in reversed(kind.__mro__):
        annotations |= getattr(one, "__annotations__", {})
    defaults = kind()
    for name in kind.__struct_fields__:
        (row,) = annotations[name].__metadata__
        yield replace(row, name=f"{table}.{name}", default=getattr(defaults, name))


ALL_KEYS = tuple(row for table, kind in TABLES.items() for row in _rows(table, kind))
KEYS = tuple(key for key in ALL_KEYS if key.is_in_files)
"""The settings that files may contain. Every other setting can only be set by its flag."""
BY_NAME = {key.name: key for key in ALL_KEYS}
ALLOWED = {
    table: tuple(key.name.removeprefix(f"{table}.") for key in KEYS if key.name.startswith(f"{table}."))
    for table in TABLES
}
CUSTOM_ONLY = ("retry.max_retries", "retry.base_delay_s", "retry.max_delay_s")

# A file in the working directory may not contain these keys at any depth, and the error says where the user can set
# them. Keys that begin with `sandbox` get the same error even if they are misspelled, so that nobody takes a
# refused protection for an unknown key.
_AT_ANY_DEPTH: dict[str, tuple[str, ...]] = {
    "base_url": BY_NAME["model.base_url"].places[::-1],
    "ca_file": BY_NAME["model.ca_file"].places[::-1],
    "pass_env": BY_NAME["tools.pass_env"].places[::-1],
    "headers": ("ANTHROPIC_CUSTOM_HEADERS",),
    "api_key_env": ("ANTHROPIC_API_KEY",),
    "api_key_command": (),
    "price": (),
}


def other_places(key: str, whole_name: str) -> tuple[str, ...] | None:
    """The environment variable and the flag with which the user can set a key that a file in the working directory
    may not contain. Empty if the key has neither. None if such a file may contain the key, or if the key does not
    exist.

    `key` is the last part of the key, such as `name`, and `whole_name` is its full name, such as `model.name`.
    """
    known = BY_NAME.get(whole_name)
    if known is not None and known.is_in_files and known.in_repository is None:
        return known.places[::-1]
    if key in _AT_ANY_DEPTH:
        return _AT_ANY_DEPTH[key]
    return () if whole_name == TARGETS or key.startswith("sandbox") else None


def shown_value(value: object) -> str:
    """The value of a setting, written as a person would write it. If a table contains secrets, only its keys are
    shown.
    """
    match value:
        case None:
            return "not set"
        case ():
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case Secret():
            return ", ".join(value.plain) or "none"
        case tuple():
            return " ".join(map(shown_value, value))
        case _:
            return str(value)
