"""Finds the programs that ralph itself starts: Python interpreters and programs on PATH. Programs inside the agent's
repository are not used, because an agent may have put them there. This rule does not apply to the model's commands,
for which the shell searches the user's PATH.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ABOVE_PACKAGE = str(Path(__file__).absolute().parents[2])


def own_python(statement: str, *arguments: str) -> list[str]:
    """The command line of a Python interpreter that executes `statement`, with `arguments` in `sys.argv[1:]`. The
    interpreter has the same `sys.path` as this process, so it runs the same ralph with the same dependencies. It
    ignores the working directory, PYTHON* variables and the user's site-packages.
    """
    # The package is imported first, with only its directory on the path. Other modules there must not be imported.
    statements = (
        f"import sys; sys.path[:] = [{_ABOVE_PACKAGE!r}]; import ralph; "
        f"sys.path[:] = {sys.path!r}; {statement}"
    )
    return [sys.executable, "-I", *_kept_options(), "-c", statements, *arguments]


def _kept_options() -> list[str]:
    """Command-line options for a new interpreter. They have the effect of this interpreter's PYTHON* variables, which
    an isolated interpreter ignores.
    """
    dont_write = ["-B"] if sys.dont_write_bytecode else []
    return [*dont_write, "-X", "utf8=1"] if sys.flags.utf8_mode else dont_write


def own_program(name: str, search_path: str, work: Path | None) -> str | None:
    """The absolute path of an executable in one of the directories of `search_path`, or None if there is none. Skips
    empty and relative entries. If `work` is not None, also skips directories inside `work`, because a repository or
    an agent can put programs there.
    """
    for directory in trusted_directories(search_path, None):
        path = os.path.join(directory, name)  # noqa: PTH118 - a Path for each directory takes ten times as long
        # Symbolic links are resolved last, because that takes ten times as long as a look for the program.
        if os.access(path, os.X_OK) and Path(path).is_file() and not (work and lies_in(directory, work)):
            return path
    return None


def trusted_directories(search_path: str, work: Path | None) -> list[str]:
    """The entries of a PATH in which ralph may look for its own programs. These are the absolute entries outside of
    `work`, or all absolute entries if `work` is None.
    """
    absolute = [entry for entry in search_path.split(os.pathsep) if entry.startswith(os.sep)]
    if work is None:
        return absolute
    top = _real(str(work))
    return [entry for entry in absolute if not _real(entry).startswith(top)]


def lies_in(path: str, work: Path) -> bool:
    """Whether a path is `work` or is inside it. Symbolic links are resolved first."""
    return _real(path).startswith(_real(str(work)))


def _real(directory: str) -> str:
    """The real path with a slash at its end, so that the beginning of another path can be compared with it. For the
    root directory the result is `//`, which matches no path.
    """
    return os.path.realpath(directory) + os.sep
