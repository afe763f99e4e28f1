"""Decides whether ralph lacks a safeguard that a driver requested, such as a hook or a permission mode. No I/O
happens here.

Ralph does no work while a requested safeguard is missing. A hook that is never called may have been the only
protection against a command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.run.driven.control_lines import in_short
from ralph.run.driven.driver_setup import NOT_OFFERED
from ralph.run.driven.hooks import hook_table
from ralph.values.controls import PermissionMode

if TYPE_CHECKING:
    from collections.abc import Mapping

# Keys of `initialize` that request a safeguard. Names are compared without case and underscores. Agents are no
# safeguard, but each of them may be limited to tools, and a task that counts on them goes wrong.
_GUARDS = frozenset(
    """
    canusetool permissionprompttool permissionprompttoolname permissionprompts permissions permissionmode allowedtools
    disallowedtools tools sandbox settings managedsettings agents
    """.split()
)


class MissingGuard(Struct, frozen=True):
    for_good: str | None = None
    """The reason why a safeguard that `initialize` requested is missing, or None. It remains missing until the
    process ends."""
    until_a_mode: str | None = None
    """The reason why the requested permission mode is not in force, or None. A later request for a supported mode
    clears it."""

    @property
    def reason(self) -> str | None:
        """The reason why ralph must not work on any message, or None if no safeguard is missing."""
        return self.for_good or self.until_a_mode


def after_initialize(missing: MissingGuard, fields: Mapping[str, object]) -> MissingGuard:
    """Finds the safeguards that an `initialize` request asks for and that ralph does not have. Returns the new value,
    in which these safeguards are missing.
    """
    if missing.for_good is not None:
        return missing
    guards = [name for name, value in fields.items() if _is_guard(name) and _asks_for_something(value)]
    if not guards:
        return _after_hooks(missing, fields)
    names = ", ".join(sorted(map(in_short, guards)))
    return replace(
        missing,
        for_good=(
            f"initialize asked for {names}, which ralph cannot honour: nothing runs without a guard that was asked "
            "for. Start ralph again without it, and limit tools by its options"
        ),
    )


def after_failed_initialize(missing: MissingGuard, fields: Mapping[str, object], reason: str) -> MissingGuard:
    """The new value after ralph refused an `initialize` request. `reason` says why it refused the request. The
    request's hooks are missing, because they were not registered. Requested features that ralph does not offer are
    missing too.
    """
    missing = after_initialize(missing, fields)
    if missing.for_good is not None:
        return missing
    if any(fields.get(name) for name in NOT_OFFERED):
        # TypeScript's SDK sends the first message without waiting for the answer, and keeps the error to itself.
        return replace(missing, for_good=f"{reason}. Nothing runs without what was asked for")
    if not any(name.lower() == "hooks" and _asks_for_something(value) for name, value in fields.items()):
        return missing
    return replace(
        missing,
        for_good=f"the hooks of a refused initialize are not registered, so that nothing runs: {reason}",
    )


def _after_hooks(missing: MissingGuard, fields: Mapping[str, object]) -> MissingGuard:
    """Marks every hook that ralph cannot call as missing. ralph cannot call a hook with an unknown event or a faulty
    matcher.
    """
    asked = {name: value for name, value in fields.items() if name.lower() == "hooks"}
    for name, value in asked.items():
        try:
            if name != "hooks" and _asks_for_something(value):
                raise ValueError(f"initialize: {in_short(name)} must be written hooks")  # noqa: TRY301 - one way out
            hook_table(value)
        except ValueError as error:
            return replace(missing, for_good=f"{error}. Nothing runs without a guard that was asked for")
    return missing


def after_refused_mode(missing: MissingGuard, reason: str, mode: PermissionMode) -> MissingGuard:
    """Returns `missing`, updated after ralph refused a permission mode that the driver requested. `reason` says why
    ralph refused it, and `mode` is the mode that stays in force. The refused mode becomes a missing safeguard unless
    `mode` is `plan`, because no mode is stricter than `plan`.
    """
    if mode is PermissionMode.PLAN:
        return missing
    return replace(
        missing,
        until_a_mode=(
            f"set_permission_mode was refused: {reason}. Nothing runs without a mode that was asked for: set one "
            "that ralph has"
        ),
    )


def after_set_mode(missing: MissingGuard) -> MissingGuard:
    return replace(missing, until_a_mode=None)


def _is_guard(name: str) -> bool:
    return name.lower().replace("_", "") in _GUARDS


def _asks_for_something(value: object) -> bool:
    """Whether the value of a key in a request asks for anything. `{"PreToolUse": []}` asks for nothing, because it
    registers no hook.
    """
    return any(value.values()) if isinstance(value, dict) else bool(value)
