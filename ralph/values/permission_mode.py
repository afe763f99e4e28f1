"""The permission modes, and the tool calls that each mode allows. No I/O happens here.

Ralph never asks a person for permission. If a mode makes Claude Code ask the user, ralph allows everything in this
mode, and a notice says so. In the mode `dontAsk`, a call runs only if an allow rule covers it. The code in
`ralph/permissions/` checks that.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ralph.values.tool_calls import FILE_TOOLS
from ralph.values.tool_choice import READ_ONLY

if TYPE_CHECKING:
    from collections.abc import Collection


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


def is_permitted(mode: PermissionMode, tool: str) -> bool:
    return mode is not PermissionMode.PLAN or tool in READ_ONLY


def must_ask(mode: PermissionMode, tool: str, allowed: Collection[str]) -> bool:
    """Whether the mode requires that somebody is asked before a call of this tool runs. `allowed` holds the tools
    that the user allowed by name, without a pattern.
    """
    # In dontAsk, rules have denied what nobody allowed before.
    if mode in (PermissionMode.BYPASS, PermissionMode.DONT_ASK) or tool in READ_ONLY or tool in allowed:
        return False
    return not (mode is PermissionMode.ACCEPT_EDITS and tool in FILE_TOOLS)


def why_refused(mode: PermissionMode, tool: str) -> str | None:
    """The reason why the mode refuses a call of the tool, written for the model. None if the call may run."""
    if is_permitted(mode, tool):
        return None
    return (
        f"This call was not run: the permission mode is {mode}, in which only {', '.join(READ_ONLY)} run. "
        "Look at things and say what should be done."
    )


def mode_notice(mode: PermissionMode) -> str | None:
    """A notice for people if the mode does not do what its name suggests, otherwise None."""
    if mode in _ASKING:
        return f"permission mode {mode}: nobody is asked here, and every tool of the run may be used"
    return None
