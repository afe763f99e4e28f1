"""Recognises misspelt keys of permissions, hooks and sandbox in a settings file made for Claude Code. No I/O happens
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.permissions.hook_answers import EVENTS
from ralph.values.claude_file import CLAUDE_KEYS, misspelt, refused_keys

if TYPE_CHECKING:
    from collections.abc import Iterable

TOP = ("permissions", "hooks", "sandbox", "disableAllHooks")
"""The top-level keys that ask for a protection."""
_GUARDS_OF_PERMISSIONS = "deny ask allow defaultMode disableBypassPermissionsMode".split()
OF_PERMISSIONS = tuple(
    key.name.removeprefix("permissions.") for key in CLAUDE_KEYS if key.name.startswith("permissions.")
)
OF_SANDBOX = ("enabled", "network", "filesystem", "credentials", "failIfUnavailable")
# Behind the first two, Claude Code reads these only in files that are not of a repository, or they open something.
OF_NETWORK = tuple(
    """
    allowedDomains deniedDomains strictAllowlist allowManagedDomainsOnly allowUnixSockets allowAllUnixSockets
    allowLocalBinding allowMachLookup httpProxyPort socksProxyPort tlsTerminate
    """.split()
)
OF_FILESYSTEM = ("denyRead", "denyWrite", "allowWrite", "allowRead", "allowManagedReadPathsOnly", "disabled")
OF_HOOKS = ("matcher", "hooks")
OF_HOOK = ("type", "command", "timeout")
BLOCKING_EVENTS = refused_keys("hooks.")
"""Events of Claude Code whose hooks can refuse something, and that ralph does not support. A hook for such an event
is an error."""
KNOWN_EVENTS = (*EVENTS, *BLOCKING_EVENTS)
_PLACES = {
    **{key.lower(): f"permissions.{key}" for key in _GUARDS_OF_PERMISSIONS},
    **{event.lower(): f"hooks.{event}" for event in KNOWN_EVENTS},
}


def wrong_at_top(keys: Iterable[str]) -> tuple[str, str] | None:
    """The first top-level key that is misspelt, or belongs elsewhere, such as `deny`, and what is meant, or None."""
    keys = tuple(keys)
    misplaced = ((key, _PLACES[key.lower()]) for key in keys if key.lower() in _PLACES)
    return misspelt(keys, TOP) or next(misplaced, None)
