"""The permission modes. `ralph/permissions/` decides about calls by them. No I/O happens here.

Ralph never asks a person for permission. If a mode makes Claude Code ask the user, ralph allows everything in this
mode, and a notice says so. In the mode `dontAsk`, a call runs only if an allow rule covers it.
"""

from __future__ import annotations

import enum


class PermissionMode(enum.StrEnum):
    """The permission modes. They have the same names as in Claude Code."""

    PLAN = "plan"
    BYPASS = "bypassPermissions"
    AUTO = "auto"
    DEFAULT = "default"
    ACCEPT_EDITS = "acceptEdits"
    DONT_ASK = "dontAsk"


_LONGEST_SHOWN = 30
_ASKING = (PermissionMode.DEFAULT, PermissionMode.ACCEPT_EDITS)


def permission_mode(text: str) -> PermissionMode:
    """The permission mode with this name. Raises ValueError if ralph does not support such a mode. The caller puts
    the option's name before the error's text.
    """
    try:
        return PermissionMode(text)
    except ValueError:
        pass
    shown = repr(text) if len(text) <= _LONGEST_SHOWN else f"a text of {len(text):,} characters"
    raise ValueError(f"must be one of {', '.join(PermissionMode)}, not {shown}") from None


def mode_notice(mode: PermissionMode) -> str | None:
    """A notice for people if the mode does not do what its name suggests, otherwise None."""
    if mode in _ASKING:
        return f"permission mode {mode}: nobody is asked here, and every tool of the run may be used"
    return None
