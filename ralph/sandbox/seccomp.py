"""Makes the seccomp filter of a command, which decides which system calls fail, and with which errno. No I/O happens here.

A filter sees the arguments of a system call as numbers, and not the memory to which a pointer leads: it can judge the family
of a socket, but not the address to which the socket connects. Calls that it does not name are allowed. Landlock controls the
access to files and signals.
"""

from __future__ import annotations

import errno
import struct
from functools import cache
from typing import Literal

from msgspec import Struct

# offsetof(struct seccomp_data, ...)
NUMBER = 0
ARCHITECTURE = 4
_ARGUMENTS = 16

ALLOW = 0x7FFF_0000
KILL_PROCESS = 0x8000_0000
_ERRNO = 0x0005_0000
# SECCOMP_RET_USER_NOTIF; the kernel ignores the lower half. `gpu_sockets.py` reads it, where it answers these calls.
MAKE_SEQUENCED, LISTEN = 0x7FC0_0001, 0x7FC0_0002

# BPF_LD | BPF_W | BPF_ABS, BPF_ALU | BPF_AND | BPF_K, BPF_RET | BPF_K; BPF_JMP | BPF_K with JEQ, JSET and JGE.
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_ANY_BIT, _IF_AT_LEAST = 0x15, 0x45, 0x35
_INSTRUCTION = struct.Struct("<HBBI")
# The distance of a conditional jump is stored in one byte.
_FARTHEST = 255


def refuse(number: int) -> int:
    """The return value of a filter that makes a system call fail with the errno `number`."""
    return _ERRNO | number


def argument(index: int) -> int:
    """The offset of the lower 32 bits of an argument in `struct seccomp_data`, on a little-endian machine."""
    return _ARGUMENTS + 8 * index


class Assembler:
    """Collects the instructions of a filter. A jump can only lead forward, to a label that is set later."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, int, str | None]] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        """Gives the next instruction a name. Raises ValueError if the name is already used."""
        if name in self._labels:
            raise ValueError(f"the label {name!r} is there twice")
        self._labels[name] = len(self._lines)

    def load(self, place: int) -> None:
        self._lines.append((_LOAD, place, None))

    def mask(self, bits: int) -> None:
        """Adds an instruction that keeps only `bits` of the loaded value, and sets all other bits to 0."""
        self._lines.append((_AND, bits, None))

    def go_if_equal(self, value: int, label: str) -> None:
        self._lines.append((_IF_EQUAL, value, label))

    def go_if_any_bit(self, bits: int, label: str) -> None:
        self._lines.append((_IF_ANY_BIT, bits, label))

    def go_if_at_least(self, value: int, label: str) -> None:
        self._lines.append((_IF_AT_LEAST, value, label))

    def answer(self, value: int) -> None:
        self._lines.append((_RETURN, value, None))

    def packed(self) -> bytes:
        """The instructions for the kernel. Raises ValueError for a jump whose label is missing, too far away, or before the jump."""
        packed = b""
        for at, (code, value, label) in enumerate(self._lines):
            distance = 0 if label is None else self._labels.get(label, -1) - at - 1
            if not 0 <= distance <= _FARTHEST:
                raise ValueError(f"no jump from line {at} to the label {label!r}")
            packed += _INSTRUCTION.pack(code, distance, 0, value)
        return packed


Internet = Literal["all", "own", "none"]
"""The internet sockets that a command may open: all except raw ones, TCP and UDP in a network of its own, or none."""


class Machine(Struct, frozen=True):
    """The system calls of an architecture: AUDIT_ARCH, each number by its name, and the first number of a second ABI (x32)."""

    audit: int
    numbers: dict[str, int]
    first_foreign: int | None = None


# arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h: the numbers on x86_64 and aarch64. Calls since
# Linux 5.1 have the same on every architecture.
_NUMBERS = """
socket 41 198  socketpair 53 199  listen 50 201  sendto 44 206  sendmsg 46 211  sendmmsg 307 269  ioctl 16 29  prlimit64 302 261
clone 56 220  unshare 272 97  setns 308 268  ptrace 101 117  kcmp 312 272  process_vm_readv 310 270  process_vm_writev 311 271
add_key 248 217  request_key 249 218  keyctl 250 219  clone3 435 435  pidfd_getfd 438 438
io_uring_setup 425 425  io_uring_enter 426 426  io_uring_register 427 427
chmod 90 -  fchmod 91 52  fchmodat 268 53  fchmodat2 452 452  mknod 133 -  mknodat 259 33
creat 85 -  open 2 -  openat 257 56  openat2 437 437  setsockopt 54 208
"""
_CALLS = tuple(zip(*[iter(_NUMBERS.split())] * 3, strict=True))
MACHINES = {
    "x86_64": Machine(0xC000_003E, {name: int(number) for name, number, _ in _CALLS}, 0x4000_0000),
    "aarch64": Machine(0xC000_00B7, {name: int(number) for name, _, number in _CALLS if number != "-"}),
}

# asm-generic/ioctls.h: both can put characters into a terminal's input.
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# linux/sched.h
_CLONE_NEWUSER = 0x1000_0000
_MSG_FASTOPEN = 0x2000_0000
# linux/stat.h and asm-generic/fcntl.h: a file with this bit runs as its owner, whoever starts it. The mode counts with the other two.
_SET_USER_ID = 0o4000
_MAKES_FILE = 0o100 | 0o20000000
# The calls that take a mode, by its argument, and those of which the argument before it has the flags.
_TAKE_MODE = {"chmod": 1, "fchmod": 1, "mknod": 1, "creat": 1, "fchmodat": 2, "fchmodat2": 2, "mknodat": 2}
_TAKE_FLAGS = {"open": 2, "openat": 3}
# linux/net.h: these bits hold a socket's type; the others are the flags SOCK_CLOEXEC and SOCK_NONBLOCK.
_TYPE_BITS = 0xF
_STREAM, _DATAGRAM, _SEQUENCED = 1, 2, 5
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0
_TCP = 6
# asm-generic/socket.h: with this option, the sockets of one user share a port, and the connections to it.
_OF_SOCKETS, _REUSE_PORT = 1, 15

_AS_IF_DONE = refuse(0)
_NO_RIGHT = refuse(errno.EPERM)
_NO_ACCESS = refuse(errno.EACCES)
_UNKNOWN_CALL = refuse(errno.ENOSYS)
_UNKNOWN_FAMILY = refuse(errno.EAFNOSUPPORT)
_UNSUPPORTED = refuse(errno.EOPNOTSUPP)

# These calls look into other processes. Landlock limits them to the command's own processes; where the kernel has no
# Landlock, the filter refuses them.
_LOOKS_INTO_PROCESSES = ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp")
_JUDGED = tuple("clone unshare ioctl prlimit64 sendto sendmsg sendmmsg socketpair socket".split())
# A key ring can hold keys of the user's session. It has no path, so Landlock does not protect it.
_KEY_RINGS = ("add_key", "request_key", "keyctl")


@cache
def make_filter(
    machine: str,
    *,
    internet: Internet,
    unix_sockets: bool,
    sequenced: bool = False,
    without_landlock: bool = False,
) -> bytes | None:
    """The packed filter for an architecture (`platform.machine()`), or None if ralph has no table for it.

    `unix_sockets` allows Unix sockets that can connect to a path. Without it, connected pairs are allowed, except datagram
    sockets, and `sequenced` allows sockets of the type SOCK_SEQPACKET that can be bound and cannot connect, because another
    process makes them (`gpu_sockets.py`). `without_landlock` also refuses calls that look into other processes.
    """
    table = MACHINES.get(machine)
    if table is None:
        return None
    numbers = table.numbers
    lines = Assembler()
    _guard_architecture(lines, table)

    refused = dict.fromkeys(("setns", *_KEY_RINGS), _NO_RIGHT)
    # After ENOSYS, programs use older calls, whose arguments the filter can see, and plain reads and writes.
    refused |= dict.fromkeys(
        ("clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register"), _UNKNOWN_CALL
    )
    if without_landlock:
        refused |= dict.fromkeys(_LOOKS_INTO_PROCESSES, _NO_RIGHT)
    for name in refused:
        lines.go_if_equal(numbers[name], f"refused {refused[name]}")
    makes_sequenced = sequenced and not unix_sockets
    more = (*["setsockopt"][: internet == "all"], *["listen"][:makes_sequenced])
    for name in (*_JUDGED, *more):
        lines.go_if_equal(numbers[name], name)
    modes = {name: f"mode {at}" for name, at in _TAKE_MODE.items()}
    modes |= {name: f"flags before mode {at}" for name, at in _TAKE_FLAGS.items()}
    for name in filter(numbers.__contains__, modes):
        lines.go_if_equal(numbers[name], modes[name])
    lines.answer(ALLOW)
    for answer in dict.fromkeys(refused.values()):
        lines.label(f"refused {answer}")
        lines.answer(answer)

    for name in ("clone", "unshare"):
        _judge_bits(lines, name, 0, _CLONE_NEWUSER, _NO_RIGHT)
    _judge_values(lines, "ioctl", 1, (_TIOCSTI, _TIOCLINUX), _NO_RIGHT)
    _judge_limits(lines)
    # After EOPNOTSUPP, a sender calls `connect` first, which Landlock can deny.
    for name, flags in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        _judge_bits(lines, name, flags, _MSG_FASTOPEN, _UNSUPPORTED)
    _judge_pairs(lines, unix_sockets=unix_sockets)
    if makes_sequenced:
        lines.label("listen")
        lines.answer(LISTEN)
    _judge_sockets(lines, internet, unix_sockets=unix_sockets, makes_sequenced=makes_sequenced)
    _judge_modes(lines)
    if internet == "all":
        _judge_shared_ports(lines)
    return lines.packed()


def _guard_architecture(lines: Assembler, table: Machine) -> None:
    lines.load(ARCHITECTURE)
    lines.go_if_equal(table.audit, "own architecture")
    # The process is killed, because on another architecture the same numbers mean other system calls.
    lines.answer(KILL_PROCESS)
    lines.label("own architecture")
    lines.load(NUMBER)
    if table.first_foreign is not None:
        lines.go_if_at_least(table.first_foreign, "foreign number")
        lines.go_if_at_least(0, "own number")
        lines.label("foreign number")
        lines.answer(_UNKNOWN_CALL)
        lines.label("own number")


def _judge_bits(lines: Assembler, call: str, index: int, bits: int, answer: int) -> None:
    lines.label(call)
    lines.load(argument(index))
    lines.go_if_any_bit(bits, f"{call} refused")
    lines.answer(ALLOW)
    lines.label(f"{call} refused")
    lines.answer(answer)


def _judge_values(lines: Assembler, call: str, index: int, values: tuple[int, ...], answer: int) -> None:
    lines.label(call)
    lines.load(argument(index))
    for value in values:
        lines.go_if_equal(value, f"{call} refused")
    lines.answer(ALLOW)
    lines.label(f"{call} refused")
    lines.answer(answer)


def _judge_shared_ports(lines: Assembler) -> None:
    """Leaves SO_REUSEPORT undone: on the machine's own network a command would get connections that are meant for a server of the
    user's, such as ralph's to a gateway. A server that asks for it and is alone at its port works all the same.
    """
    lines.label("setsockopt")
    lines.load(argument(1))
    lines.go_if_equal(_OF_SOCKETS, "option of sockets")
    lines.answer(ALLOW)
    _judge_values(lines, "option of sockets", 2, (_REUSE_PORT,), _AS_IF_DONE)


def _judge_modes(lines: Assembler) -> None:
    """Refuses set-user-ID files. In the command itself they would give no rights, but anybody who starts one later has the user's."""
    for at in _TAKE_FLAGS.values():
        lines.label(f"flags before mode {at}")
        lines.load(argument(at - 1))
        lines.go_if_any_bit(_MAKES_FILE, f"mode {at}")
        lines.answer(ALLOW)
    for at in (1, 2, 3):
        _judge_bits(lines, f"mode {at}", at, _SET_USER_ID, _NO_RIGHT)


def _judge_limits(lines: Assembler) -> None:
    """Refuses new limits for a process that the call names: one on processor time kills it, and Landlock does not judge that."""
    lines.label("prlimit64")
    lines.load(argument(0))
    lines.go_if_equal(0, "limits allowed")
    for half in (argument(2), argument(2) + 4):  # a pointer
        lines.load(half)
        lines.go_if_any_bit(0xFFFF_FFFF, "limits refused")
    lines.label("limits allowed")
    lines.answer(ALLOW)
    lines.label("limits refused")
    lines.answer(_NO_RIGHT)


def _judge_pairs(lines: Assembler, *, unix_sockets: bool) -> None:
    """Allows connected pairs. Datagram sockets can send to any path all the same, and are allowed only where Unix sockets are."""
    lines.label("socketpair")
    if unix_sockets:
        lines.answer(ALLOW)
        return
    lines.load(argument(1))
    lines.mask(_TYPE_BITS)
    for kind in (_STREAM, _SEQUENCED):
        lines.go_if_equal(kind, "pair allowed")
    lines.answer(_NO_ACCESS)
    lines.label("pair allowed")
    lines.answer(ALLOW)


def _judge_sockets(
    lines: Assembler, internet: Internet, *, unix_sockets: bool, makes_sequenced: bool
) -> None:
    lines.label("socket")
    lines.load(argument(0))
    for family in (_INET, _INET6):
        lines.go_if_equal(family, "internet socket")
    lines.go_if_equal(_NETLINK, "netlink socket")
    lines.go_if_equal(_UNIX, "unix socket")
    lines.answer(_UNKNOWN_FAMILY)

    lines.label("unix socket")
    if makes_sequenced:
        lines.load(argument(1))
        lines.mask(_TYPE_BITS)
        lines.go_if_equal(_SEQUENCED, "sequenced")
    lines.answer(ALLOW if unix_sockets else _NO_ACCESS)
    if makes_sequenced:
        lines.label("sequenced")
        lines.answer(MAKE_SEQUENCED)

    # The C library lists this machine's addresses by such a socket.
    lines.label("netlink socket")
    lines.load(argument(2))
    lines.go_if_equal(_NETLINK_ROUTE, "socket allowed")
    lines.answer(_UNKNOWN_FAMILY)

    lines.label("internet socket")
    if internet == "none":
        lines.answer(_NO_ACCESS)
    lines.load(argument(1))
    lines.mask(_TYPE_BITS)
    lines.go_if_equal(_STREAM, "stream")
    lines.go_if_equal(_DATAGRAM, "socket allowed")
    lines.answer(_NO_ACCESS)
    lines.label("stream")
    if internet == "all":
        lines.answer(ALLOW)
    # MPTCP, SMC and SCTP are refused, because Landlock does not control them.
    lines.load(argument(2))
    for protocol in (0, _TCP):
        lines.go_if_equal(protocol, "socket allowed")
    lines.answer(_NO_ACCESS)
    lines.label("socket allowed")
    lines.answer(ALLOW)
