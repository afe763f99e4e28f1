"""Sandboxes of commands for tests, with given means of confinement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.places.gather import gather_places
from ralph.sandbox.box_plan import BoxPlan
from ralph.sandbox.command_box import CommandBox

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.sandbox.levels import Means


def box_of(
    means: Means, roots: Sequence[object], environment: Mapping[str, str] | None = None, **plan: Any
) -> CommandBox:
    """The sandbox of commands that may write `roots`. `plan` has fields of `BoxPlan`."""
    work, variables = [*map(str, roots)], environment or {}
    made = BoxPlan(means, **plan)
    return CommandBox(made, work, variables, lambda: gather_places(work, variables, given=made.given))
