"""Puts this process in order before it does anything: forbids core dumps, keeps other processes from its memory, counts the file
descriptors that it may open, and takes the usual signals. `own_process.py` cleans the import path
before this module is imported.
"""

import _signal  # type: ignore[import-not-found]  # is built in: `signal` would be read from the import path
import os
import stat

from ralph.machine.launcher import PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl
from ralph.machine.own_process import is_open

DESCRIPTORS = 32
"""The number of file descriptors that a run or a loop may have open at the same time, with its standard streams."""
# With this limit, the open ones are not counted.
_MANY_DESCRIPTORS = 256

_core_limit_at_start = 0
_is_memory_private = False
_why_too_few: str | None = None


def core_limit_at_start() -> int:
    """The soft limit on core dumps, in bytes, with which this process was started, for commands; -1 means none."""
    return _core_limit_at_start


def is_memory_private() -> bool:
    """Whether `keep_memory_private` has kept other processes of this user from the memory and environment of this one."""
    return _is_memory_private


def why_too_few_descriptors() -> str | None:
    """Says how many file descriptors ralph needs, if their limit left it fewer when this process began. Otherwise None."""
    return _why_too_few


def count_descriptors() -> None:
    """Finds what `why_too_few_descriptors` returns. Called at the start: what is open then was opened by the parent."""
    global _why_too_few  # noqa: PLW0603 - it is the process's state, not an object's
    limit = os.sysconf("SC_OPEN_MAX")  # the soft limit, and -1 if there is none
    if limit < 0 or limit >= _MANY_DESCRIPTORS:
        return
    needed = DESCRIPTORS + sum(map(is_open, range(3, limit)))
    if limit < needed:
        _why_too_few = f"the limit on open files is {limit}, and ralph needs {needed}: ulimit -n {needed}"


def take_usual_signals() -> None:
    """Makes Ctrl-C end ralph without a traceback. Later, the run handles signals itself.

    Restores the default action of SIGCHLD: a parent may have left it ignored. The system would then drop the exit codes of
    children, and bubblewrap would never end.
    """
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def keep_memory_private(core_limit: int | None = None) -> None:
    """Forbids core dumps. On Linux, other processes then cannot read the memory or the environment of this process.

    `core_limit` is the limit on core dumps that commands get. A parent ralph passes it, because it has lowered its
    own limit. None means the current limit of this process. The hard limit does not change, so that commands can
    raise their limit again.
    """
    global _core_limit_at_start, _is_memory_private  # noqa: PLW0603 - it is the process's state, not an object's
    import resource  # noqa: PLC0415 - a module of the import path may not be read before this

    at_start, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    _core_limit_at_start = at_start if core_limit is None else core_limit
    # The limit alone is not enough: the kernel ignores it if it pipes core dumps to a program (core_pattern).
    _is_memory_private = prctl(PR_SET_DUMPABLE, 0)


def end_with_parent(parent_pid: int, number: int | None = None) -> None:
    """Makes the kernel send this process SIGTERM, or `number`, when its parent dies, and exits at once if that is dead already.
    Restores the default actions of signals that the parent may have ignored or blocked.

    Only on Linux; elsewhere the process outlives a killed parent. The kernel sends the signal when the *thread* that started this
    process ends, so that thread must be the parent's main thread.
    """
    for restored in (_signal.SIGTERM, _signal.SIGCHLD):
        _signal.signal(restored, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    prctl(PR_SET_PDEATHSIG, number or _signal.SIGTERM)
    if os.getppid() != parent_pid:  # the parent died before the call above
        os._exit(128 + _signal.SIGTERM)


def is_piped(fd: int = 0) -> bool:
    """Whether `fd`, standard input, is a pipe, a socket or a file. From a terminal or from /dev/null, ralph reads no prompt."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)
