"""The sandbox of a run's commands as `planning.py` decides it. `CommandBox` makes it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.files.paths import is_within, is_within_any
from ralph.places.unpublished import why_not_read
from ralph.sandbox.bubblewrap import TEMPORARY
from ralph.sandbox.levels import AskedSockets, BoxLevel, Means, UnixSockets, box_level, unix_sockets

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ralph.places.places import GuardedPlaces
    from ralph.sandbox.levels import Net

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
    unchanged: tuple[str, ...] = ()
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
