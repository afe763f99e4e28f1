"""Secures this process before it imports anything else: no import from the working directory, no core dump, no memory
that a child of ralph's could read.

The top of this module may import only modules that the interpreter has already loaded: another one could come from the
working directory. Code that `PYTHONPATH` runs before ralph's first line (`sitecustomize.py`) cannot be undone here.
"""

# `pathlib` would have to be imported.
# ruff: noqa: PTH109, PTH117, PTH118, PTH119, PTH120

import os
import sys

# linux/prctl.h
_PR_SET_DUMPABLE = 4

_core_limit_at_start = 0
_is_memory_private = False


def core_limit_at_start() -> int:
    """The soft limit on core dumps, in bytes, that this process was started with; -1: none. Commands get it back."""
    return _core_limit_at_start


def is_memory_private() -> bool:
    """Whether this process has closed its memory and its environment to other processes of the same user."""
    return _is_memory_private


def leave_working_directory_out(arguments: list[str]) -> list[str]:
    """Take the working directory off the import path. Returns the entries of `PYTHONPATH` that were removed.

    This concerns the current directory and the directory that the command line names, with everything inside them, and
    relative entries. A directory of installed packages stays (a virtual environment inside a checkout), unless
    `PYTHONPATH` names it.
    """
    here = _current_directory()
    named = {os.path.normpath(os.path.join(here, entry)) for entry in _python_path()}
    works = tuple(_real(os.path.join(here, path)) for path in ("", *_values_of_cd(arguments)))
    kept, left_out = [], []
    for entry in sys.path:
        is_installed = entry not in named and _is_for_installed_modules(entry)
        # If the directory is the root of the file system, only the root itself is removed: every path lies below it.
        if os.path.isabs(entry) and (is_installed or not _real(entry).startswith(works)):
            kept.append(entry)
        else:
            left_out.append(entry)
    sys.path[:] = kept
    return [entry for entry in left_out if entry in named]


def _current_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is gone, and nothing can lie in it
        return os.sep


def _real(directory: str) -> str:
    return os.path.realpath(directory) + os.sep


def _python_path() -> list[str]:
    value = os.environ.get("PYTHONPATH")
    return value.split(os.pathsep) if value else []


def _is_for_installed_modules(entry: str) -> bool:
    """Whether an entry has the standard library or installed packages (Debian has its own name for these)."""
    is_standard = (entry + os.sep).startswith(os.path.dirname(os.__file__) + os.sep)
    return is_standard or os.path.basename(entry) in ("site-packages", "dist-packages")


def _values_of_cd(arguments: list[str]) -> list[str]:
    """Every argument that could be the value of `--cd`. An argument too many does no harm."""
    found = []
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            if name == "--cd":
                found.append(value if equals else following)
        elif argument.startswith("-") and "C" in argument:
            found.append(argument.partition("C")[2] or following)
    return found


def keep_memory_private(core_limit: int | None = None) -> None:
    """Allow no core dump, neither to a file nor to a pipe. On Linux, other processes can then read neither the memory
    nor the environment of this process.

    `core_limit`: the limit that commands get, if a ralph that started this process has lowered the limit; None: the
    limit that this process has now. The hard limit stays, so that commands can get their limit back.
    """
    import resource  # noqa: PLC0415 - not before the import path is clean

    global _core_limit_at_start, _is_memory_private  # noqa: PLW0603 - it is the process's state, not an object's
    at_start, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    _core_limit_at_start = at_start if core_limit is None else core_limit
    _is_memory_private = sys.platform == "linux" and _becomes_non_dumpable()


def _becomes_non_dumpable() -> bool:
    """Make the process non-dumpable. If the kernel pipes core dumps to a program (core_pattern), it ignores the limit
    on core dumps, but it does not dump such a process.
    """
    try:
        # `ctypes` would add 2 ms to every start; this part of it takes half a millisecond.
        from _ctypes import call_function, dlopen, dlsym  # noqa: PLC0415 - see above
    except ImportError:
        return False  # an interpreter without libffi; `ralph doctor` reports it
    program = dlopen(None, 0)  # type: ignore[arg-type] # None is this program; the stubs know files alone
    return bool(call_function(dlsym(program, "prctl"), (_PR_SET_DUMPABLE, 0, 0, 0, 0)) == 0)
