"""Builds Landlock rulesets (man page landlock, section 7). `landlock_rules.landlock_rules` decides which rules they contain.

A ruleset handles certain kinds of access. It denies every access of these kinds that no rule allows. A rule grants
rights on a path and on everything beneath it, and no other rule can take these rights away.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.restriction import allow_beneath, prepare

if TYPE_CHECKING:
    from collections.abc import Iterable

# linux/landlock.h
_CREATE_RULESET = 444
_CREATE_RULESET_VERSION = 1

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_CHAR = 1 << 6
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SOCK = 1 << 9
MAKE_FIFO = 1 << 10
MAKE_BLOCK = 1 << 11
MAKE_SYM = 1 << 12
REFER = 1 << 13
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15
RESOLVE_UNIX = 1 << 16

# The ABI version that introduced a right. Rights that are not listed exist since version 1 (Linux 5.13).
_FILE_RIGHTS_SINCE = {REFER: 2, TRUNCATE: 3, IOCTL_DEV: 5, RESOLVE_UNIX: 9}
_BIND_TCP, _CONNECT_TCP, _BIND_UDP, _CONNECT_SEND_UDP = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_NET_RIGHTS_SINCE = {_BIND_TCP: 4, _CONNECT_TCP: 4, _BIND_UDP: 10, _CONNECT_SEND_UDP: 10}
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1
_SCOPES_SINCE = {_SCOPE_ABSTRACT_SOCKETS: 6, _SCOPE_SIGNALS: 6}

_ALL_FILE_RIGHTS = (1 << 17) - 1

READ = READ_FILE | EXECUTE
"""The rights to read and execute files. Listing directories is another right, `READ_DIR`."""
WRITE = (
    WRITE_FILE
    | TRUNCATE
    | REMOVE_DIR
    | REMOVE_FILE
    | REFER
    | MAKE_DIR
    | MAKE_REG
    | MAKE_SOCK
    | MAKE_FIFO
    | MAKE_SYM
)
"""The rights to change, create and remove files of all kinds. Creating device files is not included."""

_SCOPES_ABI = 6
_NET_ABI = 4


class Rule(Struct, frozen=True):
    """Rights on a path and on everything beneath it. The path contains no symbolic links."""

    path: str
    rights: int
    within: int = -1
    """The descriptor of the root directory of a box, if the path is one of the box's."""


class Support(Struct, frozen=True):
    """The version of Landlock that this kernel supports."""

    abi: int
    """The ABI version, or 0 if Landlock cannot be used."""
    why_not: str = ""

    @property
    def has_refer(self) -> bool:
        """Whether this version of Landlock can allow moves of files between directories. Before ABI 2, Landlock denies
        all such moves.
        """
        return self.abi >= _FILE_RIGHTS_SINCE[REFER]

    @property
    def has_truncate(self) -> bool:
        return self.abi >= _FILE_RIGHTS_SINCE[TRUNCATE]

    @property
    def has_net(self) -> bool:
        return self.abi >= _NET_ABI

    @property
    def has_scopes(self) -> bool:
        """Whether Landlock can deny signals to processes and connections to abstract sockets outside of the sandbox."""
        return self.abi >= _SCOPES_ABI

    @property
    def has_socket_paths(self) -> bool:
        """Whether Landlock has a right to connect to a Unix socket in the file system, so that it can deny this."""
        return self.abi >= _FILE_RIGHTS_SINCE[RESOLVE_UNIX]


def support() -> Support:
    """Asks the kernel for its version of Landlock. An error of the kernel's becomes `why_not`."""
    try:
        return Support(prepare().syscall(_CREATE_RULESET, 0, 0, _CREATE_RULESET_VERSION))
    except ImportError:
        return Support(0, "this Python has no libffi")
    except OSError as error:
        reasons = {
            errno.ENOSYS: "the kernel has no Landlock",
            errno.EOPNOTSUPP: "Landlock is switched off (it is not in the kernel's `lsm=` list)",
            errno.EPERM: "a seccomp filter of the container forbids Landlock",
        }
        return Support(0, reasons.get(error.errno or 0, f"landlock_create_ruleset: {error.strerror}"))


def build_ruleset(
    abi: int, rules: Iterable[Rule], *, denies_net: bool = False, allows_signals: bool = False
) -> int:
    """Builds a ruleset and returns its descriptor, which is close-on-exec. Raises OSError.

    `abi` is the version to use, from 1 to the kernel's. `denies_net` denies binding and connecting: of TCP sockets from ABI 4 on,
    of UDP sockets from 10 on. `allows_signals` allows signals to processes outside, which a process namespace hides.
    """
    calls = prepare()
    files = file_rights(abi)
    head = [files]
    if abi >= _NET_ABI:
        head.append(_since(_NET_RIGHTS_SINCE, abi) if denies_net else 0)
    if abi >= _SCOPES_ABI:
        head.append(_since(_SCOPES_SINCE, abi) & ~(_SCOPE_SIGNALS if allows_signals else 0))
    packed = b"".join(field.to_bytes(8, "little") for field in head)
    # A new descriptor of a ruleset is close-on-exec.
    ruleset = calls.syscall(_CREATE_RULESET, packed, len(packed), 0)
    try:
        for rule in rules:
            allow_beneath(ruleset, rule.path, rule.rights & files, rule.within)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def file_rights(abi: int) -> int:
    """All rights on files and directories in an ABI version."""
    return _since(_FILE_RIGHTS_SINCE, abi) | _ALL_FILE_RIGHTS & ~sum(_FILE_RIGHTS_SINCE)


def _since(table: dict[int, int], abi: int) -> int:
    return sum(right for right, first in table.items() if first <= abi)
