"""The programs that ralph starts for itself: its own interpreters, and programs that it finds on PATH.

It refuses programs in the working directory, which an agent may have put there. Commands of the model are found by
their shell, on the user's PATH.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ABOVE_PACKAGE = str(Path(__file__).absolute().parents[2])


def own_python(statement: str, *arguments: str) -> list[str]:
    """The command line of an interpreter that executes `statement`, with `arguments` in `sys.argv[1:]`.

    It is isolated from the working directory, PYTHON* variables and the user's own packages, and imports from where
    this process imports: the same ralph, the same dependencies.
    """
    # Its own package comes first and alone: it may lie in a directory that is not to be imported from.
    statements = (
        f"import sys; sys.path[:] = [{_ABOVE_PACKAGE!r}]; import ralph; "
        f"sys.path[:] = {sys.path!r}; {statement}"
    )
    return [sys.executable, "-I", *_kept_options(), "-c", statements, *arguments]


def _kept_options() -> list[str]:
    """The command-line options that replace this interpreter's PYTHON* variables, which an isolated interpreter
    ignores.
    """
    dont_write = ["-B"] if sys.dont_write_bytecode else []
    return [*dont_write, "-X", "utf8=1"] if sys.flags.utf8_mode else dont_write


def own_program(name: str, search_path: str, work: Path | None) -> str | None:
    """The absolute path of an executable in one of the directories of `search_path`; None: there is none.

    Empty and relative entries are left out. Directories in `work` are left out too, because a checkout can bring its
    own programs, and an agent can write there. `work` None: there is no such directory.
    """
    for directory in trusted_directories(search_path, work):
        path = Path(directory, name)
        if os.access(path, os.X_OK) and path.is_file():
            return str(path)
    return None


def trusted_directories(search_path: str, work: Path | None) -> list[str]:
    """The entries of a PATH in which ralph looks for its own programs."""
    absolute = [entry for entry in search_path.split(os.pathsep) if entry.startswith(os.sep)]
    if work is None:
        return absolute
    return [entry for entry in absolute if not lies_in(entry, work)]


def lies_in(path: str, work: Path) -> bool:
    """Whether a path lies in the directory `work`, with links resolved. True also if the path is `work` itself."""
    return _real(path).startswith(_real(str(work)))


def _real(directory: str) -> str:
    """The real path with a slash at its end, for comparison with the paths inside. For the root of the file system, the
    result matches no path.
    """
    return os.path.realpath(directory) + os.sep
