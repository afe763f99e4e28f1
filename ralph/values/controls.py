"""The settings that a driver may change during a run. A driver is a program that controls ralph over standard input
and output. The agent reads these settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.values.permission_mode import PermissionMode, mode_notice, permission_mode

if TYPE_CHECKING:
    from collections.abc import Callable


class ModeFixedError(ValueError):
    """A driver requested another permission mode, but the run was started in the mode `plan`. This mode cannot be
    changed during a run.
    """


class RunControls:
    def __init__(
        self,
        *,
        auto_retry: bool = True,
        model: str | None = None,
        permission_mode: PermissionMode = PermissionMode.BYPASS,
        stays_in_plan: bool = False,
        permissions_are_asked: bool = False,
    ) -> None:
        self.auto_retry = auto_retry
        """False if failed requests are not retried."""
        self.model = model
        """The model that the driver has requested for the next requests. None if there is no such request, or after
        `take_requested_model` has returned it."""
        self.permission_mode = permission_mode
        """The permission mode for the next tool calls."""
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
        caller puts the name of the field before the error's text.
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
