"""The models that a driver can choose from, once the session is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.run.wiring import why_uncountable

if TYPE_CHECKING:
    from ralph.retry.roster import Roster
    from ralph.settings.tables import Settings
    from ralph.values.permission_mode import PermissionMode
    from ralph.values.redaction import Redactor


class ModelChoice:
    def __init__(self, roster: Roster, settings: Settings, redactor: Redactor) -> None:
        self._roster = roster
        self._settings = settings
        self._redactor = redactor

    def choose(self, requested: str | None) -> str:
        """A target's name, else the model's; None: the first target's. Raises ValueError for one that cannot be had, or
        not within the budget.
        """
        if requested is not None and self._redactor.redact(requested) != requested:
            # It would stand in the journal, and in every result as the name of what was paid for.
            raise ValueError('"model" holds a credential, not a model\'s name')
        target = self._roster.find(requested)
        problem = why_uncountable(target, self._settings)
        if problem is not None:
            raise ValueError(problem)
        return target.name if target in self._roster.targets else target.model

    @property
    def serving(self) -> str:
        """The name of the target that is asked at present."""
        return self._roster.target.name

    def introduction(self, mode: PermissionMode) -> dict[str, Any]:
        """The answer to `initialize`."""
        from ralph.run.introduction import introduction  # noqa: PLC0415 - a driver asks once

        return introduction(self._roster, mode.value)
