"""The sandbox of a run's commands as `planning.py` decides it: its places, the protections that it provides on this machine, and why the
others are missing. `detection.py` finds out what the machine supports. `CommandBox` makes the sandbox.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ralph.machine.files.paths import is_within, is_within_any
from ralph.sandbox.bubblewrap import TEMPORARY
from ralph.values.events import SOCKETS_IN_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ralph.places.places import GuardedPlaces
    from ralph.sandbox.landlock import Support

Net = Literal["full", "proxy", "off"]
AskedSockets = Literal["auto", "allow", "deny"]
UnixSockets = Literal["own", "all", "none"]
"""The Unix sockets that commands may use: those that they make themselves, and such in the places that they may write; all that
the user may use; or none but connected pairs."""
LevelName = Literal["namespaces", "landlock", "none"]
"""The strongest means that works. `namespaces` means bubblewrap, with Landlock inside if the kernel has it.
`landlock` means Landlock alone. On each level, a seccomp filter and dropped capabilities are used too if they work."""


class Means(Struct, frozen=True):
    """The means of confinement that work on this machine."""

    landlock: Support
    why_no_privileges: str = ""
    """The reason why a process cannot give up privileges. Empty if a process can do so, as on Linux."""
    why_no_filter: str = ""
    """The reason why there is no seccomp filter. Empty if there is one."""
    bwrap: str | None = None
    """The path of a bubblewrap that works on this machine, or None."""
    why_no_namespaces: str = ""
    has_network_namespace: bool = False
    """Whether bubblewrap can make a network namespace. False too if ralph has not tried, because commands share the network."""

    is_short_of_namespaces: bool = False
    """Whether bubblewrap has failed because the machine lacked a resource such as processes. It may work later."""
    why_no_overlays: str = "overlays were not tried"
    """The reason why `bwrap` cannot show the file system as overlays. Empty if it can."""
    overlaid: frozenset[int] = frozenset()
    """The file systems (`st_dev`) of which overlays can be made."""
    about_bwrap: str = ""
    """Which bubblewrap it is, why this one, and why no other. Empty without one."""

    @property
    def has_own_network(self) -> bool:
        """Whether a command can have a network that is separate from the machine's."""
        return self.bwrap is not None and self.has_network_namespace

    @property
    def why_not_own_sockets(self) -> str:
        """The reason why the sockets that commands make cannot be told from those of other programs. Empty if they can."""
        if self.landlock.has_socket_paths:
            return ""
        before = "the kernel tells sockets of commands from others from Landlock 9 on"
        if self.bwrap is None:
            return f"{before}, and there are no namespaces"
        if not self.landlock.has_scopes:
            return f"{before}, and with overlays from 6 on"
        return f"{before}, and there are no overlays: {self.why_no_overlays}" if self.why_no_overlays else ""


class BoxLevel(Struct, frozen=True):
    """The protections of a sandbox on this machine."""

    name: LevelName
    reaches: Mapping[str, str]
    """Each protection by its name. The text is the reason why the protection is missing, or empty if it is in force."""

    def missing(self) -> dict[str, str]:
        return {name: why for name, why in self.reaches.items() if why}

    def reasons(self) -> dict[str, list[str]]:
        """The missing protections by the reason why they are missing."""
        reasons: dict[str, list[str]] = {}
        for name, why in self.missing().items():
            reasons.setdefault(why, []).append(name)
        return reasons


# The protections that `--sandbox strict` requires.
STRICT = ("write", "read", "signals", "network")


def unix_sockets(means: Means, asked: AskedSockets, *, gives_sockets: bool) -> UnixSockets:
    """The Unix sockets that commands may use. `asked` is the setting, and `gives_sockets` says that the settings name one of
    another program. Where the kernel cannot tell those of commands from others, a sandbox that allows one allows all of them.
    """
    if asked == "deny" and not means.why_no_filter:
        return "none"
    if not means.why_not_own_sockets:
        return "own"
    return "all" if asked == "allow" or gives_sockets or means.why_no_filter else "none"


def box_level(
    means: Means, net: Net, *, sockets: AskedSockets = "auto", gives_sockets: bool = False
) -> BoxLevel:
    """The level of a sandbox with these means. `sockets` and `gives_sockets` are as in `unix_sockets`."""
    name: LevelName = "none"
    if means.landlock.abi:
        name = "landlock"
    if means.bwrap is not None:
        name = "namespaces"
    landlock, no_filter = means.landlock, means.why_no_filter
    no_landlock = landlock.why_not or ("" if landlock.abi else "the kernel has no Landlock")
    no_namespaces = "" if means.bwrap else means.why_no_namespaces or "there is no bubblewrap"
    is_older = f"the kernel's Landlock has version {landlock.abi}"
    no_truncate = "" if landlock.has_truncate else f"{is_older}, and cannot deny truncating files before 3"
    no_scopes = "" if landlock.has_scopes else no_landlock or f"{is_older}, and confines signals from 6 on"
    no_socket_paths = ""
    if unix_sockets(means, sockets, gives_sockets=gives_sockets) == "all":
        asked_by = "sandbox.unix_sockets = allow" if sockets == "allow" else "a socket is given back"
        no_socket_paths = no_filter or f"{asked_by}, and {means.why_not_own_sockets}"
    reaches = {
        "write": no_namespaces and (no_landlock or no_truncate),
        "read": no_landlock,
        "devices": no_namespaces and no_landlock,
        "signals": no_namespaces and no_scopes,
        "other processes' memory and environment": no_namespaces and no_landlock,
        "tracing": no_namespaces and no_filter and no_landlock,
        "privileges": means.why_no_privileges,
        "attributes of files outside": no_namespaces,
        "processes hidden": no_namespaces,
        "the whole tree ends": no_namespaces,
        "protected paths": no_namespaces,
        "user's terminals": no_namespaces and no_landlock,
        SOCKETS_IN_FILES: no_socket_paths,
        "abstract sockets": "" if landlock.has_scopes else no_socket_paths,
    }
    if net != "full":  # otherwise no protection was asked for, and none is in force
        reaches["network"] = _why_no_network(means, net)
    reaches["unusual sockets, terminal input, io_uring, key rings, user namespaces"] = no_filter
    return BoxLevel(name, reaches)


def _why_no_network(means: Means, net: Net) -> str:
    if means.has_own_network:
        return ""
    without = means.why_no_namespaces or "there is no network namespace"
    if means.why_no_filter:
        return f"{without}, and {means.why_no_filter}"
    if net == "proxy":
        return f"{without}: internet sockets are refused altogether, the listed hosts included"
    return f"{without}: internet sockets are refused altogether, loopback included"


SANDBOX_WORDS = "Commands run in a sandbox:"
"""The beginning of the sentence for the model."""
# The network, and whether there are no namespaces, in words for the model.
_NETS_IN_WORDS: dict[tuple[Net, bool], str] = {
    ("off", True): "have no network, not even localhost",
    ("off", False): "have no network but localhost",
    ("proxy", True): "have no network, not even localhost",
    ("proxy", False): "reach only listed hosts",
}


class CannotConfineError(Exception):
    """A protection that the user requires is impossible, so nothing may run. The message is one line."""


class BoxNotice(Struct, frozen=True):
    """Something about the sandbox that people should know, and advice."""

    text: str
    advice: str

    @property
    def line(self) -> str:
        return f"{self.text}; {self.advice}"


class BoxPlan(Struct, frozen=True):
    """The sandbox of a run's commands. `plan_with_places` adds the paths, from `places` on, at the first command. All are absolute."""

    means: Means
    net: Net = "full"
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    read_deny: tuple[str, ...] = ()
    rules_deny: tuple[str, ...] = ()
    """Places that permission rules deny, and so the sandbox too. ralph's own tools apply the rules themselves."""
    gpus: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    """Such places where commands may write, which only mounts can hide. They need not exist."""
    write_denied: tuple[str, ...] = ()
    """Places that commands could write, but permission rules forbid it: mounts make them read-only. They need not exist."""
    allow_hosts: tuple[str, ...] = ()
    asked_sockets: AskedSockets = "auto"
    most_file_bytes: int = 0
    """The maximum size of a file that a command writes. 0 means no limit."""
    is_strict: bool = False
    """Whether a run ends if a change to a protected file cannot be undone."""
    closed_roots: tuple[str, ...] = ()
    """The roots that commands may not write, because they are or lie in a protected folder."""
    is_work_closed: bool = False
    """Whether the working directory is one of them."""
    notices: tuple[BoxNotice, ...] = ()
    places: GuardedPlaces | None = None
    """The places that the tools, and so commands, must not use."""
    elsewhere: tuple[str, ...] = ()
    """Further paths of unreadable places, on file systems that are mounted more than once."""
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    """Paths that are readable although they lie in an unreadable place."""
    devices: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    """Directories of which commands may use only what is in one of the other places."""
    visible: tuple[str, ...] = ()
    """Paths that commands must see although they may lie in /tmp."""
    empty: tuple[str, ...] = ()
    """Directories and files that appear empty to commands with namespaces. They need not exist."""
    read_only: tuple[str, ...] = ()
    """Paths in writable places, besides names and entries of git directories, that namespaces mount read-only."""
    copies: tuple[tuple[str, str], ...] = ()
    """Copies of configuration files without credentials, each with the file over which namespaces mount it."""
    temporary: str = ""
    has_own_temporary: bool = False
    """Whether the directory for temporary files is mounted on /tmp: not if commands may write to the machine's /tmp."""

    @property
    def given(self) -> tuple[str, ...]:
        """The places that the settings open to commands, and so to Read."""
        return (*self.read, *self.write)

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Files and directories, which need not exist. A missing one in /tmp, which changes all the time, would cost many rules."""
        absent = self.absent
        kept = (path for path in self._unread if path not in absent)
        return tuple(dict.fromkeys((*kept, *self.read_deny, *self.rules_deny, *self.elsewhere)))

    @property
    def absent(self) -> frozenset[str]:
        """The unreadable paths directly in /tmp that do not exist yet."""
        shared = os.path.realpath(TEMPORARY)
        in_tmp = (path for path in self._unread if path.rpartition("/")[0] == shared)
        return frozenset(path for path in in_tmp if not os.path.lexists(path))

    @property
    def _unread(self) -> tuple[str, ...]:
        return () if self.places is None else (*self.places.closed_homes, *self.places.unread)

    def may_write(self, path: str) -> bool:
        """Whether a command may create or change the file at a path. The path must not contain symbolic links."""
        return path in self.devices or self.is_writable(path)

    def may_read(self, path: str) -> bool:
        """Whether a command may read the file at a path without symbolic links. Directories can always be listed."""
        if self.is_writable(path) or any(path == over for _, over in self.copies):
            return True
        if is_within_any(path, self.closed):
            return self.may_write(path)
        return self.why_not_read(path) is None

    def why_not_read(self, path: str) -> str | None:
        """The reason why a path must not be read, or None if it may be. The path must not lie in a writable place."""
        return why_not_read(path, self.places, (*self.read_deny, *self.rules_deny), self.readable)

    def is_writable(self, path: str) -> bool:
        """Whether a path is in a writable place."""
        return is_within_any(path, self.writable)

    def inside(self, path: str) -> str:
        """Converts a path outside the sandbox to the path inside."""
        if self.has_own_temporary and is_within(path, self.temporary):
            return TEMPORARY + path.removeprefix(self.temporary)
        return path

    def outside(self, path: str, visible: Iterable[str]) -> str:
        """Converts a path inside the sandbox, without `..`, to the one outside. Places in `visible` are the same inside."""
        if not (self.has_own_temporary and is_within(path, TEMPORARY)):
            return path
        if any(is_within(path, place) for place in (*self.writable, *visible) if place != self.temporary):
            return path
        return self.temporary + path.removeprefix(TEMPORARY)

    @property
    def level(self) -> BoxLevel:
        """The protections of this sandbox."""
        return box_level(self.means, self.net, sockets=self.asked_sockets, gives_sockets=bool(self.sockets))

    @property
    def unix_sockets(self) -> UnixSockets:
        """The Unix sockets that commands may use."""
        return unix_sockets(self.means, self.asked_sockets, gives_sockets=bool(self.sockets))

    @property
    def needs_overlays(self) -> bool:
        """Whether commands may have Unix sockets only because they see the file system as overlays."""
        is_judged = self.means.landlock.has_socket_paths
        return self.has_namespaces and self.unix_sockets == "own" and not is_judged

    @property
    def is_confined(self) -> bool:
        """False if commands run without a sandbox: it is switched off, or no process can restrict itself, as on macOS."""
        return not self.means.why_no_privileges

    @property
    def protections(self) -> dict[str, bool]:
        """Each protection by its name, and whether this sandbox provides it."""
        return {name: not why for name, why in self.level.reaches.items()}

    @property
    def has_namespaces(self) -> bool:
        return self.means.bwrap is not None

    @property
    def has_own_network(self) -> bool:
        """Whether commands have a network without the machine's."""
        return self.net != "full" and self.means.has_own_network

    def sentence_for_model(self, added: int) -> str:
        """The rights of commands in one sentence of at most 200 bytes. Empty if they are not confined.
        `added` is the number of directories that they may write besides the working directory.
        """
        if not self.is_confined:
            return ""
        missing = self.level.missing()
        more = added + len(self.write) - (len(self.closed_roots) - self.is_work_closed)
        places = [
            *([] if self.is_work_closed else ["the working directory"]),
            *([f"{more} more places"] if more else []),
        ]
        allowed = f"{', '.join(places)} and $TMPDIR" if places else "$TMPDIR"
        rights = [
            *([f"may write only in {allowed}"] if "write" not in missing else []),
            *(["cannot read secrets of the user"] if "read" not in missing else []),
            *([_NETS_IN_WORDS[self.net, not self.means.has_own_network]] if self.net != "full" else []),
        ]
        if len(rights) > 1:
            rights[-1] = f"and {rights[-1]}"
        return f"{SANDBOX_WORDS} they {', '.join(rights)}." if rights else ""


def why_not_read(
    path: str, places: GuardedPlaces | None, denied: Sequence[str], readable: Sequence[str]
) -> str | None:
    """The reason why a path must not be read, or None if it may be. `denied` are closed, and `readable` open within them."""
    closed = [
        place
        for place in denied
        if is_within(path, place)
        and not any(is_within(path, one) and is_within(one, place) for one in readable)
    ]
    if closed:
        return f"{closed[0]} must not be read"
    place = None if places is None else places.why_not_read(path, readable)
    return None if place is None else str(place)


def unpublished_in(
    directory: str,
    places: GuardedPlaces,
    roots: Sequence[str],
    *,
    denied: Sequence[str],
    masked: Sequence[str],
    readable: Sequence[str],
) -> Callable[[str, bool], bool]:
    """Returns a function that tells whether ralph must not commit a file in `directory`, by its path without links and whether
    HEAD has it: commands, or without a sandbox ralph's own tools, must not read it. `denied` and `readable` are as in
    `why_not_read`; `masked` is closed without exception. Where commands may write (`roots`), they may also change what HEAD
    has. Elsewhere that does not count: they can make a commit that names a file whose content they lack.
    """
    opened = places.open_of(roots)
    near = places.in_or_around(directory)
    readable = (*readable, *opened)
    named = {*places.given, *places.shown, *denied, *masked, *(one.path for one in near.found)}

    @cache
    def answers(path: str) -> tuple[bool, bool]:
        if is_within_any(path, masked):
            return True, True
        is_unread = why_not_read(path, near, denied, readable) is not None
        return is_unread, is_unread and not is_within_any(path, opened)

    def is_unpublished(path: str, is_in_head: bool) -> bool:
        # What is not named has the answer of its directory: there may be 100,000 files.
        return answers(path if path in named else f"{path.rpartition('/')[0]}/")[is_in_head]

    return is_unpublished
