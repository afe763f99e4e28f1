"""The settings that a driver may change while a run is at work. The agent reads them; nothing is decided here."""

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
        """False: a failed request is not retried."""
        self.model = model
        """The model for the next requests; None: the current model."""
        self.permission_mode = permission_mode
        """The permission mode for the next calls. It never allows a tool that the run does not have."""
        self.stays_in_plan = stays_in_plan
        """True: the command line chose plan mode, so a driver cannot leave it."""

    def why_refused(self, tool: str) -> str | None:
        """The reason for refusing a call of this tool now, for the model; None: it may run."""
        return why_refused(self.permission_mode, tool)

    def take_requested_model(self) -> str | None:
        """Returns the requested model, and forgets it."""
        requested, self.model = self.model, None
        return requested
