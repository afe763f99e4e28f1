"""The settings that a driver may change during a run, the permission mode among them. A driver is a program that controls
ralph over standard input and output. The agent reads these settings. `ralph/permissions/` decides about calls by the mode.

Ralph never asks a person for permission. If a mode makes Claude Code ask the user, ralph allows everything in this
mode, and a notice says so. In the mode `dontAsk`, a call runs only if an allow rule covers it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_TITLE = 200
"""The maximum number of characters in a title of a session that the user or a driver gives."""


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
    """The permission mode with this name. Raises ValueError if ralph has no such mode. The caller puts the option's
    name before the error's text.
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


class ModeFixedError(ValueError):
    """A driver requested another permission mode, but the run was started in the mode `plan`. This mode cannot be
    changed during a run.
    """


class RunControls:
    def __init__(
        self,
        *,
        auto_retry: bool = True,
        permission_mode: PermissionMode = PermissionMode.BYPASS,
        stays_in_plan: bool = False,
        permissions_are_asked: bool = False,
    ) -> None:
        self.auto_retry = auto_retry
        self.model: str | None = None
        """The model that the driver has requested for the next requests. None without such a request, and after
        `take_requested_model` has returned it."""
        self.permission_mode = permission_mode
        self.stays_in_plan = stays_in_plan
        """True if the command line chose plan mode. In that case, a driver cannot change the mode."""
        self.may_continue: Callable[[], bool] = lambda: False
        """Returns whether this process may get another task when the present one has ended."""
        self._permissions_are_asked = permissions_are_asked
        """True if a driver is asked about calls that the mode does not permit, or if such calls are refused."""

    @property
    def mode_notice(self) -> str | None:
        """A notice for people if the permission mode does not do what its name suggests, otherwise None."""
        return None if self._permissions_are_asked else mode_notice(self.permission_mode)

    def choose_mode(self, name: str) -> PermissionMode:
        """Sets the permission mode with this name, and returns it.

        Raises ValueError if there is no such mode, or if the command line chose a mode that cannot be changed. The
        caller puts the field's name before the error's text.
        """
        mode = permission_mode(name)
        if self.stays_in_plan and mode is not PermissionMode.PLAN:
            raise ModeFixedError(
                "the run was started with --permission-mode plan and stays in it; start another one for the work"
            )
        self.permission_mode = mode
        return mode

    def take_requested_model(self) -> str | None:
        """Returns the model that the driver requested, or None. After that, no model is requested any more."""
        requested, self.model = self.model, None
        return requested
