"""Flags, environment and files become one frozen `Settings`, once, each value with its origin.

Refuses: unknown keys, values out of range, and from the working directory's `ralph.toml` every key by which a
cloned repository could receive the API key. `KEYS` is the whole list; docs/settings.md explains it to users.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ralph.core import setting_checks as must_be
from ralph.core.credentials import Credential
from ralph.core.endpoint import header_lines, header_value, is_default, is_loopback
from ralph.core.setting_tables import (
    EFFORTS,
    RETRY_POLICIES,
    ClockSettings,
    LimitSettings,
    ModelSettings,
    RetrySettings,
    SessionSettings,
    Settings,
    ToolsSettings,
)
from ralph.core.target import Target
from ralph.effects.settings_files import (
    SettingsFileError,
    flattened,
    keys_at_any_depth,
    read_settings_file,
    user_settings_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "KEYS",
    "ClockSettings",
    "Credential",
    "LimitSettings",
    "ModelSettings",
    "RetrySettings",
    "SessionSettings",
    "Settings",
    "SettingsError",
    "ToolsSettings",
    "is_loopback",
    "load_settings",
]

LOCAL_FILE = "ralph.toml"


class SettingsError(Exception):
    """One line about one setting, never with a secret's value. `from_flag`: a usage error (exit 2), else 78."""

    def __init__(self, message: str, *, from_flag: bool = False) -> None:
        super().__init__(message)
        self.from_flag = from_flag


TABLES: dict[str, type] = {
    "model": ModelSettings,
    "retry": RetrySettings,
    "limits": LimitSettings,
    "clocks": ClockSettings,
    "sessions": SessionSettings,
    "tools": ToolsSettings,
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
    Key("model.name", must_be.model_name, "--model", "ANTHROPIC_MODEL"),
    Key("model.max_tokens", must_be.whole(1), "--max-tokens"),
    Key("model.effort", must_be.one_of(*EFFORTS), "--effort"),
    Key("model.base_url", must_be.base_url, "--base-url", "ANTHROPIC_BASE_URL", trusted_only=True),
    Key("model.ca_file", must_be.path, None, "SSL_CERT_FILE", trusted_only=True),
    Key("retry.policy", must_be.one_of(*RETRY_POLICIES), "--retry"),
    Key("retry.enabled", must_be.boolean),
    Key("retry.max_retries", must_be.whole(0)),
    Key("retry.base_delay_s", must_be.seconds),
    Key("retry.max_delay_s", must_be.seconds_or_none),
    Key("retry.strategy", must_be.one_of("fallback", "round_robin")),
    Key("retry.revert", must_be.one_of("cooldown-expiry", "never")),
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
)
_BY_NAME = {key.name: key for key in KEYS}
_ALLOWED = {table: tuple(key.name for key in fields(kind)) for table, kind in TABLES.items()}
_CUSTOM_ONLY = ("retry.max_retries", "retry.base_delay_s", "retry.max_delay_s")

# What may stand nowhere in the working directory's file, and the other places for it. The last two do not exist
# yet, nor does `sandbox*`: a file that holds them is told why it may not, and not that they are unknown.
_UNTRUSTED = {key.name.partition(".")[2]: (key.variable, key.flag) for key in KEYS if key.trusted_only} | {
    "headers": ("ANTHROPIC_CUSTOM_HEADERS", None),
    "api_key_env": ("ANTHROPIC_API_KEY", None),
}


class _Given(NamedTuple):
    value: Any
    origin: str


_Layer = dict[str, _Given]
"""What one source says, by the names in `KEYS`."""


def load_settings(
    flags: Mapping[str, object], environment: Mapping[str, str], cwd: Path, config_file: Path | None
) -> Settings:
    """Read everything once. `flags` uses the names in `KEYS`, None = not given; `config_file` is `--config`.

    Raises `SettingsError` for the first thing that is wrong, also where another source overrides it.
    """
    from_flags = _flag_layer(flags, cwd)  # first: what was typed just now is the likeliest mistake
    layers = [*_file_layers(environment, cwd, config_file), _environment_layer(environment, cwd), from_flags]
    given: _Layer = {name: one for layer in layers for name, one in layer.items()}
    _settle_custom_retry(layers, given)
    _settle_bash_timeouts(given)
    tables: dict[str, Any] = {table: _table(table, given) for table in TABLES}
    settings = Settings(
        **tables,
        credential=_credential(environment),
        custom_headers=_from_variable(environment, "ANTHROPIC_CUSTOM_HEADERS", header_lines) or (),
        targets=(_implicit(tables["model"], environment),),
        origins=MappingProxyType({key.name: _given_or_default(given, key.name).origin for key in KEYS}),
    )
    return replace(settings, warnings=_key_warnings(settings))


def _table(table: str, given: _Layer) -> Any:
    return TABLES[table](**{key: _given_or_default(given, f"{table}.{key}").value for key in _ALLOWED[table]})


def _given_or_default(given: _Layer, name: str) -> _Given:
    return given.get(name) or _Given(_BY_NAME[name].default, "default")


# --- One layer for each source


def _file_layers(environment: Mapping[str, str], cwd: Path, config_file: Path | None) -> Iterator[_Layer]:
    """From the weakest to the strongest."""
    user_file = user_settings_path(environment)
    local_file = cwd / LOCAL_FILE
    named_file = None if config_file is None else cwd / config_file
    try:
        if user_file is not None:
            yield _file_layer(user_file)
        if named_file is None or not _is_same(named_file, local_file):  # named by the user, it is trusted
            yield _file_layer(local_file, user_place=str(user_file or "config.toml of your config directory"))
        if named_file is not None:
            yield _file_layer(named_file, required=True)
    except SettingsFileError as error:
        raise SettingsError(str(error)) from error


def _file_layer(path: Path, *, required: bool = False, user_place: str | None = None) -> _Layer:
    """With `user_place` the file is not trusted, and that is where its forbidden keys could go."""
    document = read_settings_file(path, required=required)
    if document is None:
        return {}
    if user_place is not None:
        _refuse_untrusted(document, path, user_place)
    flat = flattened(document, path, _ALLOWED)
    return {
        name: _checked(_BY_NAME[name], raw, str(path), says=f"{path}: {name}", directory=path.parent)
        for name, raw in flat.items()
    }


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _refuse_untrusted(document: Mapping[str, Any], path: Path, user_place: str) -> None:
    for key, whole_name in keys_at_any_depth(document):
        if key not in _UNTRUSTED and not key.startswith("sandbox"):
            continue
        places = [f"put it in {user_place}", *(f"set {place}" for place in _UNTRUSTED.get(key, ()) if place)]
        raise SettingsError(
            f"{path}: {whole_name!r} does not count in the working directory, where a cloned repository could use "
            f"it to receive your key: {', '.join(places)}, or pass this file by --config"
        )


def _environment_layer(environment: Mapping[str, str], cwd: Path) -> _Layer:
    layer = {}
    for key in KEYS:
        raw = _from_variable(environment, key.variable, key.read) if key.variable else None
        if raw is not None and key.variable:
            layer[key.name] = _checked(key, raw, key.variable, says=key.variable, directory=cwd)
    return layer


def _from_variable(environment: Mapping[str, str], variable: str, read: Callable[[str], Any]) -> Any:
    """None when it is not set or empty."""
    text = environment.get(variable, "").strip()
    if not text:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise SettingsError(f"{variable} {error}") from error


def _flag_layer(flags: Mapping[str, object], cwd: Path) -> _Layer:
    layer = {}
    for name, raw in flags.items():
        if raw is None:
            continue
        key = _BY_NAME[name]
        if isinstance(raw, (list, tuple)):
            raw = [part for one in raw for part in must_be.split_names(one)]  # noqa: PLW2901 - the same, in pieces
        layer[name] = _checked(
            key, raw, f"flag {key.flag}", says=str(key.flag), directory=cwd, from_flag=True
        )
    return layer


def _checked(
    key: Key, raw: object, origin: str, *, says: str, directory: Path, from_flag: bool = False
) -> _Given:
    """`says` begins the error's line; `directory` is what a relative path starts from."""
    try:
        value = key.check(raw)
    except ValueError as error:
        raise SettingsError(f"{says} {error}", from_flag=from_flag) from error
    return _Given(directory / value if isinstance(value, Path) else value, origin)


# --- What holds between settings


def _settle_custom_retry(layers: list[_Layer], given: _Layer) -> None:
    """The numbers need a "custom" in their own source or, where that names no policy, in any other.

    Where a stronger source overrides such a "custom" (`--retry off`), its numbers go with it.
    """
    policies = [layer["retry.policy"].value for layer in layers if "retry.policy" in layer]
    for layer in layers:
        own = [layer["retry.policy"].value] if "retry.policy" in layer else policies
        for name in _CUSTOM_ONLY:
            if name in layer and "custom" not in own:
                raise SettingsError(f'{layer[name].origin}: {name} needs retry.policy = "custom"')
    if _given_or_default(given, "retry.policy").value != "custom":
        for name in _CUSTOM_ONLY:
            given.pop(name, None)


def _settle_bash_timeouts(given: _Layer) -> None:
    """A default makes room for a lower maximum; a wish of the user's over the maximum is a mistake."""
    names = ("tools.bash_timeout_s", "tools.bash_max_timeout_s")
    usual, largest = (_given_or_default(given, name) for name in names)
    if usual.value <= largest.value:
        return
    if names[0] in given:
        of_both = (
            f"{name} = {one.value:g} ({one.origin})"
            for name, one in zip(names, (usual, largest), strict=True)
        )
        raise SettingsError(" is larger than ".join(of_both))
    given[names[0]] = _Given(largest.value, f"default, lowered to {names[1]}")


def _credential(environment: Mapping[str, str]) -> Credential | None:
    key = _from_variable(environment, "ANTHROPIC_API_KEY", header_value)
    if key is not None:
        return Credential("x-api-key", key, "ANTHROPIC_API_KEY")
    token = _from_variable(environment, "ANTHROPIC_AUTH_TOKEN", header_value)
    if token is not None:
        return Credential("authorization", f"Bearer {token}", "ANTHROPIC_AUTH_TOKEN")
    return None


def _implicit(model: ModelSettings, environment: Mapping[str, str]) -> Target:
    credential = _credential(environment)
    return Target(
        model.name,
        model.name,
        model.base_url,
        (credential,) if credential else (),
        _from_variable(environment, "ANTHROPIC_CUSTOM_HEADERS", header_lines) or (),
        model.max_tokens,
        model.effort,
    )


def _key_warnings(settings: Settings) -> tuple[str, ...]:
    base_url = settings.model.base_url
    if not settings.secrets:
        if is_default(base_url):
            raise SettingsError(
                "no API key: set ANTHROPIC_API_KEY, point --base-url at a local server, or try `ralph demo`"
            )
        return ()
    if base_url.startswith("http:") and not is_loopback(base_url):
        host = base_url.split("/")[2]
        return (f"the key travels unencrypted: {host} is not this machine, and the base URL is not https",)
    return ()
