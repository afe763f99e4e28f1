"""Finds and reads the settings files that people wrote for Claude Code, and the value of `--settings`.

The rules in these files protect something, so an unreadable file ends the run. At most a megabyte of a file is read.
A pipe is never read, because ralph could wait for its data without end.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.machine.files.opened_file import open_regular_file
from ralph.machine.files.paths import project_top, up_to_repository_root
from ralph.machine.own_programs import ProgramSearch, search_around
from ralph.sandbox.left_behind import why_left_behind
from ralph.settings.claude_wishes import ClaudeWishes, is_of_network, wishes_of
from ralph.settings.tables import Remark
from ralph.settings.toml_file import about_home
from ralph.values.claude_file import ClaudeFile
from ralph.values.outcome import CannotError
from ralph.values.strict_json import unambiguous_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


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
