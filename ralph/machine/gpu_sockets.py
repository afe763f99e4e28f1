"""Lets commands make sockets of the type SOCK_SEQPACKET that they cannot connect, where GPUs are given and Unix sockets are not:
NVIDIA's cuInit binds such a socket and listens on it, and fails without.

The filter asks a process, which makes each socket as an end of a pair: it can be bound, and the kernel refuses to connect it to
anything else (EISCONN). Its `listen` does nothing and succeeds. As for `restriction.py`, only small modules are imported.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket  # noqa: N812 - a class
    from collections.abc import Callable

    from ralph.machine.restriction import Calls

# linux/seccomp.h: the answers of a filter that asks a process (`sandbox/seccomp.py`), and those where none can be asked:
# EACCES, and the call itself. BPF_RET | BPF_K and the value.
_MAKE_SEQUENCED, _LISTEN = (bytes([6, 0, 0, 0, number, 0, 0xC0, 0x7F]) for number in (1, 2))
_NO_ACCESS, _ALLOW = bytes([6, 0, 0, 0, 13, 0, 5, 0]), bytes([6, 0, 0, 0, 0, 0, 0xFF, 0x7F])
# The numbers of seccomp(2) and of socket(2).
_ASKING_CALLS = {"x86_64": (317, 41), "aarch64": (277, 198)}
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
_NOTIF_RECV, _NOTIF_SEND, _NOTIF_ADDFD = 0xC050_2100, 0xC018_2101, 0x4018_2103
_NOTIF_CONTINUE = 1
# struct seccomp_notif: id, pid, flags; nr, arch, instruction pointer, six arguments.
_NOTIF, _NOTIF_RESPONSE, _NOTIF_FD = "=QIIiIQ6Q", "=QqiI", "=QIIII"
# linux/socket.h, asm-generic/socket.h
_SOCK_NONBLOCK, _SOCK_CLOEXEC, _SOL_SOCKET, _SCM_RIGHTS = os.O_NONBLOCK, os.O_CLOEXEC, 1, 1
_MSG_PEEK, _MSG_DONTWAIT, _MSG_NOSIGNAL = 0x2, 0x40, 0x4000
_MOST_DESCRIPTORS = 4096


def asks(program: bytes) -> bool:
    """Whether a filter asks another process, which lives as long as a process with this filter."""
    return _MAKE_SEQUENCED in program


def start(restrict: Callable[[], None]) -> Socket:
    """Starts a process that makes the sockets for which a filter asks, until every process with this filter has ended. It
    restricts itself with `restrict`. Returns the socket by which it gets the filter's descriptor. Raises OSError.
    """
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    between = os.fork()
    if between == 0:  # its child is the launcher's, so that the command has no child that it does not know
        try:
            if os.fork() == 0:
                ours.close()
                _make_sockets(theirs, restrict)
        finally:
            os._exit(0)
    os.waitpid(between, 0)
    theirs.close()
    return ours


def _make_sockets(channel: Socket, restrict: Callable[[], None]) -> None:
    import struct  # noqa: PLC0415 - only where GPUs are given

    for before, after in ((0, channel.fileno()), (channel.fileno() + 1, _MOST_DESCRIPTORS)):
        os.closerange(before, after)
    restrict()
    _, found, _, _ = channel.recvmsg(1, _socket.CMSG_SPACE(4))
    if not found:  # the command does not start, or asks nobody
        return
    listener = int.from_bytes(found[0][2], "little")
    channel.close()
    peers: dict[str, Socket] = {}
    """The other ends, by what the descriptor of the command's own end leads to."""

    def made(kind: int) -> int:
        """Makes a socket in the asking process. Returns the number that it has there."""
        for name in [name for name, peer in peers.items() if _is_closed(peer)]:
            peers.pop(name).close()
        theirs, peer = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        theirs.setblocking(not kind & _SOCK_NONBLOCK)
        is_closed_on_exec = os.O_CLOEXEC if kind & _SOCK_CLOEXEC else 0
        order = bytearray(struct.pack(_NOTIF_FD, asking, 0, theirs.fileno(), 0, is_closed_on_exec))
        number = int(fcntl.ioctl(listener, _NOTIF_ADDFD, order))
        peers[f"socket:[{os.fstat(theirs.fileno()).st_ino}]"] = peer
        theirs.close()
        return number

    _, socket_call = _ASKING_CALLS[os.uname().machine]
    asked = select.poll()
    asked.register(listener, select.POLLIN)
    while asked.poll()[0][1] & select.POLLIN:
        request = bytearray(struct.calcsize(_NOTIF))
        try:
            fcntl.ioctl(listener, _NOTIF_RECV, request)
        except OSError:  # who asked has ended
            continue
        asking, pid, _, call, _, _, first, second, *_ = struct.unpack(_NOTIF, request)
        value = failed = flags = 0
        if call == socket_call:
            try:
                value = made(second)
            except OSError as error:
                failed = -(error.errno or errno.EMFILE)
        else:
            try:
                name = os.readlink(f"/proc/{pid}/fd/{first & 0xFFFF_FFFF}")
            except OSError:
                name = ""
            # A thread may put another socket in its place, on which listening is allowed too.
            flags = 0 if name in peers else _NOTIF_CONTINUE
        try:
            fcntl.ioctl(listener, _NOTIF_SEND, struct.pack(_NOTIF_RESPONSE, asking, value, failed, flags))
        except OSError:  # who asked has ended
            continue


def _is_closed(peer: Socket) -> bool:
    try:
        return not peer.recv(1, _MSG_PEEK | _MSG_DONTWAIT)
    except OSError:
        return False


def install(calls: Calls, program: bytes, socket_maker: Socket) -> None:
    """Installs a filter that asks the process behind `socket_maker`, and closes that socket. Raises OSError."""
    number, _ = _ASKING_CALLS[os.uname().machine]
    flag = _SECCOMP_FILTER_FLAG_NEW_LISTENER
    try:
        listener = calls.syscall(number, _SECCOMP_SET_MODE_FILTER, flag, calls.packed(program))
    except OSError as error:
        if error.errno not in {errno.EBUSY, errno.EINVAL}:  # EBUSY: a filter around this one asks already
            raise
        plain = program.replace(_MAKE_SEQUENCED, _NO_ACCESS).replace(_LISTEN, _ALLOW)
        calls.install_filter(plain)
    else:
        rights = [(_SOL_SOCKET, _SCM_RIGHTS, listener.to_bytes(4, "little"))]
        socket_maker.sendmsg([b"x"], rights, _MSG_NOSIGNAL)
        os.close(listener)
    socket_maker.close()
