"""Tries actions that a sandbox must deny to a command, and prints which actions were denied.

The script runs inside the sandbox, in the root among its targets, and needs only the standard library (`python -I -S probe.py
TARGETS`). `self_test.py` makes the targets, and compares the verdicts with what the level promises. Each row of the table is
one action, which is tried in a process with a time limit and gets one JSON line. It changes only its targets, sends other
processes only signal 0, and starts a limited number of processes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import resource
import signal
import socket
import sys
import time
from typing import Any, NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ALLOWED, DENIED, UNTRIED = "allowed", "denied", "untried"
SEEN_FROM_OUTSIDE = "seen from outside"
"""The detail of a row whose verdict only `self_test.py` can find, because it is outside the sandbox."""

_WITHIN_S = 10
_DAEMON_S = 20
_MOST_DESCRIPTORS = 256
# GPUs, and devices that most machines have. A box of the probe is given none.
_DEVICES = ("nvidiactl", "kfd", "dri/renderD128", "kvm", "fuse", "loop-control", "hwrng", "net/tun")
# linux/sched.h, linux/shm.h, linux/keyctl.h: CLONE_NEWUSER, SHM_RDONLY, KEYCTL_GET_KEYRING_ID
_NEW_USER, _SHM_RDONLY, _GET_KEYRING_ID = 0x1000_0000, 0o10000, 0

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

_FILES = resource.RLIMIT_NOFILE
Targets = dict[str, Any]


class Row(NamedTuple):
    name: str
    protection: str
    """The name of the protection in `box_plan.py` that denies the row's action, or empty if no protection does."""
    attempt: Callable[[Targets], object]
    also: frozenset[int]
    """Errors that show a denial in this row, beyond those that show it in every row."""


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


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


def _ctypes() -> Any:
    import ctypes  # noqa: PLC0415 - in the row's own process, because a Python may have none

    return ctypes


def _call_number(number: int, *arguments: int | bytes) -> int:
    ctypes = _ctypes()
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    passed = [one if isinstance(one, bytes) else ctypes.c_long(one) for one in arguments]
    result = int(syscall(ctypes.c_long(number), *passed))
    if result < 0:
        raise _error(ctypes.get_errno())
    return result


def _append(path: str) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(b"x")


def _read(path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        file.read(1)


def _write_through_link(_targets: Targets) -> None:
    os.symlink("../outside/file", "link")
    _append("link")


def _reopen_descriptor(_targets: Targets) -> None:
    with open("../outside/file", "rb") as file:
        _append(f"/proc/self/fd/{file.fileno()}")


def _rename_out(_targets: Targets) -> None:
    _append("leaving")
    os.rename("leaving", "../outside/arrived")


def _link_out(_targets: Targets) -> None:
    _append("linked")
    os.link("linked", "../outside/linked")


def _replace_git_directory(_targets: Targets) -> None:
    os.rename(".git", "old-git")
    os.rename("old-git", ".git")


def _mount(targets: Targets) -> None:
    place = os.fsencode(targets["root"]) + b"\0"
    _call("mount", b"none\0", place, b"tmpfs\0", 0, b"\0")
    _call("umount2", place, 0)


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
        raise _error(errno.EACCES)


def _read_secret_through_link(targets: Targets) -> None:
    link = "innocent"
    os.symlink(targets["secrets"][0], link)
    _read(link)


def _copy_secret(targets: Targets) -> None:
    os.link(targets["secrets"][0], "copy")
    _read("copy")


def _read_disk(_targets: Targets) -> None:
    names = ("sd", "vd", "nvme", "mem", "dm-")
    disks = [entry.path for entry in os.scandir("/dev") if entry.name.startswith(names)]
    if not disks:
        raise _error(errno.ENOENT)
    _read(next((path for path in disks if os.access(path, os.R_OK)), disks[0]))


def _use_device(_targets: Targets) -> None:
    paths = (f"/dev/{name}" for name in _DEVICES)
    device = next((path for path in paths if os.access(path, os.R_OK | os.W_OK)), f"/dev/{_DEVICES[0]}")
    os.close(os.open(device, os.O_RDWR))


def _trace(targets: Targets) -> None:
    seize, detach = 0x4206, 17
    _call("ptrace", seize, targets["pid"], 0, 0)
    _call("ptrace", 0x4207, targets["pid"], 0, 0)  # PTRACE_INTERRUPT: PTRACE_DETACH needs a stopped process
    os.waitpid(targets["pid"], 0x4000_0000)  # __WALL
    _call("ptrace", detach, targets["pid"], 0, 0)


def _read_by_call(targets: Targets) -> None:
    ctypes = _ctypes()
    # The other process has nothing mapped at this address, so EFAULT means that reading was allowed.
    local = ctypes.create_string_buffer(8)
    ours = ctypes.addressof(local).to_bytes(8, sys.byteorder) + (8).to_bytes(8, sys.byteorder)
    theirs = (16).to_bytes(8, sys.byteorder) + (8).to_bytes(8, sys.byteorder)
    try:
        _call("process_vm_readv", targets["pid"], ours, 1, theirs, 1, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise


def _tcp(protocol: int = 0) -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)


def _send_datagrams(port: int) -> None:
    """Raises OSError if there is no such socket in this network: the second call says so of the first datagram."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("127.0.0.1", port))
        one.send(b"x")
        one.send(b"x")


def _connect(path: str) -> None:
    socket.socket(socket.AF_UNIX).connect(path)


def _send(address: str) -> None:
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", address)


def _send_from_pair(address: str) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.sendto(b"x", address)


def _connect_by_hard_link(targets: Targets) -> None:
    os.link(targets["socket"], "linked-socket")
    _connect("linked-socket")


def _connect_by_link(targets: Targets) -> None:
    os.symlink(targets["socket"], "way-to-socket")
    _connect("way-to-socket")


def _connect_to_late(targets: Targets) -> None:
    """Asks a program outside to bind a socket now, when all mounts of this process exist."""
    _append(targets["wish_for_socket"])
    until_s = time.monotonic() + _WITHIN_S / 2
    while not os.path.exists(targets["late_socket_is_bound"]):
        if time.monotonic() > until_s:
            raise UntriedError("no program outside has bound the socket")
        time.sleep(0.01)
    _connect(targets["late_socket"])


def _clone_user_namespace(_targets: Targets) -> None:
    if _call("clone", _NEW_USER | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


def _type_ahead(_targets: Targets) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the kernel sends it when the terminal closes
    master, terminal = os.openpty()
    os.setsid()
    fcntl.ioctl(terminal, 0x540E, 0)  # TIOCSCTTY: TIOCSTI needs the controlling terminal
    fcntl.ioctl(terminal, 0x5412, b"x")
    os.close(master)


def _make_ring(_targets: Targets) -> None:
    ctypes = _ctypes()
    parameters = ctypes.create_string_buffer(120)
    os.close(_call("io_uring_setup", 1, ctypes.addressof(parameters)))


def _other_numbers(_targets: Targets) -> None:
    if platform.machine() != "x86_64":
        raise UntriedError("there is no x32 here")
    _call_number(0x4000_0000 | 39)


def _gain_privileges(_targets: Targets) -> None:
    ctypes = _ctypes()
    if ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) == 1:  # PR_GET_NO_NEW_PRIVS
        raise _error(errno.EPERM)


def _hold_capabilities(_targets: Targets) -> None:
    with open("/proc/self/status") as status:
        sets = [
            line.split()[1] for line in status if line.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb"))
        ]
    if not any(int(one, 16) for one in sets):
        raise _error(errno.EPERM)


def _dump_core(_targets: Targets) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError:  # the module `resource` raises it for EPERM
        raise _error(errno.EPERM) from None


def _stay_behind(targets: Targets) -> None:
    """Starts a process that keeps the descriptor `leash` open: `self_test.py` sees at the other end of the pipe when it ends."""
    leash = targets["leash"]
    if os.fork() == 0:
        os.setsid()
        signal.alarm(_DAEMON_S)
        for others in ((0, leash), (leash + 1, _MOST_DESCRIPTORS)):  # so that nobody waits for its output
            os.closerange(*others)
        while True:
            signal.pause()
    raise UntriedError(SEEN_FROM_OUTSIDE)


_PROCESSES = "other processes' memory and environment"
_CALLS = "unusual sockets, terminal input, io_uring, key rings, user namespaces"
_PRIVILEGES = "privileges"

_ATTEMPTS: dict[str, dict[str, Callable[[Targets], object]]] = {
    "write": {
        "write a new file outside": lambda _t: _append("../outside/new"),
        "change a file outside": lambda _t: _append("../outside/file"),
        "write through a link": _write_through_link,
        "write through /proc/self/root": lambda t: _append(f"/proc/self/root{t['outside']}/file"),
        "open a read-only descriptor again for writing": _reopen_descriptor,
        "move a file out": _rename_out,
        "move a file in from outside": lambda _t: os.rename("../outside/taken", "taken"),
        "make a hard link outside": _link_out,
        "make a hard link to a file outside": lambda _t: os.link("../outside/file", "hard"),
        "truncate a file outside": lambda _t: os.truncate("../outside/file", 1),
        "truncate by opening for reading": lambda _t: os.close(
            os.open("../outside/file", os.O_RDONLY | os.O_TRUNC)
        ),
        "make a directory outside": lambda _t: os.mkdir("../outside/directory"),
        "make a link outside": lambda _t: os.symlink("/", "../outside/symlink"),
        "remove a file outside": lambda _t: os.unlink("../outside/removed"),
        "read a secret by a hard link made inside": _copy_secret,
    },
    "attributes of files outside": {
        "change the mode of an own file outside": lambda _t: os.chmod("../outside/file", 0o640),
        "change the times of an own file outside": lambda _t: os.utime("../outside/file", (1, 1)),
    },
    "protected paths": {
        "change .git/config": lambda _t: _append(".git/config"),
        "replace .git/hooks": lambda _t: os.rename(".git/hooks", ".git/old-hooks"),
        "replace .git": _replace_git_directory,
    },
    _PRIVILEGES: {
        "mount a file system": _mount,
        "make a device file": lambda _t: os.mknod("disk", 0o600 | 0o060000, os.makedev(7, 0)),
        "change the root directory": lambda t: os.chroot(t["root"]),
        "gain rights by a setuid program": _gain_privileges,
        "hold a capability": _hold_capabilities,
        "dump core": _dump_core,
        "open a raw socket": lambda _t: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close(),
        "open a packet socket": lambda _t: socket.socket(17, socket.SOCK_RAW, 0).close(),
    },
    "read": {
        "read a secret": _read_secrets,
        "read a secret through a link": _read_secret_through_link,
        "read a secret through /proc/self/root": lambda t: _read(f"/proc/self/root{t['secrets'][0]}"),
        "read a secret that was made after the start": lambda t: _read(t["late_secret"]),
    },
    "devices": {"read a disk": _read_disk, "use a device that is not given": _use_device},
    "": {"read a secret by a hard link that is there": lambda t: _read(t["hard_link"])},
    _PROCESSES: {
        "read another process's environment": lambda t: _read(f"/proc/{t['pid']}/environ"),
        "read another process's memory": lambda t: os.close(os.open(f"/proc/{t['pid']}/mem", os.O_RDONLY)),
        "follow another process's working directory": lambda t: os.readlink(f"/proc/{t['pid']}/cwd"),
    },
    "tracing": {"read another process's memory by a call": _read_by_call, "trace another process": _trace},
    "processes hidden": {
        "read another process's command line": lambda t: _read(f"/proc/{t['pid']}/cmdline"),
        "look at another process's limits": lambda t: resource.prlimit(t["pid"], _FILES),
        "attach another process's shared memory": lambda t: _call(
            "shmat", t["shared_memory"], 0, _SHM_RDONLY
        ),
    },
    "signals": {
        "signal another process": lambda t: os.kill(t["pid"], 0),
        "signal ralph": lambda t: os.kill(t["parent"], 0),
    },
    "user's terminals": {
        "write to the user's terminal": lambda t: _append(t["terminal"]),
        "read what the user types": lambda t: os.close(os.open(t["terminal"], os.O_NONBLOCK | os.O_NOCTTY)),
    },
    "the whole tree ends": {"leave a process behind": _stay_behind},
    "network": {
        "connect by TCP": lambda t: _tcp().connect(("127.0.0.1", t["port"])),
        "connect by MPTCP": lambda t: _tcp(262).connect(("127.0.0.1", t["port"])),
        "connect by TCP fast open": lambda t: _tcp().sendto(b"x", 0x2000_0000, ("127.0.0.1", t["port"])),
        "send a UDP datagram": lambda t: _send_datagrams(t["udp_port"]),
        "listen for TCP": lambda _t: _tcp().listen(),
    },
    _CALLS: {
        "open a vsock socket": lambda _t: socket.socket(40, socket.SOCK_STREAM).close(),
        "make a user namespace by unshare": lambda _t: _call("unshare", _NEW_USER),
        "make a user namespace by clone": _clone_user_namespace,
        "type into a terminal": _type_ahead,
        "use io_uring": _make_ring,
        "change another process's limits": lambda t: resource.prlimit(
            t["pid"], _FILES, resource.getrlimit(_FILES)
        ),
        "look at the session's key ring": lambda _t: _call("keyctl", _GET_KEYRING_ID, -3, 0),
        "make a system call by its x32 number": _other_numbers,
    },
    "sockets in the file system": {
        "connect to a socket in the file system": lambda t: _connect(t["socket"]),
        "connect to a socket through a link": _connect_by_link,
        "connect to a socket by a hard link made inside": _connect_by_hard_link,
        "connect to a socket through /proc/self/root": lambda t: _connect(f"/proc/self/root{t['socket']}"),
        "connect to a socket through another process's root": lambda t: _connect(
            f"/proc/{t['pid']}/root{t['socket']}"
        ),
        "connect to a socket that was bound by a relative name": lambda t: _connect(t["relative_socket"]),
        "connect to a socket of another network": lambda t: _connect(t["socket_elsewhere"]),
        "connect to a socket that was bound later": _connect_to_late,
        "send to a socket in the file system": lambda t: _send(t["datagram_socket"]),
        "send to a socket in the file system from a pair": lambda t: _send_from_pair(t["datagram_socket"]),
    },
    "abstract sockets": {
        "connect to an abstract socket": lambda t: _connect("\0" + t["abstract"]),
        "send to an abstract socket": lambda t: _send("\0" + t["abstract_datagram"]),
        "send to an abstract socket from a pair": lambda t: _send_from_pair("\0" + t["abstract_datagram"]),
    },
}
"""The attempts by the protection that denies them. No protection denies those of the last name, which is empty."""
# Errors that show a denial, beyond those that show it everywhere, by protection or by attempt.
_ALSO = {
    **dict.fromkeys(
        (_PROCESSES, "tracing", "processes hidden", "devices", "signals", "user's terminals"), _NOT_THERE
    ),
    "read a secret that was made after the start": _NOT_THERE,
    "network": _UNREACHABLE,
    # What is seen there is no socket of a listener, or is in another network.
    **dict.fromkeys(("sockets in the file system", "abstract sockets"), _NOT_THERE | {errno.ECONNREFUSED}),
}
OWN_LOOPBACK = "listen for TCP"
"""The row whose action is allowed in a network namespace, because it then reaches only the command's own loopback."""
ROWS = tuple(
    Row(name, protection, attempt, _ALSO.get(name) or _ALSO.get(protection) or frozenset())
    for protection, attempts in _ATTEMPTS.items()
    for name, attempt in attempts.items()
)


def tried(row: Row, targets: Targets) -> tuple[str, str]:
    """Tries one action of the table. Returns the verdict, and the name of an error, the reason why it was not tried, or ""."""
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
