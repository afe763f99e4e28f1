"""The settings that a driver may change during a run. A driver is a program that controls ralph over standard input
and output. The agent reads these settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.values.permission_mode import PermissionMode, mode_notice, must_ask, permission_mode, why_refused

if TYPE_CHECKING:
    from collections.abc import Collection


class ModeFixedError(ValueError):
    """A driver requested another permission mode, but the run was started in the mode `plan`. This mode cannot be
    changed during a run.
    """


class NarrowedTools(Struct, frozen=True):
    """The tools that a command file allows for its task. Such a list can only remove tools, never add any."""

    command: str
    names: frozenset[str]


class RunControls:
    def __init__(
        self,
        *,
        auto_retry: bool = True,
        model: str | None = None,
        permission_mode: PermissionMode = PermissionMode.BYPASS,
        stays_in_plan: bool = False,
        permissions: str | None = None,
        allowed: Collection[str] = (),
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
        self._permissions = permissions
        """Some permission modes do not permit a call without asking. "driver" means that the driver is asked about
        the call. "nobody" means that the call is refused. None means that the call is permitted."""
        self._allowed = allowed
        """The tools that the user allowed by name."""
        self.narrowed: NarrowedTools | None = None
        """The tools that the current task's command file allows. None if the file does not limit the tools."""

    @property
    def mode_notice(self) -> str | None:
        """A notice for people if the permission mode does not do what its name suggests, otherwise None."""
        return None if self._permissions is not None else mode_notice(self.permission_mode)

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

    def why_refused(self, tool: str) -> str | None:
        """The reason why a call of this tool is refused, written for the model. None if the call may run."""
        if self.narrowed is not None and tool not in self.narrowed.names:
            names = ", ".join(sorted(self.narrowed.names)) or "no tool"
            return f"This call was not run: the command {self.narrowed.command} allows {names} alone."
        refused = why_refused(self.permission_mode, tool)
        if refused is not None or self._permissions != "nobody":
            return refused
        if not must_ask(self.permission_mode, tool, self._allowed):
            return None
        return (
            f"This call was not run: in permission mode {self.permission_mode} it needs a permission, and nobody is "
            "asked here (--permission-prompts none)."
        )

    def take_requested_model(self) -> str | None:
        """Returns the model that the driver requested, or None. After that, no model is requested any more."""
        requested, self.model = self.model, None
        return requested
