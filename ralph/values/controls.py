"""The settings of a run that a driver may change while the run is under way.

A driver is a program that controls ralph over standard input and output. The agent reads these settings.
"""

from __future__ import annotations

from msgspec import Struct

from ralph.values.permission_mode import PermissionMode, why_refused


class NarrowedTools(Struct, frozen=True):
    """The tools that a command's file leaves for its task. It takes tools away, and gives none."""

    command: str
    names: frozenset[str]


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

        self.narrowed: NarrowedTools | None = None
        """The tools that the command of the current task leaves. None if it leaves all."""

    def why_refused(self, tool: str) -> str | None:
        """The reason for refusing a call of this tool, written for the model. None if the call may run."""
        why = why_refused(self.permission_mode, tool)
        if why is None and self.narrowed is not None and tool not in self.narrowed.names:
            names = ", ".join(sorted(self.narrowed.names)) or "no tool"
            return f"This call was not run: the command {self.narrowed.command} allows {names} alone."
        return why

    def take_requested_model(self) -> str | None:
        """Returns the model that the driver requested, and clears the request."""
        requested, self.model = self.model, None
        return requested
