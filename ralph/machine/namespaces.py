# os.path instead of pathlib, no contextlib: as in launcher.py.
# ruff: noqa: PTH116, PTH120
"""Runs one command in the namespaces that bubblewrap (`bwrap`) makes. Of ralph's modules, it imports only
`launcher.py` and `restriction.py`. Linux only.

bubblewrap runs a shell that only waits. The calling process, the keeper, then starts a child that enters the same
namespaces and becomes the command. So no interpreter has to start inside the namespaces, which would take three times
as long as bubblewrap itself.

The rules:

1. The keeper stays outside of the namespaces, and no process of the command can see it. In the keeper and in
   bubblewrap's processes, the same signals are blocked as in the launcher. So a request to stop reaches only the
   command.
2. When the command ends, its other processes may finish by themselves for a moment. Then they are asked to end, and
   at last they are killed: the keeper kills bubblewrap, and the kernel then kills every process in the process
   namespace, even if processes keep starting new ones. The launcher adopts the namespace's first process, and so
   waits until all processes are gone.
3. If the launcher dies, the kernel kills the keeper, then bubblewrap, then all processes in the namespaces.
4. bubblewrap's processes inside the namespaces have no capabilities, and they have the command's seccomp filter. With
   Landlock, the command cannot affect them. Without Landlock, they can do nothing that the command cannot do.
5. If a step fails, the command is not run, and its output says why.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from ralph.machine import launcher, restriction
else:
    import _signal as signal  # `signal` would load `enum`, a third of the start of a supervisor

    # Imported from the script's own directory, because ralph is not on the path here.
    sys.path.append(os.path.dirname(__file__))
    import launcher
    import restriction

    sys.path.pop()

OWN_PROCESSES = 4
"""The number of processes that belong to the sandbox and not to the command: the keeper, bubblewrap outside,
bubblewrap inside and the shell."""
# linux/nsfs.h
_NS_GET_USERNS = 0xB701
# One line says that all mounts are there. The shell ends when the keeper does, because its input ends then.
_HOLDER = (b"/bin/sh", b"-c", b"echo; read x")
_FILTER_AT = 3
# As for a command without namespaces: the rest may finish by itself (`exec > >(tee log)`), and is then asked to end.
_FOR_LEFTOVERS = ((0, 0.1), (signal.SIGTERM, 0.2))
_LOOK_AGAIN_AFTER_S = 0.002
_LOOK_AT_LASTING_AFTER_S = 0.1


def run(
    bwrap: list[bytes],
    directory: bytes,
    program: bytes,
    inside: Callable[[], None],
    launcher_pid: int,
    *,
    say: Callable[[bytes], object],
    lasts: bool = False,
) -> int:
    """Calls `inside` in a child of this process, in new namespaces and in `directory`. `inside` must execute a
    program or end the process. Returns the exit status of that child, or 128 + n if signal n killed it.

    `bwrap` is the command line of bubblewrap, up to the command that it runs. `program` is the seccomp filter of
    bubblewrap's own processes, or `restriction.NO_FILTER`. `launcher_pid` is the parent of this process. When the
    parent ends, everything else ends too. `say` gets the message about processes that the command left running. With
    `lasts`, these may end by themselves.
    """
    launcher.prctl(launcher.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher_pid:
        return 128 + signal.SIGKILL
    try:
        pid, hold, is_ready = _held_namespaces(bwrap, program)
    except OSError as error:
        is_short = error.errno in (errno.EAGAIN, errno.ENOMEM)
        return launcher.not_started(error) if is_short else _not_confined(str(error))
    try:
        if not is_ready:
            return _not_confined("bubblewrap failed")
        (first,) = launcher.children_of(pid)
        (holder,) = launcher.children_of(first)
        command = _forked_inside(holder, directory, inside)
        status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        while lasts and _left(first, holder):
            time.sleep(_LOOK_AT_LASTING_AFTER_S)
        _end_leftovers(first, holder, say)
    except (OSError, ValueError) as error:  # ValueError: somebody has killed bubblewrap meanwhile
        return _not_confined(str(error))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(hold)
    return status if status >= 0 else 128 - status


def _held_namespaces(bwrap: list[bytes], program: bytes) -> tuple[int, int, bool]:
    """Starts bubblewrap and waits until its namespaces are complete. Returns the pid of bubblewrap, a descriptor, and
    whether the start succeeded. Closing the descriptor ends bubblewrap's shell. Raises OSError.
    """
    ready, told = os.pipe()
    waits, hold = os.pipe()
    given = [(os.POSIX_SPAWN_DUP2, waits, 0), (os.POSIX_SPAWN_DUP2, told, 1)]
    words, opened = [*bwrap, b"--cap-drop", b"ALL"], [told, waits]
    if program:
        source, sink = os.pipe()
        os.write(sink, program)
        os.close(sink)
        opened.append(source)
        given.append((os.POSIX_SPAWN_DUP2, source, _FILTER_AT))
        words += [b"--seccomp", b"%d" % _FILTER_AT]
    try:
        pid = os.posix_spawn(words[0], [*words, b"--", *_HOLDER], {}, file_actions=given)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    is_ready = os.read(ready, 1) != b""
    os.close(ready)
    return pid, hold, is_ready


def _forked_inside(holder: int, directory: bytes, inside: Callable[[], None]) -> int:
    """Forks a child that enters the namespaces of the process `holder` and calls `inside`. Returns the child's pid.
    Raises OSError.
    """
    enter = restriction.prepare().setns
    spaces = [_opened_namespace(holder, name) for name in ("pid", "mnt", "ipc")]
    user, net = (_opened_namespace(holder, name) for name in ("user", "net"))
    if not _is_own(net, "net"):  # only root of this machine could enter its own again
        spaces.append(net)
    if not _is_own(user, "user"):
        # The other namespaces may belong to one around it: bubblewrap makes two where it needs user id 0 for a moment.
        owner = fcntl.ioctl(spaces[0], _NS_GET_USERNS)
        enter(owner)
    enter(spaces[0])
    pid = launcher.forked()
    if pid == 0:
        _enter_and_call(spaces[1:], user, directory, inside)
    for descriptor in {*spaces, user, net}:
        os.close(descriptor)
    return pid


def _enter_and_call(spaces: list[int], user: int, directory: bytes, inside: Callable[[], None]) -> None:
    try:
        enter = restriction.prepare().setns
        for space in spaces:
            enter(space)
        if not _is_own(user, "user"):
            enter(user)
        # By its path, because a descriptor would lead around the mounts.
        os.chdir(directory)
        inside()
    except OSError as error:
        os._exit(_not_confined(f"{error.filename or 'namespaces'}: {error.strerror}"))
    finally:
        os._exit(launcher.NOT_CONFINED)


def _opened_namespace(pid: int, name: str) -> int:
    return os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)


def _is_own(opened: int, name: str) -> bool:
    return os.path.samestat(os.fstat(opened), os.stat(f"/proc/self/ns/{name}"))


def _end_leftovers(first: int, holder: int, say: Callable[[bytes], object]) -> None:
    """Gives the command's remaining processes time to end. These processes are now children of the namespace's first
    process.
    """
    for number, limit_s in _FOR_LEFTOVERS:
        until_s = time.monotonic() + limit_s
        left = _left(first, holder)
        if left and number:
            tree = launcher.tree_below(left)
            say(launcher.stopped(tree))
            launcher.send_signal(tree, number)
        while left and time.monotonic() < until_s:
            time.sleep(_LOOK_AGAIN_AFTER_S)
            left = _left(first, holder)
        if not left:
            return


def _left(first: int, holder: int) -> list[int]:
    return [pid for pid in launcher.children_of(first) if pid != holder]


def _not_confined(why: str) -> int:
    os.write(2, f"{launcher.NOT_STARTED}its sandbox could not be set up ({why})\n".encode())
    return launcher.NOT_CONFINED


def main(arguments: list[str]) -> int:
    """Runs a command in namespaces and in a sandbox: `namespaces.py DIRECTORY COUNT BWRAP... RULESET FILTER ... --
    COMMAND`.

    `COUNT` is the number of words in bubblewrap's command line. The words after it are those of `restriction.py`. The
    probe and tests use this script, because they have no supervisor.
    """
    directory, count, *rest = arguments
    bwrap, restricted = rest[: int(count)], rest[int(count) :]
    signal.pthread_sigmask(signal.SIG_BLOCK, launcher.STOP_SIGNALS)

    def inside() -> None:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, launcher.STOP_SIGNALS)
        os._exit(restriction.main(restricted))

    restriction.prepare()
    launcher.prctl(launcher.PR_SET_CHILD_SUBREAPER, 1)
    program = bytes.fromhex(restricted[1])
    status = run([*map(os.fsencode, bwrap)], os.fsencode(directory), program, inside, os.getppid(), say=len)
    try:
        while True:  # the namespace's first process ends last
            os.wait()
    except ChildProcessError:
        return status


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
