"""The hooks that a driver registers in `initialize`. Decodes them, and finds the hooks for an event. No I/O happens
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct, ValidationError, convert, field

from ralph.permissions.hook_answers import EVENTS, OF_TOOLS
from ralph.permissions.hook_matcher import parse_matcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OBSERVING = frozenset(
    """
    SessionStart SessionEnd Setup Notification SubagentStart SubagentStop PreCompact PostCompact StopFailure
    InstructionsLoaded ConfigChange CwdChanged FileChanged WorktreeCreate WorktreeRemove TaskCreated TaskCompleted
    TeammateIdle PermissionDenied PostToolBatch Elicitation ElicitationResult MessageDisplay UserPromptExpansion
    """.split()
)
"""Events of Claude Code that do not occur in ralph. Ralph accepts hooks for them and never calls these hooks."""

DEFAULT_S = 600.0
"""The time limit in seconds of a hook that sets none, as in Claude Code's reference."""

_Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class HookMatcher(Struct, frozen=True):
    """The hooks that are called for one event. They can be limited to calls of certain tools."""

    callback_ids: Annotated[tuple[str, ...], Meta(min_length=1)] = field(name="hookCallbackIds")
    matcher: str | None = None
    """The names of tools, or a regular expression. None and "" mean all tools."""
    timeout: _Seconds | None = None
    on_failure: Literal["continue", "block"] | None = field(default=None, name="onFailure")
    """Accepted without effect, because a failed hook always refuses the call."""


class HookTable(Struct, frozen=True):
    """The hooks of a driver, by event."""

    by_event: Mapping[str, tuple[HookMatcher, ...]] = field(default_factory=dict)

    def matching(self, event: str, covers: Callable[[str | None], bool]) -> dict[str, float]:
        """The ids of the hooks to call for an event, each with its time limit in seconds. `covers` says whether a
        matcher is for the event.
        """
        found: dict[str, float] = {}
        for each in self.by_event.get(event, ()):
            if covers(each.matcher):
                for callback_id in each.callback_ids:
                    found.setdefault(callback_id, each.timeout or DEFAULT_S)
        return found

    @property
    def never_called(self) -> tuple[str, ...]:
        """The events whose hooks ralph never calls, because these events do not occur in ralph."""
        return tuple(name for name in self.by_event if name in OBSERVING)


def hook_table(value: object) -> HookTable:
    """Decodes the `hooks` of an `initialize` request. None means no hooks. Raises ValueError for an unknown event,
    and for a matcher that can match no call.
    """
    if value is None:
        return HookTable()
    try:
        by_event = convert(value, dict[str, tuple[HookMatcher, ...] | None])
    except ValidationError as error:
        raise ValueError(f"initialize: hooks: {error}") from error
    wanted = {name: matchers for name, matchers in by_event.items() if matchers}
    unknown = [name for name in wanted if name not in EVENTS and name not in OBSERVING]
    if unknown:
        raise ValueError(f"initialize: ralph has no hook {', '.join(unknown)}; it calls {', '.join(EVENTS)}")
    for name, matchers in wanted.items():
        for each in matchers if name in OF_TOOLS else ():
            try:
                parse_matcher(each.matcher)
            except ValueError as error:
                raise ValueError(
                    f"initialize: the matcher {each.matcher!r} of a hook cannot be kept: {error}"
                ) from error
    return HookTable(wanted)
