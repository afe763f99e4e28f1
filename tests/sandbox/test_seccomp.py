"""Tests the filter with a BPF interpreter for both architectures, and with this kernel for its own."""

from __future__ import annotations

import errno
import platform
import re
import socket
import struct
from pathlib import Path

import pytest

from ralph.sandbox.seccomp import (
    ALLOW,
    KILL_PROCESS,
    LISTEN,
    MACHINES,
    MAKE_SEQUENCED,
    Assembler,
    Internet,
    make_filter,
    refuse,
)
from tests.rows import every_row
from tests.sandbox.restricted import run_restricted

UNIX, INET, INET6, NETLINK, PACKET, VSOCK, ALG = 1, 2, 10, 16, 17, 40, 38
STREAM, DATAGRAM, RAW, SEQUENCED = 1, 2, 3, 5
CLOSE_ON_EXEC = 0o2000000
TCP, UDP, MPTCP = 6, 17, 262
NEW_USER = 0x10000000
FAST_OPEN = 0x20000000


def answered(program: bytes, audit: int, number: int, *arguments: int) -> int:
    """Runs a filter as the kernel does, and returns its answer."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, audit, 0, *padded)
    instructions = list(struct.iter_unpack("<HBBI", program))
    at, held = 0, 0
    while True:
        code, yes, no, value = instructions[at]
        at += 1
        match code:
            case 0x20:
                (held,) = struct.unpack_from("<I", data, value)
            case 0x54:
                held &= value
            case 0x06:
                return int(value)
            case 0x15 | 0x45 | 0x35:
                holds = {0x15: held == value, 0x45: bool(held & value), 0x35: held >= value}[code]
                at += yes if holds else no


def made(machine: str, internet: Internet = "all", *, unix: bool = False, bare: bool = False) -> bytes:
    program = make_filter(machine, internet=internet, unix_sockets=unix, without_landlock=bare)
    assert program is not None
    return program


NAMES = {
    ALLOW: "allowed",
    KILL_PROCESS: "killed",
    refuse(0): "done nothing",
    **{refuse(n): errno.errorcode[n] for n in (errno.EPERM, errno.EACCES, errno.ENOSYS)},
    refuse(errno.EAFNOSUPPORT): "EAFNOSUPPORT",
    refuse(errno.EOPNOTSUPP): "EOPNOTSUPP",
}


def verdict(machine: str, program: bytes, call: str, *arguments: int) -> str:
    table = MACHINES[machine]
    return NAMES[answered(program, table.audit, table.numbers[call], *arguments)]


ROWS: list[tuple[str, tuple[int, ...], str, str, str]] = [
    # call, arguments, with internet "all", "own", "none"
    ("socket", (INET, STREAM, 0), "allowed", "allowed", "EACCES"),
    ("socket", (INET6, STREAM | CLOSE_ON_EXEC, TCP), "allowed", "allowed", "EACCES"),
    ("socket", (INET, STREAM, MPTCP), "allowed", "EACCES", "EACCES"),
    ("socket", (INET, DATAGRAM, 0), "allowed", "allowed", "EACCES"),
    ("socket", (INET6, DATAGRAM | CLOSE_ON_EXEC, UDP), "allowed", "allowed", "EACCES"),
    ("socket", (INET, RAW, 1), "EACCES", "EACCES", "EACCES"),
    ("socket", (INET, 10, 0), "EACCES", "EACCES", "EACCES"),
    ("socket", (PACKET, RAW, 0), *("EAFNOSUPPORT",) * 3),
    ("socket", (VSOCK, STREAM, 0), *("EAFNOSUPPORT",) * 3),
    ("socket", (ALG, SEQUENCED, 0), *("EAFNOSUPPORT",) * 3),
    ("socket", (NETLINK, RAW, 0), *("allowed",) * 3),
    ("socket", (NETLINK, RAW, 9), *("EAFNOSUPPORT",) * 3),
    ("socket", (UNIX, STREAM, 0), *("EACCES",) * 3),
    ("socketpair", (UNIX, STREAM | CLOSE_ON_EXEC, 0), *("allowed",) * 3),
    ("socketpair", (UNIX, SEQUENCED, 0), *("allowed",) * 3),
    ("socketpair", (UNIX, DATAGRAM, 0), *("EACCES",) * 3),
    ("socketpair", (UNIX, RAW, 0), *("EACCES",) * 3),
    ("sendto", (3, 0, 0, FAST_OPEN | 0x40), *("EOPNOTSUPP",) * 3),
    ("sendto", (3, 0, 0, 0x4000), *("allowed",) * 3),
    ("sendmsg", (3, 0, FAST_OPEN), *("EOPNOTSUPP",) * 3),
    ("sendmmsg", (3, 0, 0, FAST_OPEN), *("EOPNOTSUPP",) * 3),
    ("ioctl", (0, 0x5412), *("EPERM",) * 3),
    # The kernel reads only the lower 32 bits of the command.
    ("ioctl", (0, 0x7_0000_5412), *("EPERM",) * 3),
    ("ioctl", (0, 0x541C), *("EPERM",) * 3),
    ("ioctl", (0, 0x5413), *("allowed",) * 3),
    # The process itself; only a look at the limits of another one; new ones for it, by each half of the pointer.
    ("prlimit64", (0, 7, 0x7FFF_0000_1000, 0), *("allowed",) * 3),
    ("prlimit64", (0x7_0000_0000, 7, 0x1000, 0), *("allowed",) * 3),
    ("prlimit64", (4711, 7, 0, 0x1000), *("allowed",) * 3),
    ("prlimit64", (4711, 0, 0x1000, 0), *("EPERM",) * 3),
    ("prlimit64", (4711, 0, 0x1_0000_0000, 0), *("EPERM",) * 3),
    ("clone", (NEW_USER | 17,), *("EPERM",) * 3),
    ("clone", (0x01200011,), *("allowed",) * 3),
    ("unshare", (NEW_USER | 0x20000,), *("EPERM",) * 3),
    ("unshare", (0x400,), *("allowed",) * 3),
    ("setns", (3, 0), *("EPERM",) * 3),
    ("clone3", (0, 88), *("ENOSYS",) * 3),
    # SOL_SOCKET with SO_REUSEPORT, with SO_REUSEADDR; IPPROTO_TCP with the same number.
    ("setsockopt", (3, 1, 15), "done nothing", "allowed", "allowed"),
    ("setsockopt", (3, 1, 2), *("allowed",) * 3),
    ("setsockopt", (3, 6, 15), *("allowed",) * 3),
    ("openat2", (3, 0, 0, 24), *("ENOSYS",) * 3),
    # Set-user-ID files, made at once or later; flags without O_CREAT leave the mode unread.
    *[(name, (3, 0o4755), *("EPERM",) * 3) for name in ("chmod", "fchmod", "mknod", "creat")],
    *[(name, (3, 0, 0o104755), *("EPERM",) * 3) for name in ("fchmodat", "fchmodat2", "mknodat")],
    *[("openat", (3, 0, flags, 0o6755), *("EPERM",) * 3) for flags in (0o101, 0o20000002)],
    ("open", (0, 0o102, 0o4755), *("EPERM",) * 3),
    ("openat", (3, 0, 0o1, 0o4755), *("allowed",) * 3),
    ("open", (0, 0, 0xFFFF), *("allowed",) * 3),
    *[("fchmodat", (3, 0, mode), *("allowed",) * 3) for mode in (0o755, 0o2775, 0o1777)],
    ("openat", (3, 0, 0o101, 0o666), *("allowed",) * 3),
    *[(f"io_uring_{rest}", (0,), *("ENOSYS",) * 3) for rest in ("setup", "enter", "register")],
    *[(name, (0,), *("EPERM",) * 3) for name in ("keyctl", "add_key", "request_key")],
    ("ptrace", (0,), *("allowed",) * 3),
]


@pytest.mark.parametrize("machine", sorted(MACHINES))
@every_row("call, arguments, all_, own, none", ROWS)
def test_each_call_is_answered_by_the_table(machine, call, arguments, all_, own, none) -> None:
    if call not in MACHINES[machine].numbers:
        assert call in {"chmod", "mknod", "creat", "open"}
        return
    wanted: dict[Internet, str] = {"all": all_, "own": own, "none": none}
    for internet, expected in wanted.items():
        assert verdict(machine, made(machine, internet), call, *arguments) == expected, internet


@every_row("machine", sorted(MACHINES))
def test_the_rest_of_the_arguments_rules(machine) -> None:
    for kind in (STREAM, DATAGRAM, SEQUENCED):
        for call in ("socket", "socketpair"):
            assert verdict(machine, made(machine, unix=True), call, UNIX, kind, 0) == "allowed"
    for name in ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"):
        assert verdict(machine, made(machine, bare=True), name) == "EPERM"
        assert verdict(machine, made(machine), name) == "allowed"
    own = MACHINES[machine]
    read = {"x86_64": 0, "aarch64": 63}[machine]
    assert NAMES[answered(made(machine), own.audit, read)] == "allowed"
    for other in MACHINES.values():
        if other is not own:
            assert NAMES[answered(made(machine), other.audit, read)] == "killed"


def test_numbers_of_x32_are_unknown_and_those_of_i386_kill() -> None:
    program = made("x86_64")
    own = MACHINES["x86_64"].audit
    assert NAMES[answered(program, own, 0x4000_0000 | 41, UNIX)] == "ENOSYS"
    assert NAMES[answered(program, own, 0xFFFF_FFFF)] == "ENOSYS"
    assert NAMES[answered(program, 0x4000_0003, 102)] == "killed"


# The kernel's own tables, as the package linux-libc-dev installs them. aarch64 has the generic one.
HEADERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"),),
}


@every_row("machine", sorted(MACHINES))
def test_the_numbers_are_those_of_the_kernels_headers(machine) -> None:
    header = next((path for path in HEADERS[machine] if path.exists()), None)
    if header is None:
        pytest.skip("the kernel's headers are not installed")
    numbers = dict(re.findall(r"^#define __NR_(\w+) (\d+)$", header.read_text(), re.MULTILINE))
    table = MACHINES[machine].numbers
    known = {name: int(numbers[name]) for name in table if name in numbers}
    assert known == {name: table[name] for name in known}
    assert len(known) >= len(table) - 3, "headers of an older kernel lack pidfd_getfd, openat2 and fchmodat2"


def test_an_architecture_without_a_table_has_no_filter() -> None:
    assert make_filter("riscv64", internet="all", unix_sockets=False) is None


def test_a_jump_that_cannot_be_made_is_an_error() -> None:
    lines = Assembler()
    lines.go_if_equal(1, "nowhere")
    with pytest.raises(ValueError, match="nowhere"):
        lines.packed()
    lines.label("twice")
    with pytest.raises(ValueError, match="twice"):
        lines.label("twice")


needs_own_table = pytest.mark.skipif(
    platform.machine() not in MACHINES, reason="no filter for this architecture"
)


@needs_own_table
@pytest.mark.skipif(platform.machine() != "x86_64", reason="no filter for this architecture")
def test_a_call_of_a_foreign_architecture_kills_its_process() -> None:
    # mov eax, 20 (getpid of i386); int 0x80; ret
    code = (
        "import ctypes, mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(bytes.fromhex('b814000000cd80c3'))\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()\n"
        "print('lives')"
    )
    assert "lives" in run_restricted(code).stdout
    ran = run_restricted(code, program=made("x86_64"))
    assert "lives" not in ran.stdout
    assert ran.returncode == -31 % 256  # SIGSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_with_gpus_a_process_is_asked_for_sequenced_sockets_alone(machine) -> None:
    def said(program: bytes | None, call: str, *arguments: int) -> int:
        assert program is not None
        return answered(program, MACHINES[machine].audit, MACHINES[machine].numbers[call], *arguments)

    asking = make_filter(machine, internet="all", unix_sockets=False, sequenced=True)
    assert said(asking, "socket", UNIX, SEQUENCED | CLOSE_ON_EXEC) == MAKE_SEQUENCED
    assert said(asking, "listen", 3, 16) == LISTEN
    assert said(asking, "socket", INET, SEQUENCED) == refuse(errno.EACCES)
    assert said(asking, "socketpair", UNIX, SEQUENCED) == ALLOW
    for kind in (STREAM, DATAGRAM, RAW):
        assert said(asking, "socket", UNIX, kind) == refuse(errno.EACCES)
    plain = make_filter(machine, internet="all", unix_sockets=True, sequenced=True)
    assert said(plain, "socket", UNIX, SEQUENCED) == said(plain, "listen", 3, 16) == ALLOW


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="no filter for this architecture")
def test_no_command_makes_a_program_that_runs_as_the_user_or_shares_a_port_with_the_users_server(
    tmp_path,
) -> None:
    """Each way of Python's to a set-user-ID file, and a second server at a port whose first one allows that."""
    code = (
        "import os, socket, sys\n"
        "from pathlib import Path\n"
        "place, port = Path(sys.argv[1]), int(sys.argv[2])\n"
        "plain = place / 'plain'\n"
        "plain.touch()\n"
        "for make in (lambda: os.open(place / 'new', os.O_CREAT | os.O_WRONLY, 0o4755), lambda: plain.chmod(0o4755),\n"
        "             lambda: os.fchmod(os.open(plain, os.O_RDONLY), 0o4755), lambda: os.mknod(place / 'node', 0o104755)):\n"
        "    try: make()\n"
        "    except PermissionError: print('refused')\n"
        "plain.chmod(0o2755)\n"
        "server = socket.socket()\n"
        "server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
        "try: server.bind(('127.0.0.1', port))\n"
        "except OSError as error: print(error.strerror)\n"
        "server.bind(('127.0.0.1', 0))\n"
        "server.listen()\n"
    )
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        ran = run_restricted(code, str(tmp_path), port, program=made(platform.machine()))
    assert ran.stdout.splitlines() == ["refused"] * 4 + ["Address already in use"], ran.stderr
    assert [oct(path.stat().st_mode)[-4:] for path in tmp_path.iterdir()] == ["2755"]
