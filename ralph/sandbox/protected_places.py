"""Collects the facts for the table of protected paths: home directories, ralph's own files, its Python and git
directories.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine.repository import git_directories
from ralph.machine.ripgrep import RipgrepError, ripgrep_path
from ralph.sandbox.protected_paths import PlaceFacts, protected_paths
from ralph.sandbox.sandbox_settings import callers_places
from ralph.values.credentials import SANDBOX_HIDE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.sandbox.protected_paths import ProtectedPaths


def gather_paths(
    roots: Sequence[str],
    environment: Mapping[str, str],
    configuration: Iterable[Path | None] = (),
    session_directory: Path | None = None,
    *,
    denied: Iterable[str] = (),
    given: Iterable[str] = (),
) -> ProtectedPaths:
    """Makes the table for this machine and this run. `roots` must have no symbolic links and begin with the working
    directory.

    `configuration` and `session_directory` are paths from the command line. `denied` and `given` are the paths,
    without symbolic links, that the user's settings deny and allow.
    """
    homes = home_directories(environment)
    package = Path(__file__).parent.parent  # the parent of `ralph/sandbox`
    facts = PlaceFacts(
        roots=tuple(roots),
        homes=homes,
        variables=environment,
        configuration=(
            *(str(path) for path in configuration if path is not None),
            *_configured(environment, homes),
        ),
        state=tuple(state_directories(environment, homes, session_directory)),
        package=str(package),
        prefixes=tuple(dict.fromkeys((sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix))),
        code=tuple(dict.fromkeys(_code())),
        git_directories=git_directories(roots, environment),
        denied=tuple(denied),
        given=tuple(given),
        hidden=callers_places(SANDBOX_HIDE, environment.get(SANDBOX_HIDE, "")),
    )
    return protected_paths(facts, _Resolver())


class _Resolver:
    """Resolves symbolic links like `os.path.realpath`. It is faster if many paths lie in few directories, because it
    looks each directory up only once.
    """

    def __init__(self) -> None:
        self._known = {"/": "/"}

    def __call__(self, path: str) -> str:
        return self._resolved(os.path.normpath(path))

    def _resolved(self, path: str) -> str:
        if path not in self._known:
            above, name = os.path.split(path)
            plain = f"{self._resolved(above).rstrip('/')}/{name}"
            self._known[path] = os.path.realpath(plain) if os.path.islink(plain) else plain  # noqa: PTH114 - a str
        return self._known[path]


def home_directories(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The home directories of the user: the directory in HOME, and the one in the user database, which ssh uses."""
    import pwd  # noqa: PLC0415 - only a file tool needs it

    found = [environment.get("HOME", "")]
    with suppress(KeyError):  # a container's user need not be known to the system
        found.append(pwd.getpwuid(os.getuid()).pw_dir)
    return tuple(dict.fromkeys(home for home in found if home.startswith("/")))


def _configured(environment: Mapping[str, str], homes: Sequence[str]) -> Iterator[str]:
    named = environment.get("XDG_CONFIG_HOME", "")
    if named.startswith("/"):
        yield f"{named}/ralph"
    yield from (f"{home.rstrip('/')}/.config/ralph" for home in homes)


def state_directories(
    environment: Mapping[str, str], homes: Sequence[str], named: Path | None
) -> Iterator[str]:
    """Yields every directory in which a run of this user may store sessions or the records of loops."""
    import tempfile  # noqa: PLC0415 - only a file tool needs it

    for variable, rest in (("RALPH_STATE_DIR", ""), ("XDG_STATE_HOME", "/ralph")):
        place = environment.get(variable, "")
        if place.startswith("/"):
            yield place + rest
    yield from (f"{home.rstrip('/')}/.local/state/ralph" for home in homes)
    yield str(Path(tempfile.gettempdir(), f"ralph-sessions-{os.getuid()}"))
    if named is not None:
        yield str(named)


def _code() -> Iterator[str]:
    """Yields the paths of this Python (its library, its programs, `pyvenv.cfg` and its installed packages) and of
    ripgrep.
    """
    yield str(Path(os.__file__).parent)
    yield str(Path(sys.executable).parent)
    yield str(Path(sys.prefix, "pyvenv.cfg"))
    with suppress(RipgrepError):
        yield ripgrep_path()
    names = ("site-packages", "dist-packages", "lib-dynload")
    yield from (entry for entry in sys.path if entry.startswith("/") and entry.rstrip("/").endswith(names))
