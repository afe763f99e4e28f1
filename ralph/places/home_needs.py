# os.path instead of pathlib: these are strings throughout.
# ruff: noqa: PTH110, PTH113, PTH117, PTH118, PTH119, PTH120, PTH208
"""Finds out what this run needs of a home directory besides the fixed places of the table: directories of PATH, packages
that are installed as editable, files that git's configuration names, and the checkouts of the roots. Nothing that lies in a
root is believed, because a command may have written it.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ralph.machine.repository import MOST_BYTES, beginning_of, is_within, is_within_any, repositories_above
from ralph.places.filtered_copy import without_credentials
from ralph.places.table import GIT_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.places.git_places import GitPlaces

_MOST_PACKAGES = 5000
_MOST_INCLUDED = 50
_BINARIES = ("bin", "sbin")
# What the directory of an installation has beside `bin`, and a checkout with a `bin` need not have.
_INSTALLED = ("lib", "lib64", "libexec", "share", "pyvenv.cfg", "conda-meta")
_QUOTED_PATH = re.compile(r"""(?<=['"])/[^'"\n]+(?=['"])""")
# git-config(1): the keys whose values are files or directories that git reads.
_NAMED_BY_GIT = re.compile(
    r"(?im)^\s*(?:path|excludesfile|attributesfile|hookspath|templatedir|template|mailmap\.file|allowedsignersfile)\s*=\s*"
    r'"?([^"\n#;]+)'
)


def program_directories(variables: Mapping[str, str], roots: Sequence[str]) -> Iterator[str]:
    """Yields the directories of PATH, and those of the installations that they belong to, such as `~/jdk` for `~/jdk/bin`."""
    for directory in _search_path(variables, roots):
        yield directory
        real = os.path.realpath(directory)
        above = os.path.dirname(real)
        is_installed = any(os.path.exists(f"{above}/{name}") for name in _INSTALLED)
        # ~/.local has a `lib` and a `share`, and holds much else.
        if (
            os.path.basename(real) in _BINARIES
            and is_installed
            and not os.path.lexists(f"{above}/.git")
            and os.path.basename(above) != ".local"
            and not is_within_any(above, roots)
        ):
            yield above


def editable_packages(variables: Mapping[str, str], roots: Sequence[str]) -> Iterator[str]:
    """Yields the directories of packages that are installed as editable in the Python environments of PATH, VIRTUAL_ENV and
    CONDA_PREFIX. pip, setuptools and other tools name them in `.pth` files, in finders and in `direct_url.json`.
    """
    named = (variables.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
    above = (os.path.dirname(os.path.realpath(one)) for one in _search_path(variables, roots))
    for prefix in dict.fromkeys((*filter(os.path.isabs, named), *above)):
        if not is_within_any(os.path.realpath(prefix), roots):
            for version in _entries(f"{prefix}/lib", "python3"):
                for packages in ("site-packages", "dist-packages"):
                    yield from _named_in(f"{version}/{packages}")


def _named_in(packages: str) -> Iterator[str]:
    for file in islice(_entries(packages), _MOST_PACKAGES):
        if file.endswith(".pth"):
            yield from (line.strip() for line in _text(file).splitlines() if line.startswith("/"))
        elif file.endswith(".py") and os.path.basename(file).startswith("__editable__"):
            yield from _QUOTED_PATH.findall(_text(file))
        elif file.endswith(".dist-info"):
            with suppress(ValueError, AttributeError):  # it is no such JSON
                told = json.loads(_text(f"{file}/direct_url.json"))
                if told.get("dir_info", {}).get("editable"):
                    yield unquote(urlsplit(told["url"]).path)


def named_by_git(files: Iterable[str], homes: Sequence[str], roots: Sequence[str]) -> Iterator[str]:
    """Yields the files and directories that the user's git configuration names: what it includes, and lists of patterns."""
    pending = [file for file in files if not is_within_any(os.path.realpath(file), roots)]
    for file in pending:
        for value in _NAMED_BY_GIT.findall(_text(file)):
            path = value.strip()
            if path.startswith("~/") and homes:
                path = f"{homes[0]}/{path[2:]}"
            path = os.path.normpath(os.path.join(os.path.dirname(file), path))
            if len(pending) < _MOST_INCLUDED and path not in pending:
                pending.append(path)
                yield path


def checkouts(roots: Sequence[str], git: GitPlaces) -> Iterator[str]:
    """Yields the checkouts around the roots, and the main checkout or the bare repository of a linked worktree. Only a git
    directory that knows the worktree is believed.
    """
    for root in roots:
        yield from islice(
            (top for top, is_checkout in repositories_above(root) if is_checkout and top != root), 1
        )
    for path in dict.fromkeys((*git.granted, *(os.path.dirname(part) for part in git.parts))):
        if any(is_within(root, path) for root in roots):  # such as a bare repository around its worktrees
            yield from (f"{path}/{name}" for name in GIT_ENTRIES)
        else:
            yield os.path.dirname(path) if os.path.basename(path) == ".git" else path


def holds_credentials(path: str) -> bool:
    """Whether a configuration file holds something that a copy must not. True if it cannot be read as text."""
    if not os.path.isfile(path):
        return False
    text = filtered(path)
    return text is None or text.encode() != beginning_of(path)


def filtered(path: str) -> str | None:
    """The text of a configuration file without credentials. None if it is no text, or too long."""
    data = beginning_of(path)
    try:
        return None if len(data) >= MOST_BYTES else without_credentials(os.path.basename(path), data.decode())
    except UnicodeDecodeError:
        return None


def _entries(directory: str, prefix: str = "") -> Iterator[str]:
    with suppress(OSError):
        yield from (
            f"{directory}/{name}" for name in sorted(os.listdir(directory)) if name.startswith(prefix)
        )


def _text(file: str) -> str:
    return os.fsdecode(beginning_of(file))


def _search_path(variables: Mapping[str, str], roots: Sequence[str]) -> list[str]:
    found = variables.get("PATH", os.defpath).split(os.pathsep)
    return [one for one in found if os.path.isabs(one) and not is_within_any(os.path.normpath(one), roots)]
