"""Builds Landlock rulesets (man page landlock, section 7) of the rules that `landlock_rules.landlock_rules` decides.

A ruleset denies every access of the kinds that it handles, unless a rule allows it. A rule grants rights on a path and on
everything beneath it, and no other rule can take these rights away.
"""

from __future__ import annotations

import errno
import os
import stat
from itertools import count
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine import restriction
from ralph.machine.restriction import allow_beneath, prepare
from ralph.values.outcome import shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Rules = Callable[[Callable[[str], Iterable[str]]], Iterable["Rule"]]
    """Takes a function that returns the names in a directory, without symbolic links."""

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
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1
_SCOPES_ABI = 6

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

# With namespaces, each command adds a rule for its own /proc to the ruleset, and restricting copies all rules. So the
# ruleset is built again sometimes, which takes milliseconds.
_MOST_USES = 100
_numbers = count(1)
_Seen = tuple[int, int, int, int]


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
    def has_truncate(self) -> bool:
        return self.abi >= _FILE_RIGHTS_SINCE[TRUNCATE]

    @property
    def has_scopes(self) -> bool:
        """Whether Landlock can deny signals to processes and connections to abstract sockets outside the sandbox."""
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


def build_ruleset(abi: int, rules: Iterable[Rule], *, allows_signals: bool = False) -> int:
    """Builds a ruleset and returns its descriptor, which is close-on-exec. Raises OSError.

    `abi` is the version to use, from 1 to the kernel's. `allows_signals` allows signals to processes outside, which a process
    namespace hides.
    """
    calls = prepare()
    files = file_rights(abi)
    head = [files]
    if abi >= _SCOPES_ABI:
        # No right to the network is handled: the filter and the namespace judge that.
        head += (0, _SCOPE_ABSTRACT_SOCKETS | (0 if allows_signals else _SCOPE_SIGNALS))
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
    return _ALL_FILE_RIGHTS & ~sum(right for right, first in _FILE_RIGHTS_SINCE.items() if first > abi)


class WatchedDirectories:
    """Notices that an entry was made, removed or replaced in one of some directories."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen | None] = {}

    def add(self, directory: str) -> None:
        """Called before the directory is looked at. Of a missing one, the nearest that exists above is watched, unless everybody
        may write there (`/tmp`, which changes all the time).
        """
        while (seen := _seen(directory)) is None:
            above = os.path.dirname(directory)
            try:
                if os.stat(above).st_mode & stat.S_IWOTH:
                    break
            except OSError:
                pass  # missing too
            directory = above
        self._seen.setdefault(directory, seen)

    def have_changed(self) -> bool:
        return any(_seen(directory) != seen for directory, seen in self._seen.items())

    def clear(self) -> None:
        self._seen = {}


def _seen(directory: str) -> _Seen | None:
    try:
        status = os.stat(directory)
    except OSError:
        return None
    # A command may set the first time back, and nobody the second one.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


class Ruleset:
    """A ruleset that is built when it is first needed."""

    def __init__(self, abi: int, *, is_worn_by_uses: bool = False, allows_signals: bool = False) -> None:
        """`abi` is 0 without Landlock. `is_worn_by_uses`: each command adds rules. `allows_signals` is as in `build_ruleset`."""
        self._abi = abi
        self._allows_signals = allows_signals
        self._is_worn_by_uses = is_worn_by_uses
        self._descriptor = restriction.NO_RULESET
        self._watched = WatchedDirectories()
        self._uses = 0
        self.number = 0
        """The number of the present ruleset, which no other one of this process has."""

    def fresh(self, rules: Rules) -> int:
        """The descriptor of a ruleset that fits the present state of the disk, or `restriction.NO_RULESET`. The next call may
        close this descriptor. Raises OSError.

        It is built again after an entry was made or removed in a directory whose names `rules` asked for. Until then, commands
        cannot read a new entry there.
        """
        if not self._abi:
            return restriction.NO_RULESET
        is_worn = self._is_worn_by_uses and self._uses >= _MOST_USES
        if self._descriptor == restriction.NO_RULESET or is_worn or self._watched.have_changed():
            self.close()
            self._watched.clear()
            self._uses, self.number = 0, next(_numbers)
            self._descriptor = build_ruleset(
                self._abi, rules(self._entries), allows_signals=self._allows_signals
            )
        self._uses += 1
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, restriction.NO_RULESET
        if descriptor != restriction.NO_RULESET:
            os.close(descriptor)

    def _entries(self, directory: str) -> Iterator[str]:
        self._watched.add(directory)
        try:
            with os.scandir(directory) as listing:
                yield from [entry.name for entry in listing if not entry.is_symlink()]
        except OSError as error:
            if shortage_of(error) is not None:
                raise
            return  # it cannot be listed: no rule is made, and everything in it stays closed to commands
