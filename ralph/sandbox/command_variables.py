"""Makes the environment variables of commands in the sandbox, and the directory where these commands keep packages
that they have downloaded.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ralph.machine.short_digest import short_digest
from ralph.places.table import CACHES

if TYPE_CHECKING:
    from collections.abc import Mapping

# Sockets of other programs that act for the user: agents with keys, the desktop, containers.
_SOCKET_VARIABLES = ("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "DOCKER_HOST")


def command_variables(
    environment: Mapping[str, str], *, temporary: str, cache: str, gives_sockets: bool
) -> dict[str, str]:
    """The environment of a command, made from `environment`. Adds the directories for temporary files and packages,
    as the command sees their paths. Removes the addresses of the user's agents, such as the SSH agent, unless
    `gives_sockets` is True.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if gives_sockets or not (name in _SOCKET_VARIABLES or name.startswith("DBUS_"))
    }
    return {**kept, **{name: cache + below for name, below in CACHES.items()}, "TMPDIR": temporary}


def package_cache(environment: Mapping[str, str], root: str) -> str | None:
    """The directory for the package caches of the checkout at `root`. Makes the directory if it is missing.

    None if this directory cannot be made or a symbolic link leads to it. A command of an earlier run could have made
    that link, and commands could then write to its target.
    """
    home, base = environment.get("HOME", ""), environment.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        if not home.startswith("/"):
            return None
        base = f"{home}/.cache"
    name = short_digest(os.fsencode(root), 16)
    path = f"{os.path.realpath(base)}/ralph/packages/{name}"
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103 - strings throughout
    except OSError:
        return None
    return path if os.path.realpath(path) == path else None
