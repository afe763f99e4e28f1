"""Finds settings files (TOML), decides which of these files are trusted, and checks their structure. It refuses unknown
tables and keys. Each error is one line that names the file. `toml_file.py` reads a single file.

Also finds and reads the settings files that people wrote for Claude Code, and the value of `--settings`. The rules in
these files protect something, so an unreadable file ends the run. At most a megabyte of a file is read. A pipe is never
read, because ralph could wait for its data without end. The environment variables that were set for Claude Code may show
that a key is meant for another cloud: `why_not_asked` then gives a reason not to send the key.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from posixpath import join, normpath
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec import json as fast_json
from msgspec.structs import replace

from ralph.machine.connecting import AUTHORITIES
from ralph.machine.files.opened_file import open_regular_file
from ralph.machine.files.paths import project_top, up_to_repository_root
from ralph.machine.own_programs import ProgramSearch, search_around
from ralph.sandbox.left_behind import why_left_behind
from ralph.settings.kinds import about
from ralph.settings.tables import KEYS, Remark
from ralph.settings.toml_file import SettingsFileError, about_home, read_settings_file, user_settings_path
from ralph.values.claude_file import TRUSTED_ONLY, ClaudeFile, KeyEffect, key_named, keys_within
from ralph.values.credentials import KeyProgram, Secret
from ralph.values.outcome import CannotError, nearest
from ralph.values.servers import ALIASES, VENDORS, NamedModel, named_model
from ralph.values.setting import printable
from ralph.values.strict_json import unambiguous_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ralph.machine.own_programs import ProgramSearch

LOCAL_FILE = "ralph.toml"
"""The path of a repository's own settings file, relative to the working directory."""
# As for the keys of settings files for Claude Code.
_LEAST_LIKENESS = 0.8
_OF_ANOTHER = "; if the file belongs to another program, rename it, or start ralph elsewhere (-C DIR)"


class RecordedFile(Struct, frozen=True):
    """The content of a settings file at the start of a loop."""

    path: str
    text: str | None

    @property
    def data(self) -> bytes | None:
        return None if self.text is None else self.text.encode("utf-8", "surrogateescape")


class SettingsFile(Struct, frozen=True):
    """The content of a settings file at the time when it was read."""

    path: Path
    is_trusted: bool
    """False if a repository's author or an agent may have written the file (`search_around`, `why_open`). A file
    that the user named is always trusted."""
    data: bytes | None
    is_named: bool = False
    is_mcp: bool = False
    """True if the file configures MCP servers. Such a file contains JSON and no settings."""


def find_settings_files(
    environment: Mapping[str, str],
    cwd: Path,
    config_file: Path | None,
    search: ProgramSearch,
    *,
    recorded: Iterable[RecordedFile] = (),
    mcp_files: Iterable[Path] = (),
) -> tuple[SettingsFile, ...]:
    """Returns one `SettingsFile` for each place where a settings file may be, from the lowest to the highest
    precedence. If a file does not exist, its `data` is None.

    `config_file` is the path given with `--config`. `search` knows where an agent may write. Files that are in
    `recorded` are not read again. `mcp_files` are the paths of files with MCP servers, which come last in the
    result. Raises SettingsFileError.
    """
    known = {file.path: file.data for file in recorded}

    def file_at(path: Path, *, is_trusted: bool, is_named: bool = False) -> SettingsFile:
        if str(path) in known:
            return SettingsFile(path, is_trusted, known[str(path)], is_named)
        data = read_settings_file(path, required=is_named)
        if is_trusted and (why := why_left_behind(str(path), environment)):
            raise SettingsFileError(f"{path} {why}")
        return SettingsFile(path, is_trusted, data, is_named)

    files = []
    user_file = user_settings_path(environment)
    local_file = cwd / LOCAL_FILE
    named_file = None if config_file is None else cwd / config_file
    places = {} if user_file is None else {user_file: search.why_open(str(user_file)) is None}
    places[local_file] = False
    for path, is_trusted in places.items():
        # An untrusted file that `--config` names is read only once, as the trusted file that the user chose.
        if is_trusted or named_file is None or not is_same_file(named_file, path):
            files.append(file_at(path, is_trusted=is_trusted))
    if named_file is not None:
        files.append(file_at(named_file, is_trusted=True, is_named=True))
    files += [replace(file_at(path, is_trusted=True), is_named=True, is_mcp=True) for path in mcp_files]
    return tuple(files)


def is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def flattened(
    document: Mapping[str, Any], path: Path, allowed: Mapping[str, Collection[str]], lists: Collection[str]
) -> dict[str, Any]:
    """Makes a flat mapping from the tables of a document: `{"model": {"name": x}}` becomes `{"model.name": x}`.

    `allowed` lists the keys that each table may contain. The values of the keys in `lists`, such as `targets`, are
    copied unchanged. Raises SettingsFileError for an unknown table or key.
    """
    flat, about = {}, _OF_ANOTHER if path.name == LOCAL_FILE else ""
    for table, content in document.items():
        if table in lists:
            flat[table] = content
            continue
        if table not in allowed:
            known = ", ".join((*(f"[{name}]" for name in allowed), *(f"[[{name}]]" for name in lists)))
            raise SettingsFileError(
                f"{path}: unknown key {table!r}; a settings file holds the tables {known}{about}"
            )
        if not isinstance(content, dict):
            raise SettingsFileError(f"{path}: {table!r} must be a table: [{table}]")
        for key, value in content.items():
            if key not in allowed[table]:
                known = ", ".join(allowed[table])
                raise SettingsFileError(
                    f"{path}: unknown key {f'{table}.{key}'!r}; [{table}] holds {known}{about}"
                )
            flat[f"{table}.{key}"] = value
    return flat


def is_of_another_program(document: Mapping[str, Any], known: frozenset[str]) -> bool:
    """Whether a `ralph.toml` belongs to another program of that name: it has tables, and none of them is one of
    `known`, or nearly so.
    """
    if not known.isdisjoint(document) or not any(isinstance(one, dict) for one in document.values()):
        return False
    return not any(nearest(key.lower(), known, _LEAST_LIKENESS) for key in document)


def keys_at_any_depth(value: object, above: str = "") -> Iterator[tuple[str, str]]:
    """Yields all keys of a document, also those in nested tables and lists. Each item is a pair of the key's last
    part and its full name, such as `("name", "model.name")`.
    """
    if isinstance(value, list):
        for item in value:
            yield from keys_at_any_depth(item, above)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name, f"{above}{name}"
            yield from keys_at_any_depth(inner, f"{above}{name}.")


# --- Files for Claude Code

_MOST_BYTES = 1_000_000
"""The maximum size of a file. A cloned repository may contain files of any size. Rules need less than a tenth of
this."""
_PROJECT_FILES = {"project": ".claude/settings.json", "local": ".claude/settings.local.json"}
_USER_FILE = ".claude/settings.json"
OPTION = "--settings"


class ClaudeFileError(CannotError):
    """A settings file cannot be used. The message names the file."""

    def __init__(self, message: str, *, from_flag: bool = False) -> None:
        super().__init__(message)
        self.from_flag = from_flag


def read_claude_files(
    cwd: Path, environment: Mapping[str, str], option: str | None = None, reach: Sequence[Path | str] = ()
) -> tuple[ClaudeFile, ...]:
    """Reads all settings files that exist, and the value of `--settings`. `reach` are the directories besides the checkout
    around `cwd` that an agent may write. Raises ClaudeFileError.
    """
    found = []
    for kind, path in _places(cwd, environment):
        if kind == "user":
            _refuse_left_behind(str(path), environment)
        read = _read(path)
        if read is not None:
            found.append(ClaudeFile(str(path), kind, str(path.parents[1]), read[0]))
    if option is not None:
        found.append(_from_option(option, cwd))
        if found[-1].name != OPTION:
            _refuse_left_behind(found[-1].name, environment)
    return judged(found, search_around(environment, (cwd, *reach)), environment) if found else ()


def _refuse_left_behind(path: str, environment: Mapping[str, str]) -> None:
    if why := why_left_behind(path, environment):
        raise ClaudeFileError(f"{path} {why}")


def judged(
    files: Iterable[ClaudeFile], search: ProgramSearch, environment: Mapping[str, str]
) -> tuple[ClaudeFile, ...]:
    """The files, of which those only tighten that are found through a place of `search` that commands may write."""
    users = str(Path(environment.get("HOME", ""), _USER_FILE))

    def one(file: ClaudeFile) -> ClaudeFile:
        if file.why_open or not file.name.startswith("/") or not (file.kind == "flag" or file.name == users):
            return file
        why = search.why_open(file.name)
        return file if why is None else replace(file, kind=file.kind.replace("user", "project"), why_open=why)

    return tuple(map(one, files))


def read_wishes(
    files: Iterable[ClaudeFile], environment: Mapping[str, str], cwd: Path, sources: Collection[str]
) -> ClaudeWishes:
    """The settings that the trusted files ask for, except rules and hooks. `sources` are those of
    `--setting-sources`. Raises ClaudeFileError.
    """
    read = [(file, document_of(file)) for file in files]
    empty = [Remark(f"{file.name} is empty", "remove it") for file in files if not file.text.strip()]
    try:
        wishes = wishes_of(read, sources, str(cwd), environment.get("HOME", ""))
    except ValueError as error:
        raise ClaudeFileError(str(error)) from error
    missing = [one for one in wishes.directories if not Path(one).is_dir()]
    gone = [
        Remark(f"additionalDirectories: {one} does not exist", "make it, or remove it there")
        for one in missing
    ]
    there = tuple(one for one in wishes.directories if one not in missing)
    return replace(wishes, directories=there, remarks=(*wishes.remarks, *gone, *empty))


def set_network_variables(environment: Mapping[str, str], names: Iterable[str]) -> None:
    """Sets those of these variables that name proxies or authorities for this process, as connections read them from there."""
    os.environ.update({name: environment[name] for name in names if is_of_network(name)})


def document_of(file: ClaudeFile) -> Any:
    """Decodes the JSON object in a file. An empty file has no keys, as in Claude Code. Raises ClaudeFileError, also for a key that
    occurs twice: only one of its guards would count.
    """
    why = "is not a JSON object"
    try:
        document = unambiguous_json(file.text) if file.text.strip() else {}
        if isinstance(document, dict):
            return document
    except json.JSONDecodeError:
        why = "is not valid JSON"
    except (ValueError, RecursionError) as error:
        why = f"is not valid JSON: {error}"
    raise _unusable(file.name, why, from_flag=file.kind == "flag")


def guards_in_short(files: Iterable[ClaudeFile]) -> bool:
    """A quick test whether a file may contain settings about permissions or hooks. If the result is False, the run
    needs no rules.
    """
    return any(
        word in file.text for file in files for word in ('"permissions"', '"hooks"', '"sandbox"', "\\u")
    )


def _places(cwd: Path, environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    known = set()
    above = [cwd, *cwd.parents]
    top, home = project_top(cwd, environment), Path(environment.get("HOME", ""))
    found = above[: above.index(top) + 1] if top in above else up_to_repository_root(cwd)
    # Without the repository that a command may have made, one of the home directory would be the project's.
    if top in above and home in above and os.path.lexists(home / ".git"):
        found = above[: above.index(home)]
    for directory in found:
        for kind, name in _PROJECT_FILES.items():
            known.add(directory / name)
            yield kind, directory / name
    path = home / _USER_FILE
    if home.is_absolute() and path not in known:
        yield "user", path


def _from_option(text: str, cwd: Path) -> ClaudeFile:
    if text.lstrip().startswith("{"):
        return ClaudeFile(OPTION, "flag", "", text)
    path = cwd / text
    read = _read(path, from_flag=True)
    if read is None:
        raise ClaudeFileError(f"{OPTION}: {path} does not exist", from_flag=True)
    root = path.parents[1] if path.parent.name == ".claude" else path.parent
    text, owner = read
    why = "" if owner in (0, os.geteuid()) else f"it belongs to another user (uid {owner})"
    return ClaudeFile(str(path), "flag", str(root), text, why)


def _read(path: Path, *, from_flag: bool = False) -> tuple[str, int] | None:
    """The text of a file and the number of its owner, or None if it does not exist."""
    try:
        with os.fdopen(open_regular_file(path), "rb") as file:
            data, owner = file.read(_MOST_BYTES + 1), os.fstat(file.fileno()).st_uid
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise _unusable(str(path), "is a link that leads nowhere", from_flag=from_flag) from None
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        why = f"cannot be read ({reason}){about_home(path)}"
        raise _unusable(str(path), why, from_flag=from_flag) from error
    if len(data) > _MOST_BYTES:
        raise _unusable(str(path), f"has more than {_MOST_BYTES:,} bytes", from_flag=from_flag)
    try:
        return data.decode("utf-8-sig"), owner
    except UnicodeDecodeError:
        raise _unusable(str(path), "is not valid JSON", from_flag=from_flag) from None


def _unusable(name: str, why: str, *, from_flag: bool) -> ClaudeFileError:
    return ClaudeFileError(
        f"{name} {why}: ralph cannot know which calls its rules forbid, so nothing runs; correct or remove the file",
        from_flag=from_flag,
    )


# --- What these files and the environment wish beside rules and hooks: a model, variables, a program that prints the key, and
# directories. No I/O happens here.

ALIAS_VARIABLES = {alias: f"ANTHROPIC_DEFAULT_{alias.upper()}_MODEL" for alias in ALIASES}
LOGIN_VARIABLE = "CLAUDE_CODE_OAUTH_TOKEN"
_CLOUDS = {
    "CLAUDE_CODE_USE_BEDROCK": "Amazon Bedrock",
    "CLAUDE_CODE_USE_VERTEX": "Google Vertex AI",
    "CLAUDE_CODE_USE_FOUNDRY": "Microsoft Foundry",
}


# What a program looks at to find a server or to trust it, as far as ralph or its libraries do.
_AIMING = r"(?:ANTHROPIC|OPENAI)_.*|CLAUDE_CODE_USE_.*|SSL_CERT_FILE"


def is_of_network(variable: str) -> bool:
    """Whether a variable of this name is about proxies or authorities, which each connection reads from the
    process's own environment.
    """
    return variable in AUTHORITIES or variable.lower().endswith("_proxy")


def aims_requests(variable: str) -> bool:
    """Whether a variable of this name decides where requests go, with which key and model, or whom they trust."""
    if re.fullmatch(_AIMING, variable) or variable == LOGIN_VARIABLE or is_of_network(variable):
        return True
    return any(vendor.key_variable == variable for vendor in VENDORS)


def aliases_from(environment: Mapping[str, str]) -> Mapping[str, NamedModel]:
    """The models for which `opus`, `sonnet` and `haiku` are aliases. Raises ValueError if a variable contains an
    invalid name. The error names the variable.
    """
    aliases = dict(ALIASES)
    for alias, variable in ALIAS_VARIABLES.items():
        name = environment.get(variable, "").strip()
        if not name:
            continue
        with about(variable):
            aliases[alias] = named_model(printable(name))
    return aliases


def other_cloud(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable that makes Claude Code use another cloud, and the name of that cloud. None if no such variable
    is set.
    """
    for variable, cloud in _CLOUDS.items():
        if environment.get(variable, "").strip().lower() in {"1", "true", "yes", "on"}:
            return variable, cloud
    return None


def why_not_asked(environment: Mapping[str, str], base_url: str) -> str | None:
    """The reason why a key must not be sent to `base_url`, or None if the key may be sent. Call this only if the user
    did not give --base-url. If a variable selects another cloud, the key may be meant for that cloud.
    """
    cloud = other_cloud(environment)
    if cloud is None:
        return None
    variable, name = cloud
    return (
        f"{variable} is set, but ralph does not find {name} by it: it would send requests to {base_url} instead. "
        f"Unset {variable}, or name the endpoint with --base-url"
    )


def login_of_another_program(environment: Mapping[str, str]) -> str:
    """A note in parentheses for the message that no key was found. It names settings of Claude Code that ralph
    found but does not use: a login, or another cloud. Empty if there are none.
    """
    said = []
    if environment.get(LOGIN_VARIABLE, "").strip():
        said.append(f"{LOGIN_VARIABLE} is Claude Code's own login, which ralph does not use")
    if (cloud := other_cloud(environment)) is not None:
        said.append(f"{cloud[0]} is set, but ralph does not find {cloud[1]} by it")
    return f" ({'; '.join(said)})" if said else ""


_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
# They decide which programs and which code ralph and git load, or are ralph's own.
_NOT_FROM_FILES = r"PATH|(?:LD|DYLD|PYTHON|GIT|RALPH)(?:_.*)?|PYTHON.*"
_WITH_CREDENTIALS = frozenset({"env", "apiKeyHelper"})
_OF_SETTINGS = frozenset(key.variable for key in KEYS if key.variable)
_SAY = "`ralph help from-claude` says what ralph does with each key, and what to use instead"
_WAY_OUT = 'put it elsewhere, or give its text instead: --settings "$(cat FILE)"'


class ClaudeWishes(Struct, frozen=True):
    files: tuple[str, ...] = ()
    user_model: tuple[str, str] | None = None
    typed_model: tuple[str, str] | None = None
    """As `user_model`, for `--settings`."""
    variables: Secret[dict[str, str]] = field(default_factory=lambda: Secret({}))
    """The variables that act as the environment. `with_variables` says which value counts."""
    typed: frozenset[str] = frozenset()
    """Those of `variables` that `--settings` sets. They count before the environment."""
    origins: Mapping[str, str] = field(default_factory=dict)
    of_commands: Secret[dict[str, str]] = field(default_factory=lambda: Secret({}))
    key_helper: KeyProgram | None = None
    """The shell command that prints the key, and the name of its file."""
    directories: tuple[str, ...] = ()
    """The absolute paths of the directories that tools may write too. They need not exist."""
    remarks: tuple[Remark, ...] = ()

    def with_variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment with `variables`. Flags count before the environment, and the environment before files."""
        kept = {name: value for name, value in environment.items() if value and name not in self.typed}
        return {**environment, **self.variables.plain, **kept}

    def overridden(self, environment: Mapping[str, str]) -> Iterator[Remark]:
        """A remark for each variable for which the environment has another value, which counts."""
        for name, value in self.variables.plain.items():
            if name not in self.typed and environment.get(name) not in (None, "", value):
                yield Remark(
                    f"{self.origins[name]}: env.{name} does not count, as the environment sets it", _SAY
                )


def wishes_of(
    read: Sequence[tuple[ClaudeFile, dict[str, Any]]], sources: Collection[str], cwd: str, home: str
) -> ClaudeWishes:
    """The wishes of the files, each with its decoded document. The user's own file counts only if `sources` have `user`.
    Relative directories start from `cwd`. Raises ValueError for a value that is wrong, and for a file of `--settings` that
    somebody else may have written and that asks for more than rules.
    """
    found = ClaudeWishes()
    for file, document in read:
        asked = _trusted_only(document)
        if file.why_open and asked and file.kind == "flag":
            raise ValueError(
                f"{file.name}: {', '.join(asked)} cannot be honoured, as {file.why_open}: {_WAY_OUT}"
            )
        if file.why_open and asked:
            told = Remark(
                f"{file.name}: {', '.join(asked)} do not count, as {file.why_open}", "put it elsewhere"
            )
            found = replace(found, remarks=(*found.remarks, told))
        elif file.is_trusted and file.kind in ("flag", *sources):
            found = _with(found, file, document, cwd, home)
    return found


def without_values(text: str) -> str:
    """The text of a file or of `--settings` without the keys whose values may be credentials, for what is kept on
    disk. A text that is not a JSON object is unchanged.
    """
    try:
        document = fast_json.decode(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(document, dict) or _WITH_CREDENTIALS.isdisjoint(document):
        return text
    kept = {key: value for key, value in document.items() if key not in _WITH_CREDENTIALS}
    return fast_json.encode(kept).decode()


def _trusted_only(document: Mapping[str, Any]) -> list[str]:
    keys = [key for key in keys_within(dict(document)) if key in TRUSTED_ONLY]
    return [key for key in keys if _value(document, key) not in (None, False, "", [], {})]


def _value(document: Mapping[str, Any], name: str) -> Any:
    above, _, key = name.rpartition(".")
    inside = document.get(above) if above else document
    # What is not an object is refused with the rules.
    return inside.get(key) if isinstance(inside, dict) else None


def _with(
    found: ClaudeWishes, file: ClaudeFile, document: dict[str, Any], cwd: str, home: str
) -> ClaudeWishes:
    is_typed = file.kind == "flag"
    model = _text(document, "model", file.name)
    helper = _text(document, "apiKeyHelper", file.name)
    acting, others, ignored = _variables(document, file.name)
    named = [key for key in keys_within(document) if key_named(key).does is KeyEffect.NAMED]
    if _value(document, "sandbox.enabled") is False:
        named.append("sandbox.enabled")
    named += [f"env.{name}" for name in ignored]
    remarks = [Remark(f"{file.name}: not honoured: {', '.join(named)}", _SAY)] if named else []
    of_model = None if model is None else (model, f"{file.name}: model")
    return replace(
        found,
        files=(*found.files, *([file.name] if file.name.startswith("/") and _trusted_only(document) else ())),
        user_model=found.user_model if is_typed else of_model,
        typed_model=of_model if is_typed else found.typed_model,
        variables=Secret({**found.variables.plain, **acting}),
        typed=frozenset(acting) if is_typed else found.typed,
        origins={**found.origins, **dict.fromkeys((*acting, *others), file.name)},
        of_commands=Secret({**found.of_commands.plain, **others}),
        key_helper=found.key_helper
        if helper is None
        else KeyProgram("apiKeyHelper", file.name, Secret(helper)),
        directories=tuple(dict.fromkeys((*found.directories, *_directories(document, file.name, cwd, home)))),
        remarks=(*found.remarks, *remarks),
    )


def _text(document: Mapping[str, Any], key: str, name: str) -> str | None:
    text = document.get(key)
    if text is not None and (not isinstance(text, str) or "\0" in text):
        raise ValueError(f"{name}: {key} must be a text")
    return (text or "").strip() or None


def _variables(document: Mapping[str, Any], name: str) -> tuple[dict[str, str], dict[str, str], list[str]]:
    given = document.get("env") or {}
    if not isinstance(given, dict):
        raise ValueError(f"{name}: env must be an object of variables")  # noqa: TRY004 - a wrong value, not a bug
    acting, others, ignored = {}, {}, []
    for variable, value in given.items():
        if isinstance(value, bool):
            value = str(value).lower()  # noqa: PLW2901 - as JSON writes it
        if not isinstance(value, str | int | float) or "\0" in str(value):
            raise ValueError(f"{name}: env.{variable} must be a text")
        if not re.fullmatch(_VARIABLE, variable) or re.fullmatch(_NOT_FROM_FILES, variable):
            ignored.append(variable)
        elif variable in _OF_SETTINGS or aims_requests(variable):
            acting[variable] = str(value)
        else:
            others[variable] = str(value)
    return acting, others, ignored


def _directories(document: Mapping[str, Any], name: str, cwd: str, home: str) -> Iterator[str]:
    listed = _value(document, "permissions.additionalDirectories") or []
    if not isinstance(listed, list) or not all(
        isinstance(one, str) and one and "\0" not in one for one in listed
    ):
        raise ValueError(f"{name}: permissions.additionalDirectories must be a list of directories")
    for one in listed:
        yield normpath(join(cwd, f"{home}{one[1:]}" if home and one.split("/")[0] == "~" else one))
