"""Finds out what this run needs of a home directory besides the fixed places of the table: directories of PATH, packages
that are installed as editable, and the checkouts of the roots. What is where commands
may write is not believed, and no link there is followed: `outside` resolves a path (`LinkResolver`), and returns None for those.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ralph.machine.files.paths import MOST_BYTES, beginning_of, entries_in, is_within, repositories_above
from ralph.places.filtered_copy import without_credentials
from ralph.places.table import GIT_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ralph.places.git_places import GitPlaces

    Outside = Callable[[str], str | None]

_MOST_PACKAGES = 5000
_BINARIES = ("bin", "sbin")
# What the directory of an installation has beside `bin`, and a checkout with a `bin` need not have.
_INSTALLED = ("lib", "lib64", "libexec", "share", "pyvenv.cfg", "conda-meta")
# Modules of setuptools, editables, scikit-build-core and meson-python that find those of an editable package.
_FINDER = re.compile(r"_+editable_.*\.py|_.*_editable(?:_loader)?\.py")
_QUOTED_PATH = re.compile(r"""(?<=['"])/[^'"\n]+(?=['"])""")


def program_directories(variables: Mapping[str, str], outside: Outside) -> Iterator[str]:
    """Yields the directories of PATH, and those of the installations that they belong to, such as `~/jdk` for `~/jdk/bin`."""
    for directory in _search_path(variables, outside):
        yield directory
        above = os.path.dirname(directory)
        is_installed = any(os.path.exists(f"{above}/{name}") for name in _INSTALLED)
        if os.path.basename(directory) in _BINARIES and is_installed and not os.path.lexists(f"{above}/.git"):
            yield above


def editable_packages(variables: Mapping[str, str], outside: Outside) -> Iterator[str]:
    """Yields the directories of editable packages in the Python environments of PATH, VIRTUAL_ENV and CONDA_PREFIX. pip,
    setuptools and other tools name them in `.pth` files, in finders and in `direct_url.json`.
    """
    named = (variables.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
    above = map(os.path.dirname, _search_path(variables, outside))
    for prefix in dict.fromkeys((*filter(os.path.isabs, named), *above)):
        for packages in site_packages(f"{prefix}/lib"):
            # These files name directories and modules.
            found = (path for _, path in named_in(packages, outside))
            yield from (path for path in found if os.path.isdir(path) or path.endswith(".py"))


def site_packages(library: str) -> Iterator[str]:
    """Yields where each version of Python that has its modules in a directory such as `/usr/lib` may have installed packages."""
    for version in sorted(entry.path for entry in entries_in(library)):
        if os.path.basename(version).startswith(("python", "pypy")):
            yield from (f"{version}/site-packages", f"{version}/dist-packages")


def named_in(packages: str, outside: Outside) -> Iterator[tuple[str, str]]:
    """Yields each path from which a Python also takes modules because of a file in its `site-packages`, behind that file."""
    for file in islice(sorted(entry.path for entry in entries_in(packages)), _MOST_PACKAGES):
        if file.endswith(".pth"):
            for line in _text(file, outside).splitlines():
                is_code = line.startswith(("import ", "import\t"))
                paths = _QUOTED_PATH.findall(line) if is_code else [line.rstrip()] * (line[:1] != "#")
                yield from ((file, os.path.normpath(os.path.join(packages, path))) for path in paths if path)
        elif _FINDER.fullmatch(os.path.basename(file)):
            yield from ((file, path) for path in _QUOTED_PATH.findall(_text(file, outside)))
        elif file.endswith(".dist-info"):
            with suppress(ValueError, AttributeError, LookupError):  # it is not JSON of this form
                told = json.loads(_text(f"{file}/direct_url.json", outside))
                if told.get("dir_info", {}).get("editable"):
                    yield file, unquote(urlsplit(told["url"]).path)


def checkouts(roots: Sequence[str], git: GitPlaces) -> Iterator[str]:
    """Yields the checkouts around the roots, and the main checkout or bare repository of a linked worktree that it knows."""
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
    """The text of a configuration file without credentials. None if it is not text, or too long."""
    data = beginning_of(path)
    try:
        return None if len(data) >= MOST_BYTES else without_credentials(os.path.basename(path), data.decode())
    except UnicodeDecodeError:
        return None


def _text(file: str, outside: Outside) -> str:
    real = outside(file)
    return "" if real is None else os.fsdecode(beginning_of(real))


def _search_path(variables: Mapping[str, str], outside: Outside) -> list[str]:
    found = filter(os.path.isabs, variables.get("PATH", os.defpath).split(os.pathsep))
    return [real for real in map(outside, found) if real is not None]
