"""Says which protections a sandbox provides on this machine, and why the others are missing. No I/O happens here.
`detection.py` finds out what the machine supports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ralph.values.events import SOCKETS_IN_FILES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.sandbox.kernel.landlock import Support

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
