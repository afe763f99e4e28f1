"""The settings of a run that a driver may change while the run is under way.

A driver is a program that controls ralph over standard input and output. The agent reads these settings.
"""

from __future__ import annotations

from ralph.values.permission_mode import PermissionMode, why_refused


class RunControls:
    def __init__(
        self,
        auto_retry: bool = True,
        model: str | None = None,
        permission_mode: PermissionMode = PermissionMode.BYPASS,
        stays_in_plan: bool = False,
    ) -> None:
        self.auto_retry = auto_retry
        """False if failed requests are not retried."""
        self.model = model
        """The model that the driver has requested for the next requests. None if it has requested none since the last
        call of `take_requested_model`."""
        self.permission_mode = permission_mode
        """The permission mode for the next tool calls."""
        self.stays_in_plan = stays_in_plan
        """True if the command line chose plan mode. A driver cannot change the mode then."""

    def why_refused(self, tool: str) -> str | None:
        """The reason for refusing a call of this tool, written for the model. None if the call may run."""
        return why_refused(self.permission_mode, tool)

    def take_requested_model(self) -> str | None:
        """Returns the model that the driver requested, and clears the request."""
        requested, self.model = self.model, None
        return requested
