"""Secures this process before it imports anything else. From then on nothing is imported from the working directory,
core dumps are forbidden, and on Linux other processes cannot read its memory.

At its top, this module may import only modules that the interpreter has already loaded, because other modules could
come from the working directory. Python may run code before ralph's first line if `PYTHONPATH` names it
(`sitecustomize.py`). This module cannot undo what such code has done.
"""

# `pathlib` would have to be imported.
# ruff: noqa: PTH109, PTH117, PTH118, PTH119, PTH120

import os
import sys

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4

DESCRIPTORS = 32
"""The number of file descriptors that a run or a loop may have open at the same time, with its standard streams."""
# With this limit, the open ones are not counted.
_MANY_DESCRIPTORS = 256

_core_limit_at_start = 0
_is_memory_private = False
_why_too_few: str | None = None


def core_limit_at_start() -> int:
    """The soft limit on the size of core dumps with which this process was started, in bytes; -1 means no limit.
    Commands get this limit.
    """
    return _core_limit_at_start


def is_memory_private() -> bool:
    """Whether `keep_memory_private` succeeded. Other processes of this user then cannot read the memory and the
    environment of this process.
    """
    return _is_memory_private


def why_too_few_descriptors() -> str | None:
    """Says how many file descriptors ralph needs, if their limit left it fewer when this process began. Otherwise None."""
    return _why_too_few


def count_descriptors() -> None:
    """Finds what `why_too_few_descriptors` returns. Called at the start: what is open then was opened by the parent."""
    global _why_too_few  # noqa: PLW0603 - it is the process's state, not an object's
    import resource  # noqa: PLC0415 - not before the import path is clean

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= _MANY_DESCRIPTORS:
        return
    needed = DESCRIPTORS + sum(map(_is_open, range(3, limit)))
    if limit < needed:
        _why_too_few = f"the limit on open files is {limit}, and ralph needs {needed}: ulimit -n {needed}"


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def leave_working_directory_out(arguments: list[str]) -> list[str]:
    """Removes entries from `sys.path`: relative entries, the current directory, the directories that `--cd` could
    name, and all directories inside these. Also removes the directory of the script that started ralph, because it
    holds no modules.

    A directory of installed packages is not removed, such as a virtual environment inside a checkout, unless
    `PYTHONPATH` names it. Returns the removed entries that came from `PYTHONPATH`.
    """
    here = _current_directory()
    named = {os.path.normpath(os.path.join(here, entry)) for entry in _python_path()}
    works = tuple(_real(os.path.join(here, path)) for path in ("", *_values_of_cd(arguments)))
    scripts = _directory_of_scripts()
    kept, left_out = [], []
    for entry in sys.path:
        is_installed = entry not in named and _is_for_installed_modules(entry)
        # If the directory is the root of the file system, only the root itself is removed: every path lies below it.
        is_at_work = not is_installed and _real(entry).startswith(works)
        if os.path.isabs(entry) and not is_at_work and (entry != scripts or entry in named):
            kept.append(entry)
        else:
            left_out.append(entry)
    sys.path[:] = kept
    return [entry for entry in left_out if entry in named]


def _directory_of_scripts() -> str:
    """The directory of the script `ralph`, which Python put first in `sys.path`. Empty if another program started
    ralph.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    return os.path.dirname(os.path.realpath(script)) if script and os.path.basename(script) == "ralph" else ""


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
    """Whether the directory contains the standard library or installed packages. On Debian, the directory of
    installed packages is called `dist-packages`.
    """
    is_standard = (entry + os.sep).startswith(os.path.dirname(os.__file__) + os.sep)
    return is_standard or os.path.basename(entry) in ("site-packages", "dist-packages")


def _values_of_cd(arguments: list[str]) -> list[str]:
    """Every argument that could be the value of `--cd`. The result may contain other arguments too, which does no
    harm.
    """
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
    """Forbids core dumps. On Linux, other processes then cannot read the memory or the environment of this process.

    `core_limit` is the limit on core dumps that commands get. A parent ralph passes it, because it has lowered its
    own limit. None means the current limit of this process. The hard limit does not change, so that commands can
    raise their limit again.
    """
    import resource  # noqa: PLC0415 - not before the import path is clean

    global _core_limit_at_start, _is_memory_private  # noqa: PLW0603 - it is the process's state, not an object's
    at_start, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    _core_limit_at_start = at_start if core_limit is None else core_limit
    _is_memory_private = sys.platform == "linux" and _becomes_non_dumpable()


def _becomes_non_dumpable() -> bool:
    """Makes the process non-dumpable, and returns whether that worked. The limit on core dumps alone is not enough,
    because the kernel ignores this limit if it pipes core dumps to a program (core_pattern).
    """
    return _prctl(_PR_SET_DUMPABLE, 0)


def end_with_parent(parent_pid: int, number: int | None = None) -> None:
    """Makes the kernel send this process a SIGTERM, or the signal `number`, when its parent dies. Exits at once if the
    parent is dead already.
    Works only on Linux; elsewhere the process outlives a killed parent. The kernel sends the signal when the *thread*
    that started this process ends, so that thread must be the parent's main thread.

    Restores the default actions of signals that the parent may have ignored or blocked.
    """
    import signal  # noqa: PLC0415 - not before the import path is clean

    for restored in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(restored, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, number or signal.SIGTERM)
    if os.getppid() != parent_pid:  # the parent died before the call above
        os._exit(128 + signal.SIGTERM)


def _prctl(option: int, value: int) -> bool:
    """Sets an option of this process (man page prctl, section 2). Returns False if that is impossible."""
    try:
        # `ctypes` would add 2 ms to every start; this part of it takes half a millisecond.
        from _ctypes import call_function, dlopen, dlsym  # noqa: PLC0415 - not before the import path is clean
    except ImportError:
        return False  # an interpreter without libffi; `ralph doctor` reports it
    program = dlopen(None, 0)  # type: ignore[arg-type] # None is this program; the stubs know files alone
    return bool(call_function(dlsym(program, "prctl"), (option, value, 0, 0, 0)) == 0)
