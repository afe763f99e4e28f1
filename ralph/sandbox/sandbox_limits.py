"""Adds the restrictions of a `sandbox` block for Claude Code to the settings of ralph's own sandbox. Never removes a
restriction. No I/O happens here. Runs apply the result to their commands, and a loop to its check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.sandbox.box_plan import CannotConfineError
from ralph.sandbox.network.allowed_hosts import PORTS, AllowedHost, allowed_hosts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.sandbox.sandbox_settings import SandboxSettings
    from ralph.values.claude_file import SandboxLimits


def restricted(wanted: SandboxSettings, limits: Sequence[tuple[str, SandboxLimits]]) -> SandboxSettings:
    """The settings `wanted` with the restrictions of files, by file names. Raises CannotConfineError if one cannot be kept."""
    for name, one in limits:
        wanted = _with_limits(wanted, name, one)
    for name, one in limits:  # after the lists of all files, which may leave a denied host out
        _refuse_denied(name, wanted, one.denied_hosts)
    return wanted


def _with_limits(wanted: SandboxSettings, name: str, limits: SandboxLimits) -> SandboxSettings:
    if wanted.mode == "off":
        raise CannotConfineError(
            f"{name}: {limits.keys[0]} cannot be kept with --sandbox off ([sandbox] mode): leave out one of them"
        )
    net, hosts = wanted.asked_net, wanted.allow_hosts
    if limits.hosts is not None and net != "off":
        hosts = _common(name, hosts if net == "proxy" else None, limits.hosts)
        net = "proxy" if any(not _is_network(host) for host in hosts) else "off"
    return replace(
        wanted,
        mode="strict" if limits.is_strict else wanted.mode,
        net=net,
        allow_hosts=() if net == "off" else hosts,
        read_deny=(*wanted.read_deny, *limits.read_deny),
    )


def _common(name: str, users: tuple[str, ...] | None, files: tuple[str, ...]) -> tuple[str, ...]:
    """The hosts that both the user (None: all) and the file allow. The user's networks stay: they only say where a name may lie."""
    try:
        allowed = allowed_hosts(files)
    except ValueError as error:
        raise CannotConfineError(f"{name}: sandbox.network.allowedDomains cannot be kept: {error}") from None
    if users is None:
        return tuple(host for host in files if not _is_network(host))
    of_user = allowed_hosts(users)
    networks = tuple(host for host in users if _is_network(host))
    both = (one for one in of_user.hosts if any(_is_part(one, other) for other in allowed.hosts))
    of_file = (one for one in allowed.hosts if any(_is_part(one, other) for other in of_user.hosts))
    return (*networks, *dict.fromkeys(one.entry for one in (*both, *of_file)))


def _is_part(one: AllowedHost, whole: AllowedHost) -> bool:
    is_below = one.name == whole.name or (whole.name.startswith(".") and one.name.endswith(whole.name))
    return is_below and (one.port == whole.port or (whole.port is None and one.port in PORTS))


def _is_network(host: str) -> bool:
    return bool(allowed_hosts((host,)).networks)


def _refuse_denied(name: str, wanted: SandboxSettings, denied: tuple[str, ...]) -> None:
    """Raises CannotConfineError if commands could reach a `denied` host: ralph can allow hosts, and not deny them."""
    if wanted.asked_net == "off":
        return
    reached = allowed_hosts(wanted.allow_hosts).hosts
    for one in denied:
        try:
            found = allowed_hosts((one,)).hosts
        except ValueError:  # such as `*`, which denies more than a name
            found = ()
        is_reached = not found or any(_overlap(found[0].name, host.name) for host in reached)
        if wanted.asked_net == "full" or is_reached:
            raise CannotConfineError(
                f"{name}: sandbox.network.deniedDomains: {one} cannot be denied alone; --net off denies every host, and "
                "--allow-host allows only others"
            )


def _overlap(one: str, other: str) -> bool:
    """Whether one of two names is the other, or a name below it. A name may begin with a dot, as in `AllowedHost`."""
    one, other = f".{one.lstrip('.')}", f".{other.lstrip('.')}"
    return one.endswith(other) or other.endswith(one)
