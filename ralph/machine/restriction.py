"""Restricts the calling process permanently: no core dump, no new privileges, no capabilities, a Landlock ruleset and a
seccomp filter. Programs that the process executes inherit these restrictions. Linux only.

Only small modules of the standard library are imported, because it runs between a fork and an exec, and also in interpreters
started by `python -I -S`. `prepare` loads the C functions that `restrict` needs, so that a child need not load them again.
"""

from __future__ import annotations

import _socket
import errno
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket  # noqa: N812 - a class
    from collections.abc import Callable, Iterable, MutableMapping

if TYPE_CHECKING or __package__:
    from ralph.machine import gpu_sockets
else:  # imported from this module's own directory, because ralph is not on the path there
    sys.path.append(os.path.dirname(__file__))
    import gpu_sockets

    sys.path.pop()

NO_RULESET = -1
"""The value in place of a ruleset's descriptor if the kernel has no Landlock."""
NO_FILTER = b""
"""The value in place of a filter if the kernel accepts none."""

# linux/prctl.h
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
# System calls added since Linux 5.1 have the same number on every architecture.
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446
_RULE_PATH_BENEATH = 1
# linux/landlock.h: the rights that apply to files: execute, write, read, truncate, ioctl and connecting to a socket. The kernel
# refuses a rule that grants any other right on a file.
_RIGHTS_ON_FILES = 0b1_1100_0000_0000_0111
# linux/stat.h: S_IFMT, S_IFDIR and S_IFLNK.
_KIND, _DIRECTORY, _LINK = 0o170000, 0o040000, 0o120000
# Such a failure passes, and says nothing about the path.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# linux/capability.h: the header is _LINUX_CAPABILITY_VERSION_3 and 0 for the calling process. The three sets, of two
# 32-bit numbers each, are empty.
_CAPABILITY_HEADER = (0x20080522).to_bytes(4, "little") + bytes(4)
_NO_CAPABILITIES = bytes(24)
# The sets have room for 64 capabilities. Linux has 41 so far, and answers EINVAL for a number that it does not know.
_MOST_CAPABILITIES = 64
# Connections that wait until the proxy accepts them.
_BACKLOG = 64
_INSTRUCTION_BYTES = 8
_ADDRESS_BYTES = 8
_PR_SET_DUMPABLE = 4
_calls: Calls | None = None


class Calls:
    """Makes system calls for which Python has no function, through the C library."""

    def __init__(self) -> None:
        """Finds the functions in the C library. Raises ImportError in an interpreter without libffi."""
        # Importing `_ctypes` takes half a millisecond, `ctypes` three.
        import _ctypes  # noqa: PLC0415 - only what restricts itself or builds a ruleset needs it

        class Long(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001 - `ctypes` makes its own from it
            _type_ = "l"

        def function(name: str, result: type) -> Callable[..., int]:
            flags = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
            kind = type("Function", (_ctypes.CFuncPtr,), {"_flags_": flags, "_restype_": result})
            made: Callable[..., int] = kind(_ctypes.dlsym(program, name))
            return made

        program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type] # None is this program
        self._long = Long
        self._pointer = type("Pointer", (_ctypes._SimpleCData,), {"_type_": "z"})  # noqa: SLF001 - as `ctypes` does
        self._errno = _ctypes.get_errno
        whole = type("Int", (_ctypes._SimpleCData,), {"_type_": "i"})  # noqa: SLF001 - as `ctypes` does
        self._syscall = function("syscall", Long)
        self._prctl, self._capset, self._setns, self._unshare, self._mount = (
            function(name, whole) for name in ("prctl", "capset", "setns", "unshare", "mount")
        )

    def syscall(self, number: int, *arguments: int | bytes) -> int:
        """Makes a system call. Bytes are passed as the address of their first byte. Raises OSError."""
        return self._checked(self._syscall(self._long(number), *self._passed(arguments)))

    def prctl(self, option: int, *arguments: int | bytes) -> int:
        padded = (*arguments, 0, 0, 0, 0)[:4]
        return self._checked(self._prctl(option, *self._passed(padded)))

    def capset(self, header: bytes, sets: bytes) -> int:
        return self._checked(self._capset(header, sets))

    def setns(self, descriptor: int) -> None:
        """Enters a namespace. If it is a process namespace, only children that are forked later are in it. Raises OSError."""
        self._checked(self._setns(*self._passed((descriptor, 0))))

    def unshare(self, kinds: int) -> None:
        """Makes new namespaces (linux/sched.h) for this process, or for its children if they are of processes. Raises OSError."""
        self._checked(self._unshare(*self._passed((kinds,))))

    def mount(self, kind: bytes, place: bytes, flags: int, options: bytes | int = 0) -> None:
        """Mounts a new file system of a kind that needs no device. Raises OSError."""
        self._checked(self._mount(*self._passed((kind, place, kind, flags, options))))

    def install_filter(self, program: bytes) -> None:
        """Installs a seccomp filter. Raises OSError."""
        self.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self.packed(program))

    def packed(self, program: bytes) -> bytes:
        """The argument with which the kernel is given a seccomp filter."""
        # struct sock_fprog: the number of instructions and, aligned to 8 bytes, their address.
        count = len(program) // _INSTRUCTION_BYTES
        # `bytes` of a C pointer are the address that it holds.
        return count.to_bytes(_ADDRESS_BYTES, "little") + bytes(self._pointer(program))

    def _passed(self, arguments: tuple[int | bytes, ...]) -> list[object]:
        # A plain int would be passed as a C int, and cut to 32 bits.
        return [value if isinstance(value, bytes) else self._long(value) for value in arguments]

    def _checked(self, result: int) -> int:
        if result < 0:
            number = self._errno()
            raise OSError(number, os.strerror(number))
        return result


def prepare() -> Calls:
    """The C library's functions, which the first call loads. Raises ImportError in an interpreter without libffi."""
    global _calls  # noqa: PLW0603 - a fork must find it loaded
    if _calls is None:
        _calls = Calls()
    return _calls


def restrict(ruleset: int, program: bytes) -> None:
    """Restricts this process, which must have one thread, and all that it will execute. `ruleset` is a descriptor of Landlock's, or
    NO_RULESET, and `program` a packed seccomp filter, or NO_FILTER.

    Raises OSError with the failed step as `filename`. Earlier steps stay in force, and nothing must be executed.
    """
    restrict_ahead(ruleset, program)
    drop_capabilities()


def restrict_ahead(ruleset: int, program: bytes) -> None:
    """Does the part of `restrict` that comes before `drop_capabilities`: a process with them may still enter any directory."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except OSError as error:
        raise OSError(error.errno, error.strerror, "rlimit core") from None
    try:
        socket_maker = gpu_sockets.start(_restrict_maker) if gpu_sockets.asks(program) else None
    except OSError as error:
        raise OSError(error.errno, error.strerror, "sockets for GPUs") from None
    _restrict_ahead(ruleset, program, socket_maker)


def _restrict_maker() -> None:
    prepare().prctl(_PR_SET_DUMPABLE, 0)
    restrict_thread(NO_RULESET, NO_FILTER)


def restrict_thread(ruleset: int, program: bytes) -> None:
    """Restricts the calling thread as `restrict` does a process, but for core dumps. The filter must ask no other process."""
    _restrict_ahead(ruleset, program)
    drop_capabilities()


def drop_capabilities() -> None:
    """Drops the capabilities of the calling thread. Raises OSError as `restrict`."""
    calls = prepare()
    step = "ambient set"
    try:
        try:
            calls.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
        except OSError as error:
            if error.errno != errno.EINVAL:  # Linux before 4.3 has no ambient capabilities
                raise
        step = "capabilities"
        calls.capset(_CAPABILITY_HEADER, _NO_CAPABILITIES)
    except OSError as error:
        raise OSError(error.errno, error.strerror, step) from None


def _restrict_ahead(ruleset: int, program: bytes, socket_maker: Socket | None = None) -> None:
    calls = prepare()
    step = "no_new_privs"
    try:
        calls.prctl(_PR_SET_NO_NEW_PRIVS, 1)
        step = "bounding set"
        _drop_bounding_set(calls)
        if ruleset != NO_RULESET:
            step = "landlock"
            calls.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
        if program:
            step = "seccomp"
            if socket_maker is None:
                calls.install_filter(program)
            else:
                gpu_sockets.install(calls, program, socket_maker)
    except OSError as error:
        raise OSError(error.errno, error.strerror, step) from None


def _drop_bounding_set(calls: Calls) -> None:
    for capability in range(_MOST_CAPABILITIES):
        try:
            calls.prctl(_PR_CAPBSET_DROP, capability)
        except OSError as error:
            # EINVAL: the kernel has no further capability. EPERM: this process may not change the bounding set, which
            # does no harm: after no_new_privs, an exec gives no capability that the process does not have.
            if error.errno in {errno.EINVAL, errno.EPERM}:
                return
            raise


def allow_beneath(ruleset: int, path: str | bytes, rights: int, within: int = -1) -> None:
    """Adds a rule that grants those of `rights` that apply to what is at `path`, and beneath it. No rule is made if it does not
    exist, may not be looked up, or is a link: without one, commands may not use it either. `within` is the descriptor of the root
    directory of a box, if the path is one of the box's. Raises OSError.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        if within < 0:
            place = os.open(path, flags)
        else:
            place = os.open(f"./{os.fsdecode(path)}", flags, dir_fd=within)
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise
        return
    try:
        kind = os.fstat(place).st_mode & _KIND
        applicable = rights if kind == _DIRECTORY else rights & _RIGHTS_ON_FILES
        if applicable and kind != _LINK:
            attribute = applicable.to_bytes(8, "little") + place.to_bytes(4, "little")
            prepare().syscall(_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, attribute, 0)
    finally:
        os.close(place)


def listen_for_proxy(channel: int) -> int:
    """Listens on a free port of the loopback, and sends the socket to the proxy outside this network namespace, over the Unix
    socket `channel`. Closes both here. Returns the port. Raises OSError with "proxy" as its `filename`.
    """
    with_proxy = _socket.socket(fileno=channel)
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        listener.bind(("127.0.0.1", 0))
        listener.listen(_BACKLOG)
        number = listener.fileno().to_bytes(4, "little")
        with_proxy.sendmsg([b"x"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, number)])
        return int(listener.getsockname()[1])
    except OSError as error:
        raise OSError(error.errno, error.strerror, "proxy") from None
    finally:
        listener.close()
        with_proxy.close()


def name_proxy(port: int, environment: MutableMapping[bytes, bytes]) -> None:
    """Sets the environment variables that tell the command to use the proxy on this port of the loopback."""
    for name in (b"HTTP_PROXY", b"HTTPS_PROXY"):
        # curl reads the first one only in small letters, because a CGI script may get the other from a stranger.
        environment[name] = environment[name.lower()] = b"http://127.0.0.1:%d" % port
    for name in (b"ALL_PROXY", b"all_proxy"):
        environment.pop(name, None)
    environment[b"NO_PROXY"] = environment[b"no_proxy"] = b"localhost,127.0.0.1,::1"


def allow_mounts(ruleset: int, places: Iterable[bytes]) -> None:
    """Adds a rule for each of `places`, which have the form PATH=RIGHTS and are mounts of this process's namespace. Raises OSError."""
    for entry in places:
        path, _, rights = entry.rpartition(b"=")
        allow_beneath(ruleset, path, int(rights))
