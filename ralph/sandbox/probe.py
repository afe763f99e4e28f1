"""Tries actions that a sandbox must deny to a command, and prints which actions were denied.

The script runs inside the sandbox and needs only the standard library (`python -I -S probe.py TARGETS`).
`self_test.py` makes the targets outside the sandbox, and compares the verdicts with what the level promises. Each row
of the table is one action. The script tries each row in a separate process with a time limit, and prints one JSON
line for it. It changes only its targets, sends other processes only signal 0, and starts a limited number of
processes.
"""

# Each row is about one system call. The functions of `os` name it, and pathlib would hide it.
# ruff: noqa: PTH101, PTH102, PTH104, PTH108, PTH115, PTH123, PTH211

from __future__ import annotations

import errno
import json
import os
import platform
import signal
import socket
import sys
from typing import Any, NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ALLOWED, DENIED, UNTRIED = "allowed", "denied", "untried"
SEEN_FROM_OUTSIDE = "seen from outside"
"""The detail of a row whose verdict only `self_test.py` can find, because it is outside the sandbox."""

_WITHIN_S = 10
_DAEMON_S = 20
_MOST_MORE_PROCESSES = 40
_MOST_TRIED_PROCESSES = 2000
_MIB = 1024 * 1024
_MOST_DESCRIPTORS = 256

_DENIALS = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV, errno.EBUSY),
        *(errno.ENOSYS, errno.EAFNOSUPPORT, errno.EOPNOTSUPP),
    }
)
# Errors for a target that does not exist inside the command's namespaces.
_NOT_THERE = frozenset({errno.ENOENT, errno.ESRCH, errno.EINVAL, errno.EIDRM})
_UNREACHABLE = frozenset(
    {errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.ENODEV}
)

Targets = dict[str, Any]


class Row(NamedTuple):
    name: str
    protection: str
    """The name of the protection in `levels.py` that denies the row's action, or empty if no protection does."""
    attempt: Callable[[Targets], None]
    also: frozenset[int] = frozenset()
    """Errors that show a denial in this row only. They are added to the errors that show a denial in every row."""
    own_loopback: bool = False
    """True if the action is allowed in a network namespace, because it then reaches only the command's own loopback."""


class UntriedError(Exception):
    """The action cannot be tried on this machine. The message gives the reason."""


def _number(name: str) -> int:
    numbers = {
        "x86_64": {"unshare": 272, "clone": 56, "io_uring_setup": 425, "keyctl": 250, "ptrace": 101}
        | {"process_vm_readv": 310, "mount": 165, "umount2": 166, "shmat": 30, "shmget": 29, "getppid": 110},
        "aarch64": {"unshare": 97, "clone": 220, "io_uring_setup": 425, "keyctl": 219, "ptrace": 117}
        | {"process_vm_readv": 270, "mount": 40, "umount2": 39, "shmat": 196, "shmget": 194, "getppid": 173},
    }
    try:
        return numbers[platform.machine()][name]
    except KeyError:
        raise UntriedError(f"no number for {name} on {platform.machine()}") from None


def _call(name: str, *arguments: int | bytes) -> int:
    return _call_number(_number(name), *arguments)


def _call_number(number: int, *arguments: int | bytes) -> int:
    import ctypes  # noqa: PLC0415 - in the row's own process

    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    passed = [one if isinstance(one, bytes) else ctypes.c_long(one) for one in arguments]
    result = int(syscall(ctypes.c_long(number), *passed))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _append(path: str) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(b"x")


def _read(path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        file.read(1)


def _new_outside(targets: Targets) -> None:
    _append(f"{targets['outside']}/new")


def _change_outside(targets: Targets) -> None:
    _append(f"{targets['outside']}/file")


def _write_through_link(targets: Targets) -> None:
    link = f"{targets['root']}/link"
    os.symlink(f"{targets['outside']}/file", link)
    _append(link)


def _write_through_proc(targets: Targets) -> None:
    _append(f"/proc/self/root{targets['outside']}/file")


def _reopen_descriptor(targets: Targets) -> None:
    with open(f"{targets['outside']}/file", "rb") as file:
        _append(f"/proc/self/fd/{file.fileno()}")


def _rename_out(targets: Targets) -> None:
    _append(f"{targets['root']}/leaving")
    os.rename(f"{targets['root']}/leaving", f"{targets['outside']}/arrived")


def _rename_in(targets: Targets) -> None:
    os.rename(f"{targets['outside']}/taken", f"{targets['root']}/taken")


def _link_out(targets: Targets) -> None:
    _append(f"{targets['root']}/linked")
    os.link(f"{targets['root']}/linked", f"{targets['outside']}/linked")


def _link_in(targets: Targets) -> None:
    os.link(f"{targets['outside']}/file", f"{targets['root']}/hard")


def _truncate(targets: Targets) -> None:
    os.truncate(f"{targets['outside']}/file", 1)


def _open_truncating(targets: Targets) -> None:
    os.close(os.open(f"{targets['outside']}/file", os.O_RDONLY | os.O_TRUNC))


def _make_directory(targets: Targets) -> None:
    os.mkdir(f"{targets['outside']}/directory")


def _make_link(targets: Targets) -> None:
    os.symlink("/", f"{targets['outside']}/symlink")


def _remove(targets: Targets) -> None:
    os.unlink(f"{targets['outside']}/removed")


def _change_mode(targets: Targets) -> None:
    os.chmod(f"{targets['outside']}/file", 0o640)


def _change_times(targets: Targets) -> None:
    os.utime(f"{targets['outside']}/file", (1, 1))


def _change_git_configuration(targets: Targets) -> None:
    _append(f"{targets['root']}/.git/config")


def _replace_git_hooks(targets: Targets) -> None:
    os.rename(f"{targets['root']}/.git/hooks", f"{targets['root']}/.git/old-hooks")


def _replace_git_directory(targets: Targets) -> None:
    os.rename(f"{targets['root']}/.git", f"{targets['root']}/old-git")
    os.rename(f"{targets['root']}/old-git", f"{targets['root']}/.git")


def _mount(targets: Targets) -> None:
    place = os.fsencode(targets["root"]) + b"\0"
    _call("mount", b"none\0", place, b"tmpfs\0", 0, b"\0")
    _call("umount2", place, 0)


def _make_device(targets: Targets) -> None:
    os.mknod(f"{targets['root']}/disk", 0o600 | 0o060000, os.makedev(7, 0))


def _change_root(targets: Targets) -> None:
    os.chroot(targets["root"])


def _read_secrets(targets: Targets) -> None:
    """Tries to read secrets. Raises PermissionError if none of them can be read. Skips directories and missing files."""
    read = []
    for path in targets["secrets"]:
        try:
            _read(path)
        except IsADirectoryError:
            continue
        except OSError as error:
            if error.errno in _DENIALS or error.errno in _NOT_THERE:
                continue
            raise
        read.append(path)
    if not read:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _read_secret_through_link(targets: Targets) -> None:
    link = f"{targets['root']}/innocent"
    os.symlink(targets["secrets"][0], link)
    _read(link)


def _read_secret_through_proc(targets: Targets) -> None:
    _read(f"/proc/self/root{targets['secrets'][0]}")


def _read_late_secret(targets: Targets) -> None:
    _read(targets["late_secret"])


def _read_hard_link(targets: Targets) -> None:
    _read(targets["hard_link"])


def _copy_secret(targets: Targets) -> None:
    os.link(targets["secrets"][0], f"{targets['root']}/copy")
    _read(f"{targets['root']}/copy")


def _read_disk(_targets: Targets) -> None:
    disks = [
        entry.path
        for entry in os.scandir("/dev")
        if entry.name.startswith(("sd", "vd", "nvme", "mem", "dm-"))
    ]
    readable = [path for path in disks if os.access(path, os.R_OK)]
    if not disks:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    _read((readable or disks)[0])


def _read_environment(targets: Targets) -> None:
    _read(f"/proc/{targets['pid']}/environ")


def _read_memory(targets: Targets) -> None:
    os.close(os.open(f"/proc/{targets['pid']}/mem", os.O_RDONLY))


def _follow_working_directory(targets: Targets) -> None:
    os.readlink(f"/proc/{targets['pid']}/cwd")


def _read_command_line(targets: Targets) -> None:
    _read(f"/proc/{targets['pid']}/cmdline")


def _trace(targets: Targets) -> None:
    seize, detach = 0x4206, 17
    _call("ptrace", seize, targets["pid"], 0, 0)
    _call("ptrace", 0x4207, targets["pid"], 0, 0)  # PTRACE_INTERRUPT: PTRACE_DETACH needs a stopped process
    os.waitpid(targets["pid"], 0x4000_0000)  # __WALL
    _call("ptrace", detach, targets["pid"], 0, 0)


def _read_by_call(targets: Targets) -> None:
    import ctypes  # noqa: PLC0415 - in the row's own process

    # The other process has nothing mapped at this address, so EFAULT means that reading was allowed.
    local = ctypes.create_string_buffer(8)
    ours = ctypes.addressof(local).to_bytes(8, sys.byteorder) + (8).to_bytes(8, sys.byteorder)
    theirs = (16).to_bytes(8, sys.byteorder) + (8).to_bytes(8, sys.byteorder)
    try:
        _call("process_vm_readv", targets["pid"], ours, 1, theirs, 1, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise


def _signal(targets: Targets) -> None:
    os.kill(targets["pid"], 0)


def _signal_parent(targets: Targets) -> None:
    os.kill(targets["parent"], 0)


def _limit_another(targets: Targets) -> None:
    import resource  # noqa: PLC0415 - in the row's own process

    resource.prlimit(targets["pid"], resource.RLIMIT_NOFILE)


def _shared_memory(targets: Targets) -> None:
    _call("shmat", targets["shared_memory"], 0, 0o10000)  # SHM_RDONLY


def _open_terminal(targets: Targets) -> None:
    _append(targets["terminal"])


def _connect(targets: Targets, protocol: int = 0) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol) as client:
        client.connect(("127.0.0.1", targets["port"]))


def _connect_by_mptcp(targets: Targets) -> None:
    _connect(targets, 262)


def _connect_by_fast_open(targets: Targets) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.sendto(b"x", 0x2000_0000, ("127.0.0.1", targets["port"]))


def _send_datagram(targets: Targets) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", targets["port"]))


def _listen(_targets: Targets) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.listen()


def _open_vsock(_targets: Targets) -> None:
    socket.socket(40, socket.SOCK_STREAM).close()


def _open_raw(_targets: Targets) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()


def _open_packet(_targets: Targets) -> None:
    socket.socket(17, socket.SOCK_RAW, 0).close()


def _connect_to_path(targets: Targets) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(targets["socket"])


def _send_to_path(targets: Targets) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.sendto(b"x", targets["datagram_socket"])


def _connect_to_abstract(targets: Targets) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + targets["abstract"])


def _new_user_namespace(_targets: Targets) -> None:
    _call("unshare", 0x1000_0000)


def _clone_user_namespace(_targets: Targets) -> None:
    if _call("clone", 0x1000_0000 | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


def _type_ahead(_targets: Targets) -> None:
    import fcntl  # noqa: PLC0415 - in the row's own process

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the kernel sends it when the terminal closes
    master, terminal = os.openpty()
    os.setsid()
    fcntl.ioctl(terminal, 0x540E, 0)  # TIOCSCTTY: TIOCSTI needs the controlling terminal
    fcntl.ioctl(terminal, 0x5412, b"x")
    os.close(master)


def _make_ring(_targets: Targets) -> None:
    import ctypes  # noqa: PLC0415 - in the row's own process

    parameters = ctypes.create_string_buffer(120)
    os.close(_call("io_uring_setup", 1, ctypes.addressof(parameters)))


def _look_at_keys(_targets: Targets) -> None:
    _call("keyctl", 0, -3, 0)  # KEYCTL_GET_KEYRING_ID of the session


def _other_numbers(_targets: Targets) -> None:
    if platform.machine() != "x86_64":
        raise UntriedError("there is no x32 here")
    _call_number(0x4000_0000 | 39)


def _gain_privileges(_targets: Targets) -> None:
    import ctypes  # noqa: PLC0415 - in the row's own process

    if ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) == 1:  # PR_GET_NO_NEW_PRIVS
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def _hold_capabilities(_targets: Targets) -> None:
    with open("/proc/self/status") as status:
        sets = [
            line.split()[1] for line in status if line.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb"))
        ]
    if not any(int(one, 16) for one in sets):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def _dump_core(_targets: Targets) -> None:
    import resource  # noqa: PLC0415 - in the row's own process

    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError:  # the module `resource` raises it for EPERM
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM)) from None


def _storm(targets: Targets) -> None:
    most = targets.get("max_processes", 0)
    if not 0 < most < _MOST_TRIED_PROCESSES:
        raise UntriedError("not part of this probe: sandbox.max_processes")
    waiting, ending = os.pipe()
    pids = []
    try:
        for _ in range(most + _MOST_MORE_PROCESSES):
            pid = os.fork()
            if pid == 0:
                os.close(ending)
                os.read(waiting, 1)  # until the parent closes the pipe
                os._exit(0)
            pids.append(pid)
    finally:
        os.close(ending)
        for pid in pids:
            os.waitpid(pid, 0)


def _take_memory(targets: Targets) -> None:
    most = targets.get("max_memory_mb", 0)
    if not most:
        raise UntriedError("not part of this probe: sandbox.max_memory_mb")
    try:
        taken = [bytearray(_MIB) for _ in range(most + 16)]
        taken.clear()
    except MemoryError:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None


def _write_much(targets: Targets) -> None:
    most = targets.get("max_file_mb", 0)
    if not most:
        raise UntriedError("not part of this probe: sandbox.max_file_mb")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open(f"{targets['root']}/much", "wb") as file:
        os.ftruncate(file.fileno(), (most + 1) * _MIB)


def _stay_behind(targets: Targets) -> None:
    """Starts a process that does not end by itself and keeps the descriptor `leash` open. `self_test.py` then sees at
    the other end of the pipe when the process ends.
    """
    leash = targets["leash"]
    if os.fork() == 0:
        os.setsid()
        signal.alarm(_DAEMON_S)
        _append(f"{targets['root']}/daemon-{os.getpid()}")
        for others in ((0, leash), (leash + 1, _MOST_DESCRIPTORS)):  # so that nobody waits for its output
            os.closerange(*others)
        while True:
            signal.pause()
    raise UntriedError(SEEN_FROM_OUTSIDE)


_PROCESSES = "other processes' memory and environment"
_CALLS = "unusual sockets, terminal input, io_uring, key rings, user namespaces"
_PRIVILEGES = "privileges"

ROWS = (
    Row("write a new file outside", "write", _new_outside),
    Row("change a file outside", "write", _change_outside),
    Row("write through a link", "write", _write_through_link),
    Row("write through /proc/self/root", "write", _write_through_proc),
    Row("open a read-only descriptor again for writing", "write", _reopen_descriptor),
    Row("move a file out", "write", _rename_out),
    Row("move a file in from outside", "write", _rename_in),
    Row("make a hard link outside", "write", _link_out),
    Row("make a hard link to a file outside", "write", _link_in),
    Row("truncate a file outside", "write", _truncate),
    Row("truncate by opening for reading", "write", _open_truncating),
    Row("make a directory outside", "write", _make_directory),
    Row("make a link outside", "write", _make_link),
    Row("remove a file outside", "write", _remove),
    Row("change the mode of an own file outside", "attributes of files outside", _change_mode),
    Row("change the times of an own file outside", "attributes of files outside", _change_times),
    Row("change .git/config", "protected paths", _change_git_configuration),
    Row("replace .git/hooks", "protected paths", _replace_git_hooks),
    Row("replace .git", "protected paths", _replace_git_directory),
    Row("mount a file system", _PRIVILEGES, _mount),
    Row("make a device file", _PRIVILEGES, _make_device),
    Row("change the root directory", _PRIVILEGES, _change_root),
    Row("gain rights by a setuid program", _PRIVILEGES, _gain_privileges),
    Row("hold a capability", _PRIVILEGES, _hold_capabilities),
    Row("dump core", _PRIVILEGES, _dump_core),
    Row("read a secret", "read", _read_secrets),
    Row("read a secret through a link", "read", _read_secret_through_link),
    Row("read a secret through /proc/self/root", "read", _read_secret_through_proc),
    Row("read a secret that was made after the start", "read", _read_late_secret, _NOT_THERE),
    Row("read a secret by a hard link made inside", "write", _copy_secret),
    Row("read a secret by a hard link that is there", "", _read_hard_link),
    Row("read a disk", "read", _read_disk, _NOT_THERE),
    Row("read another process's environment", _PROCESSES, _read_environment, _NOT_THERE),
    Row("read another process's memory", _PROCESSES, _read_memory, _NOT_THERE),
    Row("read another process's memory by a call", "tracing", _read_by_call, _NOT_THERE),
    Row("trace another process", "tracing", _trace, _NOT_THERE),
    Row("follow another process's working directory", _PROCESSES, _follow_working_directory, _NOT_THERE),
    Row("read another process's command line", "processes hidden", _read_command_line, _NOT_THERE),
    Row("look at another process's limits", "processes hidden", _limit_another, _NOT_THERE),
    Row("attach another process's shared memory", "processes hidden", _shared_memory, _NOT_THERE),
    Row("signal another process", "signals", _signal, _NOT_THERE),
    Row("signal ralph", "signals", _signal_parent, _NOT_THERE),
    Row("write to the user's terminal", "user's terminals", _open_terminal, _NOT_THERE),
    Row("leave a process behind", "the whole tree ends", _stay_behind),
    Row("connect by TCP", "network", _connect, _UNREACHABLE),
    Row("connect by MPTCP", "network", _connect_by_mptcp, _UNREACHABLE),
    Row("connect by TCP fast open", "network", _connect_by_fast_open, _UNREACHABLE),
    Row("send a UDP datagram", "network", _send_datagram, _UNREACHABLE),
    Row("listen for TCP", "network", _listen, own_loopback=True),
    Row("open a vsock socket", _CALLS, _open_vsock),
    Row("open a raw socket", _PRIVILEGES, _open_raw),
    Row("open a packet socket", _PRIVILEGES, _open_packet),
    Row("connect to a socket in the file system", "sockets in the file system", _connect_to_path),
    Row("send to a socket in the file system from a pair", "sockets in the file system", _send_to_path),
    Row("connect to an abstract socket", "abstract sockets", _connect_to_abstract),
    Row("make a user namespace by unshare", _CALLS, _new_user_namespace),
    Row("make a user namespace by clone", _CALLS, _clone_user_namespace),
    Row("type into a terminal", _CALLS, _type_ahead),
    Row("use io_uring", _CALLS, _make_ring),
    Row("look at the session's key ring", _CALLS, _look_at_keys),
    Row("make a system call by its x32 number", _CALLS, _other_numbers),
    Row("start more processes than allowed", "limits", _storm, frozenset({errno.EAGAIN})),
    Row("take more memory than allowed", "limits", _take_memory, frozenset({errno.ENOMEM})),
    Row("write a larger file than allowed", "limits", _write_much, frozenset({errno.EFBIG})),
)


def tried(row: Row, targets: Targets) -> tuple[str, str]:
    """Tries one action of the table. Returns the verdict and a detail. The detail is the name of an error, the reason
    why the action was not tried, or empty.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(_WITHIN_S)
        os.write(writing, json.dumps(_verdict(row, targets)).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    if text:
        verdict, detail = json.loads(text)
        return verdict, detail
    return UNTRIED, f"it ended with {os.waitstatus_to_exitcode(status)}"


def _verdict(row: Row, targets: Targets) -> tuple[str, str]:
    try:
        row.attempt(targets)
    except UntriedError as error:
        return UNTRIED, str(error)
    except KeyError as error:
        return UNTRIED, f"there is no target {error}"
    except OSError as error:
        number = error.errno or 0
        name = errno.errorcode.get(number, str(number))
        return (DENIED, name) if number in _DENIALS or number in row.also else (UNTRIED, name)
    return ALLOWED, ""


def main(arguments: list[str]) -> int:
    targets = json.loads(arguments[0])
    wanted = targets.get("rows")
    for row in ROWS:
        if wanted is None or row.name in wanted:
            verdict, detail = tried(row, targets)
            line = {"row": row.name, "protection": row.protection, "verdict": verdict, "detail": detail}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
