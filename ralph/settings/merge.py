"""Merges flags, environment variables and files into one immutable `Settings`, and records the origin of each value.

It refuses unknown keys, values out of range, and keys that a file in the working directory may not set. A file in the
working directory can only make settings stricter. `settings/tables.py` lists the settings.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.own_programs import ProgramSearch, search_around, search_outside
from ralph.settings.files import (
    ALIAS_VARIABLES,
    ClaudeFileError,
    ClaudeWishes,
    SettingsFile,
    aliases_from,
    find_settings_files,
    flattened,
    is_of_another_program,
    is_same_file,
    keys_at_any_depth,
    read_claude_files,
    read_wishes,
    set_network_variables,
)
from ralph.settings.tables import (
    ALLOWED,
    BY_NAME,
    CUSTOM_ONLY,
    KEYS,
    OF_VENDOR,
    TABLES,
    TARGETS,
    McpSettings,
    ModelSettings,
    Remark,
    Settings,
    other_places,
    shown_value,
)
from ralph.settings.targets import (
    API_KEY_COMMAND,
    EnvironmentAccess,
    ServerChoice,
    TargetEntry,
    entry_secrets,
    explicit_target,
    implicit_targets,
    meant_for_another_cloud,
    missing_key,
    plain_http_remarks,
    read_entries,
    with_fallbacks,
    with_first,
)
from ralph.settings.toml_file import SettingsFileError, parsed, user_settings_path
from ralph.values.credentials import Credential, KeyProgram, Secret, credential_from
from ralph.values.outcome import CannotError
from ralph.values.servers import ANTHROPIC, NamedModel, header_lines, is_default, named_model, normal_base_url
from ralph.values.tool_choice import MCP_PREFIX, TOOL_SETTINGS, lacking

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ralph.conversation.target import Target
    from ralph.values.claude_file import ClaudeFile
    from ralph.values.setting import Key

_FLAG = "flag "
"""If the origin of a value is a flag, the text of the origin begins with this word. The name of the flag follows."""
_FOREIGN = "has none of ralph's tables, so ralph takes it for another program's and does not read it"
_BETA_HEADER = "anthropic-beta"
_FALLBACK, _MODEL = "model.fallback", "model.name"
_API, _BASE_URL = "model.api", "model.base_url"


class SettingsError(CannotError):
    """One setting is wrong. The message has no secrets. If `from_flag` is True, the value came from a flag, and the
    exit code is 2 (usage error). Otherwise the exit code is 78.
    """

    def __init__(self, message: str, *, from_flag: bool = False, so_far: Settings | None = None) -> None:
        super().__init__(message)
        self.from_flag = from_flag
        self.so_far = so_far
        """All settings if only the API key is wrong: it is missing, or may be meant for another cloud. None if
        anything else is."""


class _SourcedValue(Struct, frozen=True):
    value: Any
    origin: str


_Layer = dict[str, _SourcedValue]
"""Maps the name of a setting to its value and origin. A layer contains the settings of one source, or of all sources
after merging. The names are the keys of `BY_NAME`, and "targets" for the decoded list of targets."""


class _Layers(Struct, frozen=True):
    """The values from all sources, in three groups. Each group is ordered from the lowest to the highest precedence."""

    user: _Layer
    """The values from the user's own file. Empty if the user's file is not trusted."""
    untrusted: list[_Layer]
    """The values from each untrusted file. `SettingsFile.is_trusted` says which files are untrusted."""
    stronger: list[_Layer]
    """The values from sources with a higher precedence: the file of `--config`, environment variables, and flags."""
    foreign: list[Remark]
    """A remark for each file that belongs to another program, and has no values."""

    @property
    def trusted(self) -> list[_Layer]:
        return [self.user, *self.stronger]


def load_settings(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    cwd: Path,
    config_file: Path | None,
    files: Sequence[SettingsFile] | None = None,
    *,
    reach: Sequence[Path] = (),
    claude: ClaudeWishes | None = None,
) -> Settings:
    """Reads each source once, and merges the sources.

    Raises `SettingsError` for the first invalid value, even if another source overrides it. `flags` maps names in
    `BY_NAME` to values. None means that the flag was not given. `config_file` is the path given with `--config`.
    `files` are the files that a loop has read for all its iterations. If None, the files are read now. `reach` are
    the directories besides the checkout around `cwd` that an agent may write. `claude` is what settings files for
    Claude Code ask for.
    """
    claude = claude or ClaudeWishes()
    overridden = tuple(claude.overridden(environment))
    environment = claude.with_variables(environment)
    # The flags come first, because a mistake is most likely in what the user has just typed.
    from_flags = _flag_layer(flags, cwd)
    layers = _file_layers(environment, cwd, config_file, files, reach)
    layers.user.update(_model_of(claude.user_model, cwd) | layers.user)
    layers.stronger.extend(
        (_environment_layer(environment, cwd), _model_of(claude.typed_model, cwd), from_flags)
    )
    given: _Layer = {name: one for layer in layers.trusted for name, one in layer.items()}
    ignored = _tighten(given, layers)
    _settle_custom_retry(layers.trusted, given)
    _settle_bash_timeouts(given)
    settings = _settings(flags, given, layers, environment)
    settings = _with_wishes(
        settings,
        claude,
        environment,
        (*layers.foreign, *overridden, *ignored, *_lacking_tools(given, settings.mcp)),
    )
    written = (*settings.sandbox.written(environment), *claude.directories)
    _refuse_reached(
        settings, environment, (cwd, *reach), config_file, claude_files=claude.files, written=written
    )
    if settings.mcp != McpSettings():
        from ralph.settings.mcp_servers import configured_servers  # noqa: PLC0415 - few runs have servers

        search = search_around(environment, (cwd, *reach), written)
        servers = configured_servers(settings, environment, cwd, search, files or ())
        remarks = plain_http_remarks([(server.url, server.secrets) for server in servers], environment)
        settings = replace(settings, mcp_servers=servers, remarks=(*settings.remarks, *remarks))
    problem = missing_key(settings.targets, environment)
    if problem is None and "model.base_url" not in from_flags:  # a URL in a flag was chosen on purpose
        problem = meant_for_another_cloud(settings.targets, environment)
    if problem is not None:
        raise SettingsError(problem, so_far=settings)
    return settings


class ClaudeOptions(Struct, frozen=True):
    """Which settings files for Claude Code count beside ralph's own."""

    option: str | None = None
    sources: Collection[str] = ("user",)
    files: tuple[ClaudeFile, ...] | None = None
    """The files that a loop has read for all its iterations. None means that they are read now."""


def load_with_claude(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    cwd: Path,
    config_file: Path | None,
    files: Sequence[SettingsFile] | None = None,
    *,
    reach: Sequence[Path] = (),
    claude: ClaudeOptions | None = None,
) -> Settings:
    """As `load_settings`, with what the trusted settings files for Claude Code ask for. The process gets the
    proxies and authorities that they name.
    """
    claude = claude or ClaudeOptions()
    try:
        read = claude.files
        if read is None:
            read = read_claude_files(cwd, environment, claude.option, reach)
        wishes = read_wishes(read, environment, cwd, claude.sources)
    except ClaudeFileError as error:
        raise SettingsError(str(error), from_flag=error.from_flag) from error
    set_network_variables(wishes.with_variables(environment), wishes.variables.plain)
    try:
        settings = load_settings(flags, environment, cwd, config_file, files, reach=reach, claude=wishes)
    except SettingsError as error:
        if error.so_far is not None:
            error.so_far = replace(error.so_far, claude_files=read)
        raise
    return replace(settings, claude_files=read)


def _model_of(named: tuple[str, str] | None, cwd: Path) -> _Layer:
    return {} if named is None else {_MODEL: _decoded(BY_NAME[_MODEL], *named, cwd)}


def _with_wishes(
    settings: Settings, claude: ClaudeWishes, environment: Mapping[str, str], remarks: Sequence[Remark]
) -> Settings:
    if TARGETS in settings.origins and settings.origins[TARGETS] != "default":
        named = filter(None, (claude.user_model, claude.typed_model))
        remarks = (
            *remarks,
            *(Remark(f"{origin} does not choose a target", "--model NAME does") for _, origin in named),
        )
    origins = {
        name: f"{origin} of {claude.origins[origin]}" if origin in claude.origins else origin
        for name, origin in settings.origins.items()
    }
    if claude.key_helper is not None and settings.credential is None:
        settings = _with_program(settings, claude.key_helper)
    from_files = {
        name: claude.origins[name]
        for name, value in claude.variables.plain.items()
        if environment[name] == value
    }

    def with_files(target: Target) -> Target:
        keys = (replace(key, file=from_files.get(key.source)) for key in target.credentials)
        return replace(target, credentials=tuple(keys))

    return replace(
        settings,
        targets=tuple(map(with_files, settings.targets)) if from_files else settings.targets,
        remarks=(*remarks, *settings.remarks, *claude.remarks),
        origins=MappingProxyType(origins),
        variables=Secret({name: environment[name] for name in claude.variables.plain}),
        command_variables=claude.of_commands,
        directories=claude.directories,
    )


def _with_program(settings: Settings, program: KeyProgram) -> Settings:
    """The settings in which `program` gives the key of each target that has no credential, speaks Anthropic's API, and is on the
    server of the settings or on Anthropic's own.
    """
    credential = Credential("x-api-key", Secret(""), program.setting, program)

    def with_it(target: Target) -> Target:
        is_meant_for = target.base_url == settings.model.base_url or is_default(target.base_url)
        if target.credentials or not is_meant_for or target.api != ANTHROPIC:
            return target
        others = tuple(one for one in target.headers.plain if one[0].lower() != "authorization")
        return replace(target, credentials=(credential,), headers=Secret(others))

    return replace(settings, targets=tuple(map(with_it, settings.targets)))


def _refuse_reached(
    settings: Settings,
    environment: Mapping[str, str],
    roots: Sequence[Path],
    config_file: Path | None,
    *,
    claude_files: Iterable[str],
    written: Sequence[str],
) -> None:
    """Raises SettingsError if a file that is in use can be written by commands, or is found through `written`:
    directories that the settings themselves let commands write. `roots` are the places that were known when the
    files were judged. A file that `--config` names is the user's choice, unless it names a program for a key.
    """
    user_file = user_settings_path(environment)
    if user_file is not None and any(str(user_file) in origin for origin in settings.origins.values()):
        is_named = config_file is not None and is_same_file(roots[0] / config_file, user_file)
        why = search_outside(environment, written).why_open(str(user_file))
        if why and not is_named and not search_around(environment, roots).why_open(str(user_file)):
            raise SettingsError(
                f"{user_file} does not count, as {why}: put it elsewhere, or pass this file with --config"
            )
    for name in claude_files:
        if why := search_around(environment, roots, written).why_open(name):
            raise SettingsError(
                f"{name} does not count, as {why}: put it elsewhere, or name that place by --add-dir"
            )
    has_program = any(one.setting == API_KEY_COMMAND for one in settings.key_programs)
    if not has_program or config_file is None or settings.origins[TARGETS] == str(user_file):
        return
    if why := search_around(environment, roots, written).why_open(str(roots[0] / config_file)):
        raise SettingsError(
            f"{config_file}: {API_KEY_COMMAND} does not count, as {why}: put the file elsewhere"
        )


def _settings(
    flags: Mapping[str, object], given: _Layer, layers: _Layers, environment: Mapping[str, str]
) -> Settings:
    access = _environment_access(environment)
    if betas := _given_or_default(given, "model.betas").value:
        access = _with_betas(access, betas)
    first = _settle_model(given, access, environment)
    servers = _server_choice(given, layers, access, environment, first)
    if TARGETS not in given:
        _settle_server(given, first, servers)
    elif _BASE_URL in given:
        with _explained(""):
            normal = normal_base_url(given[_BASE_URL].value, servers.api or ANTHROPIC)
        given[_BASE_URL] = _SourcedValue(normal, given[_BASE_URL].origin)
    tables: dict[str, Any] = {
        table: kind(
            **{key: _given_or_default(given, f"{table}.{key}").value for key in kind.__struct_fields__}
        )
        for table, kind in TABLES.items()
    }
    targets = _targets(tables["model"], flags, given, servers, first_model=first)
    # Lists of targets that a stronger source replaced are included, because the keys that they name are secrets
    # too.
    all_entries = [entry for layer in layers.trusted if TARGETS in layer for entry in layer[TARGETS].value]
    names = (*(key.name for key in KEYS), TARGETS)
    origins = {name: given[name].origin if name in given else "default" for name in names}
    limiting = [given[name].origin for name in TOOL_SETTINGS if name in given]
    origins["tools"] = ", ".join(dict.fromkeys(limiting)) or "default"
    return Settings(
        **tables,
        targets=targets,
        aliases=access.aliases,
        credential=access.credential,
        custom_headers=access.headers,
        key_variables=frozenset(name for entry in all_entries for name in entry.api_key_env),
        unused_secrets=Secret(tuple(dict.fromkeys(entry_secrets(all_entries, environment)))),
        remarks=plain_http_remarks([(target.base_url, target.secrets) for target in targets], environment),
        origins=MappingProxyType(origins),
    )


def _given_or_default(given: _Layer, name: str) -> _SourcedValue:
    return given.get(name) or _SourcedValue(BY_NAME[name].default, "default")


# --- One layer for each source


def _file_layers(
    environment: Mapping[str, str],
    cwd: Path,
    config_file: Path | None,
    files: Sequence[SettingsFile] | None,
    reach: Sequence[Path],
) -> _Layers:
    user_file = user_settings_path(environment)
    # If an agent can write the user's own file too, it is no use to name it in the advice.
    search = search_around(environment, (cwd, *reach))
    is_usable = user_file is not None and not search.why_open(str(user_file))
    user_place = str(user_file) if is_usable else "config.toml of a config directory that lies elsewhere"
    layers = _Layers({}, [], [], [])
    try:
        found = find_settings_files(environment, cwd, config_file, search) if files is None else files
        for file in (one for one in found if not one.is_mcp):
            if not file.is_trusted and file.data is not None and _is_foreign(parsed(file.path, file.data)):
                layers.foreign.append(Remark(f"{file.path} {_FOREIGN}", "it can stay"))
                continue
            is_users = file.is_trusted and (
                not file.is_named or (user_file is not None and is_same_file(file.path, user_file))
            )
            layer = _file_layer(file, user_place, search, is_users=is_users)
            if not file.is_trusted:
                layers.untrusted.append(layer)
            elif file.is_named:
                layers.stronger.append(layer)
            else:
                layers.user.update(layer)
    except SettingsFileError as error:
        raise SettingsError(str(error)) from error
    return layers


def _is_foreign(document: Mapping[str, Any]) -> bool:
    refused = (key for key in document if other_places(key, key) is not None)
    return is_of_another_program(document, frozenset((*ALLOWED, TARGETS, *refused)))


def _file_layer(file: SettingsFile, user_place: str, search: ProgramSearch, *, is_users: bool) -> _Layer:
    path = file.path
    if file.data is None:
        return {}
    document = parsed(path, file.data)
    if not file.is_trusted:
        _refuse_untrusted(document, path, user_place, search)
    flat = flattened(document, path, ALLOWED, lists=(TARGETS,))
    if not is_users and (
        lone := next((name for name in flat if name in BY_NAME and BY_NAME[name].is_users_alone), "")
    ):
        raise SettingsError(
            f"{path}: {lone!r} is allowed only in your own settings file: put it in {user_place}"
        )
    layer = {
        name: _decoded(BY_NAME[name], raw, str(path), path.parent)
        for name, raw in flat.items()
        if name != TARGETS
    }
    if TARGETS in flat:
        with _explained(f"{path}: {TARGETS}"):
            layer[TARGETS] = _SourcedValue(read_entries(flat[TARGETS]), str(path))
    return layer


def _refuse_untrusted(
    document: Mapping[str, Any], path: Path, user_place: str, search: ProgramSearch
) -> None:
    refused = {name: other_places(key, name) for key, name in keys_at_any_depth(document)}
    names = [name for name, places in refused.items() if places is not None]
    if not names:
        return
    # The name of a key in a target (`targets.base_url`) says more than the name of the list (`targets`).
    name = max(names, key=lambda one: one.count("."))
    listed = ", ".join((f"put it in {user_place}", *(f"set {place}" for place in refused[name] or ())))
    more = "" if name in BY_NAME and BY_NAME[name].is_users_alone else ", or pass this file with --config"
    raise SettingsError(
        f"{path}: {name!r} does not count here, as {search.why_open(str(path))}: {listed}{more}"
    )


def _environment_layer(environment: Mapping[str, str], cwd: Path) -> _Layer:
    layer = {}
    for key in KEYS:
        text = environment.get(key.variable, "").strip() if key.variable else ""
        if key.variable and text:  # an empty variable counts as not set
            layer[key.name] = _decoded(key, text, key.variable, cwd)
    return layer


def _flag_layer(flags: Mapping[str, object], cwd: Path) -> _Layer:
    return {
        name: _decoded(BY_NAME[name], raw, f"{_FLAG}{BY_NAME[name].spelling}", cwd)
        for name, raw in flags.items()
        if raw is not None
    }


def _decoded(key: Key, raw: object, origin: str, directory: Path) -> _SourcedValue:
    """Decodes a value, and returns it with its origin. A relative path is relative to `directory`."""
    with _refused(key, origin):
        value = key.from_variable(str(raw)) if origin == key.variable else key.kind.decoded(raw)
    return _SourcedValue(directory / value if isinstance(value, Path) else value, origin)


# --- Rules that involve several sources or settings


def _tighten(given: _Layer, layers: _Layers) -> tuple[Remark, ...]:
    ignored = []
    for layer in layers.untrusted:
        for name, wanted in layer.items():
            rule = BY_NAME[name].in_repository
            assert rule is not None  # noqa: S101 - keys without a rule were refused before
            trusted = _given_or_default(given, name)
            counts = rule.apply(trusted.value, wanted.value)
            if counts is None:
                ignored.append(_looser(name, wanted, trusted))
            elif rule.joins_stronger or not any(name in stronger for stronger in layers.stronger):
                given[name] = _joined(trusted, counts, wanted)
    return tuple(ignored)


def _joined(trusted: _SourcedValue, counts: Any, wanted: _SourcedValue) -> _SourcedValue:
    if counts == trusted.value:
        return trusted
    origins = (wanted.origin,) if counts == wanted.value else (trusted.origin, wanted.origin)
    return _SourcedValue(counts, ", ".join(origins))


def _looser(name: str, wanted: _SourcedValue, trusted: _SourcedValue) -> Remark:
    return Remark(
        f"{wanted.origin}: {name} = {shown_value(wanted.value)} is ignored, because it is not tighter than "
        f"{shown_value(trusted.value)} ({trusted.origin}), and a file in the working directory can only tighten",
        "set it in your own config file, or pass this one with --config",
    )


def _settle_custom_retry(layers: list[_Layer], given: _Layer) -> None:
    """Checks the settings in `CUSTOM_ONLY`, which have an effect only with the retry policy "custom".

    If the source of such a setting also sets a policy, it must be "custom". Otherwise another source must set
    "custom". If not, raises SettingsError. If the policy that finally applies is not "custom", for example because
    of `--retry off`, removes these settings from `given`.
    """
    policies = [layer["retry.policy"].value for layer in layers if "retry.policy" in layer]
    for layer in layers:
        own = [layer["retry.policy"].value] if "retry.policy" in layer else policies
        for name in CUSTOM_ONLY:
            if name in layer and "custom" not in own:
                raise SettingsError(f'{layer[name].origin}: {name} needs retry.policy = "custom"')
    if _given_or_default(given, "retry.policy").value != "custom":
        for name in CUSTOM_ONLY:
            given.pop(name, None)


def _settle_bash_timeouts(given: _Layer) -> None:
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
    given[names[0]] = _SourcedValue(largest.value, f"default, lowered to {names[1]}")


def _lacking_tools(given: _Layer, mcp: McpSettings) -> Iterator[Remark]:
    may_have_servers = mcp != McpSettings()
    for name in TOOL_SETTINGS:
        names = lacking(given[name].value) if name in given else ()
        if may_have_servers:
            names = tuple(one for one in names if not one.startswith(MCP_PREFIX))
        if names:
            yield Remark(
                f"{_subject(BY_NAME[name], given[name].origin)} names {', '.join(names)}: ralph has no such tool",
                "it can stay, or be left out",
            )


# --- The model, the key and the targets


def _settle_model(given: _Layer, access: EnvironmentAccess, environment: Mapping[str, str]) -> NamedModel:
    key = BY_NAME["model.name"]
    requested = _given_or_default(given, key.name)
    if TARGETS in given:
        return NamedModel(requested.value)
    if requested.origin == "default" and environment.get(ALIAS_VARIABLES["sonnet"], "").strip():
        requested = given[key.name] = _SourcedValue("default", ALIAS_VARIABLES["sonnet"])
    with _refused(key, requested.origin):
        model = named_model(requested.value, access.aliases)
    if key.name in given:
        given[key.name] = _SourcedValue(model.id, requested.origin)
    return model


def _environment_access(environment: Mapping[str, str]) -> EnvironmentAccess:
    with _explained(""):  # the text of the error already names the variable
        credential = credential_from("ANTHROPIC_API_KEY", environment) or credential_from(
            "ANTHROPIC_AUTH_TOKEN", environment
        )
    headers = environment.get("ANTHROPIC_CUSTOM_HEADERS", "").strip()
    with _explained("ANTHROPIC_CUSTOM_HEADERS"):
        lines = header_lines(headers)
    with _explained(""):
        aliases = aliases_from(environment)
    return EnvironmentAccess(credential, Secret(lines), aliases)


def _with_betas(access: EnvironmentAccess, betas: Sequence[str]) -> EnvironmentAccess:
    """A copy of `access` with a header that asks for the beta features in `betas` and in ANTHROPIC_CUSTOM_HEADERS."""
    lines = access.headers.plain
    asked = [value for name, value in lines if name.lower() == _BETA_HEADER]
    others = tuple(line for line in lines if line[0].lower() != _BETA_HEADER)
    return replace(access, headers=Secret((*others, (_BETA_HEADER, ",".join((*asked, *betas))))))


def _server_choice(
    given: _Layer,
    layers: _Layers,
    access: EnvironmentAccess,
    environment: Mapping[str, str],
    first: NamedModel,
) -> ServerChoice:
    api = given[_API].value if _API in given else None
    base_url = given.get(_BASE_URL)
    named = given.get(_MODEL)
    is_repositorys = named is not None and any(
        _MODEL in layer and layer[_MODEL].origin == named.origin for layer in layers.untrusted
    )
    deciding = {}
    if is_repositorys and TARGETS not in given:
        users = [layer[_MODEL] for layer in layers.trusted if _MODEL in layer] or [
            _SourcedValue("default", "")
        ]
        with _refused(BY_NAME[_MODEL], users[-1].origin):
            deciding = {first.id: named_model(users[-1].value, access.aliases).id}
    if (
        base_url is not None
        and base_url.origin == BY_NAME[_BASE_URL].variable
        and api not in {None, ANTHROPIC}
    ):
        base_url = None
    return ServerChoice(environment, access, api, None if base_url is None else base_url.value, deciding)


def _settle_server(given: _Layer, first: NamedModel, servers: ServerChoice) -> None:
    if servers.api not in {None, ANTHROPIC} and _MODEL not in given:
        key = BY_NAME[_API]
        subject = _subject(key, given[_API].origin)
        from_flag = given[_API].origin.startswith(_FLAG)
        raise SettingsError(
            f"{subject} needs a model of that server: name it with --model", from_flag=from_flag
        )
    with _explained(""):
        server = servers.of(first.id)
    origin = server.variable or (
        f"{OF_VENDOR}{servers.deciding.get(first.id, first.id)}" if servers.api is None else "default"
    )
    for name, value in ((_API, server.api), (_BASE_URL, server.base_url)):
        is_users = name in given and (name == _API or servers.base_url is not None)
        if is_users or value != BY_NAME[name].default:
            given[name] = _SourcedValue(value, given[name].origin if is_users else origin)
        else:
            given.pop(name, None)


def _targets(
    model: ModelSettings,
    flags: Mapping[str, object],
    given: _Layer,
    servers: ServerChoice,
    *,
    first_model: NamedModel,
) -> tuple[Target, ...]:
    fallbacks = given[_FALLBACK].value if _FALLBACK in given else ()
    if TARGETS not in given:
        with _explained(BY_NAME[_FALLBACK].spelling, from_flag=True):
            return implicit_targets(model, first_model, fallbacks, servers)
    entries: tuple[TargetEntry, ...] = given[TARGETS].value
    first = flags.get("model.name")
    if first is not None:  # not resolved, because a target may have the name of an alias
        with _explained(BY_NAME["model.name"].spelling, from_flag=True):
            entries = with_first(entries, str(first).strip())
    if fallbacks:
        with _explained(BY_NAME[_FALLBACK].spelling, from_flag=True):
            entries = with_fallbacks(entries, fallbacks)
    if flags.get("model.max_tokens") is not None:  # the flag is meant for all targets
        entries = tuple(replace(entry, max_tokens=None) for entry in entries)
    with _explained(f"{given[TARGETS].origin}: {TARGETS}"):
        return tuple(explicit_target(entry, model, servers) for entry in entries)


# --- Refusals


def _refused(key: Key, origin: str) -> AbstractContextManager[None]:
    return _explained(_subject(key, origin), from_flag=origin.startswith(_FLAG))


def _subject(key: Key, origin: str) -> str:
    if origin.startswith(_FLAG):
        return origin.removeprefix(_FLAG)
    return origin if origin == key.variable else f"{origin}: {key.name}"


@contextmanager
def _explained(says: str, *, from_flag: bool = False) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise SettingsError(f"{says} {error}".lstrip(), from_flag=from_flag) from error
