"""The session's settings in a driver's `initialize`, hooks among them, and the safeguards that ralph lacks.

No work is done while a requested safeguard is missing: a hook that is never called may have been the only protection.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert, field
from msgspec.structs import replace

from ralph.driven.control_lines import in_short
from ralph.permissions.hook_answers import EVENTS, OF_TOOLS
from ralph.permissions.hook_matcher import parse_matcher
from ralph.run.options import RequestedReport, RunOptions
from ralph.values.controls import LONGEST_TITLE, PermissionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.permissions.hook_matcher import Matcher


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
# Keys that ask for what ralph does not have. An empty value asks for nothing.
NOT_OFFERED = ("mcpServers", "plugins", "toolAliases", "planModeInstructions")

# Keys of `initialize` that request a safeguard. Names are compared without case and underscores. Agents are no
# safeguard, but each of them may be limited to tools, and a task that counts on them goes wrong.
_GUARDS = frozenset(
    """
    canusetool permissionprompttool permissionprompttoolname permissionprompts permissions permissionmode allowedtools
    disallowedtools tools sandbox settings managedsettings agents
    """.split()
)


_WITHOUT = ". Nothing runs without a guard that was asked for"


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

    def matching(self, event: str, covers: Callable[[Matcher], bool]) -> dict[str, float]:
        """The ids of the hooks to call for an event, each with its time limit in seconds. `covers` judges a matcher."""
        found: dict[str, float] = {}
        for each in self.by_event.get(event, ()):
            if covers(parse_matcher(each.matcher if event in OF_TOOLS else None)):
                for callback_id in each.callback_ids:
                    found.setdefault(callback_id, each.timeout or DEFAULT_S)
        return found

    @property
    def never_called(self) -> tuple[str, ...]:
        """The events whose hooks ralph never calls, because these events do not occur in ralph."""
        return tuple(name for name in self.by_event if name in OBSERVING)


def hook_table(value: object) -> HookTable:
    """Raises ValueError for an unknown event, and for a matcher that can match no call. None means no hooks."""
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


class _InitializeRequest(Struct, frozen=True, rename="camel"):
    system_prompt: str | tuple[str, ...] | None = None
    append_system_prompt: str | None = None
    json_schema: dict[str, Any] | None = None
    title: str | None = None
    sdk_mcp_servers: tuple[str, ...] | None = None


class DriverSetup(Struct, frozen=True):
    system_prompt: str | None = None
    """The text that replaces ralph's system prompt. None keeps it, "" removes it."""
    append_system_prompt: str | None = None
    json_schema: dict[str, Any] | None = None
    """The JSON Schema of the final report that the driver requires, or None."""
    hooks: HookTable = field(default_factory=HookTable)
    title: str | None = None
    """The title of the session in one line, or None. A title on the command line takes precedence."""
    servers: tuple[str, ...] = ()
    """The names of the MCP servers in the driver's own process."""

    @property
    def shapes_requests(self) -> bool:
        """Whether the setup changes requests to the model, which is possible only before the session is open."""
        return bool(self.servers) or (self.system_prompt, self.append_system_prompt, self.json_schema) != (
            *(None, None, None),
        )

    def applied_to(self, options: RunOptions) -> RunOptions:
        """The options of the run with the driver's settings, which replace those of the command line, except the
        title.
        """
        report = None if self.json_schema is None else RequestedReport(self.json_schema)
        return replace(
            options,
            system_prompt=options.system_prompt if self.system_prompt is None else self.system_prompt,
            append_system_prompt=self.append_system_prompt or options.append_system_prompt,
            report=report or options.report,
            title=options.title or self.title,
        )


def driver_setup(fields: Mapping[str, Any]) -> DriverSetup:
    """Decodes the fields of `initialize`. Raises ValueError for what ralph does not support. For no system prompt, the
    TypeScript SDK sends `[""]` as `systemPrompt`, Python's uses `--system-prompt ""`.
    """
    refused = [name for name in NOT_OFFERED if fields.get(name)]
    if refused:
        raise ValueError(f"initialize: ralph does not offer {', '.join(refused)}; leave that out")
    try:
        asked = convert(dict(fields), _InitializeRequest)
    except ValidationError as error:
        raise ValueError(f"initialize: {error}") from error
    system = asked.system_prompt
    text = "\n\n".join(part for part in system if part) if isinstance(system, tuple) else system
    return DriverSetup(
        text,
        asked.append_system_prompt or None,
        None if asked.json_schema is None else _checked_schema(asked.json_schema),
        hook_table(fields.get("hooks")),
        " ".join((asked.title or "").split())[:LONGEST_TITLE] or None,
        asked.sdk_mcp_servers or (),
    )


def _checked_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError if reports cannot be checked against it."""
    from ralph.run.report_schema import read_schema  # noqa: PLC0415 - a schema library is slow to load

    try:
        return read_schema(json.dumps(schema), ".")
    except ValueError as error:
        raise ValueError(f"initialize: jsonSchema: {error}") from error


class MissingGuard:
    """Remembers which safeguard ralph lacks although a driver has asked for it."""

    def __init__(self) -> None:
        self._for_good: str | None = None
        self._until_a_mode: str | None = None

    @property
    def reason(self) -> str | None:
        """The reason why ralph must not work on any message, or None if no safeguard is missing."""
        return self._for_good or self._until_a_mode

    def refuse(self, fields: Mapping[str, object]) -> None:
        """Raises ValueError if an `initialize`, now or before, asks for safeguards that ralph lacks. They stay
        missing.
        """
        asked = [name for name, value in fields.items() if _asks_for_something(value)]
        guards = [name for name in asked if name.lower().replace("_", "") in _GUARDS]
        if guards and self._for_good is None:
            names = ", ".join(sorted(map(in_short, guards)))
            self._for_good = (
                f"initialize asked for {names}, which ralph cannot honour: nothing runs without a guard that was asked "
                "for. Start ralph again without it, and limit tools by its options"
            )
        for name, value in fields.items():
            if name.lower() == "hooks" and self._for_good is None:
                try:
                    if name != "hooks" and _asks_for_something(value):
                        self._for_good = f"initialize: {in_short(name)} must be written hooks{_WITHOUT}"
                    hook_table(value)
                except ValueError as error:
                    self._for_good = self._for_good or f"{error}{_WITHOUT}"
        if self._for_good is not None:
            raise ValueError(self._for_good)

    def fail(self, fields: Mapping[str, object], reason: str) -> None:
        """Notes a refused `initialize`: its hooks are not registered, and what it asked for is missing."""
        try:
            self.refuse(fields)
        except ValueError:
            return
        if any(fields.get(name) for name in NOT_OFFERED):
            # TypeScript's SDK sends the first message without waiting for the answer, and keeps the error to itself.
            self._for_good = f"{reason}. Nothing runs without what was asked for"
        elif any(name.lower() == "hooks" and _asks_for_something(value) for name, value in fields.items()):
            self._for_good = (
                f"the hooks of a refused initialize are not registered, so that nothing runs: {reason}"
            )

    def refuse_mode(self, reason: str, mode: PermissionMode) -> None:
        """Notes a permission mode that ralph refused. `mode` stays in force. If it is `plan`, nothing is missing: none
        is stricter.
        """
        if mode is not PermissionMode.PLAN:
            self._until_a_mode = (
                f"set_permission_mode was refused: {reason}. Nothing runs without a mode that was asked for: set one "
                "that ralph has"
            )

    def set_mode(self) -> None:
        self._until_a_mode = None


def _asks_for_something(value: object) -> bool:
    """Whether a value asks for anything: `{"PreToolUse": []}` registers no hook."""
    return any(value.values()) if isinstance(value, dict) else bool(value)
