"""Notices that tell people unexpected facts about a run: its limits, tools, credentials and targets. No I/O happens
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.values.limits import LimitSettings
from ralph.values.permission_mode import is_permitted
from ralph.values.tool_choice import TOOL_NAMES, is_pattern, tool_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.conversation.session import Session
    from ralph.conversation.target import Target
    from ralph.retry.roster import Roster
    from ralph.run.wiring import Surroundings
    from ralph.settings.tables import Settings
    from ralph.values.permission_mode import PermissionMode


def roster_notices(roster: Roster, targets: Sequence[Target], old: Session | None) -> Iterator[str]:
    """Notices about requests that differ from the requests of the old session, and about an effort setting that is
    not sent. `old` is the session that the run resumes, or None.
    """
    for name in roster.changed:
        yield f"{name}: requests change from here on, as the settings ask for something else than before"
    yield from _lost_notice(roster, old)
    yield from _effort_notices(targets)


def _lost_notice(roster: Roster, old: Session | None) -> tuple[str, ...]:
    """A notice about the old session's targets that this run does not have. The run cannot fall back to these
    targets.
    """
    models = {target.model for target in roster.targets}
    known = old.shapes.items() if old is not None else ()
    lost = [name for name, shape in known if name not in roster.names and shape.model not in models]
    if not lost:
        return ()
    names = ", ".join(lost)
    return (
        f"asked in this session before, and not in this run: {names} (--config or --fallback-model would add it)",
    )


def no_limit_notice(settings: Settings) -> tuple[str, ...]:
    """A notice if the user has set no limit. Nobody watches an unattended run, so it could go on without end."""
    if settings.limits != LimitSettings():
        return ()
    return ("no limit is set: this run goes on until it is done (--max-time 2h would end it)",)


def tools_notice(
    around: Surroundings, names: Sequence[str], mode: PermissionMode, patterns: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """A notice that lists the usable tools with their patterns, and says why the others are missing. Empty if every call
    of every tool may run.

    `names` are the tools that the run offers to the model. The permission mode `mode` may forbid some of them.
    `patterns` are the lists of tools with patterns (`patterns_of_tools`).
    """
    usable = [name for name in names if is_permitted(mode, name)]
    if set(usable).issuperset(TOOL_NAMES) and not patterns:
        return ()
    limits = around.settings.enabled_tools
    origin = around.settings.origins["tools"]
    is_narrowed = len(limits) < len(TOOL_NAMES) or (patterns and origin != "default")
    why = [origin] if is_narrowed else []
    if not all(is_permitted(mode, name) for name in limits):
        why.append(f"permission mode {mode}")
    if {name for name in limits if is_permitted(mode, name)} - set(usable) or not why:
        why.append("as the session had them before; --tools default gives all of them")
    allowed = patterns.get("allowed", ())
    shown = [entry for name in usable for entry in _entries_of(name, allowed)]
    never = [entry for entry in patterns.get("disallowed", ()) if tool_of(entry) in usable]
    listed = ", ".join(shown) or "none"
    if never:
        listed += f", but not {', '.join(never)}"
    return (f"tools of this run: {listed} ({'; '.join(why)})",)


def _entries_of(tool: str, allowed: Sequence[str]) -> Sequence[str]:
    """The entries for one tool in a list of allowed tools: the tool's patterns, or the tool's name if all its calls
    are allowed.
    """
    entries = [entry for entry in allowed if tool_of(entry) == tool]
    return entries if entries and all(map(is_pattern, entries)) else [tool]


def withheld_notice(around: Surroundings) -> tuple[str, ...]:
    """A notice that names environment variables which tools do not get. Without the notice, users would not know why
    a command that needs such a variable fails.
    """
    withheld = around.environment.keys() - around.tools_environment.keys()
    names = sorted(name for name in withheld if not name.startswith("ANTHROPIC_"))
    if not names:
        return ()
    listed = ", ".join(names)
    return (f"kept from tools, as they look like credentials: {listed} (--pass-env NAME lets one through)",)


def _effort_notices(targets: Sequence[Target]) -> Iterator[str]:
    """Notices about models that are known to refuse the effort setting, so that ralph does not send it to them."""
    for target in targets:
        if target.effort is not None and target.facts is not None and not target.facts.takes_effort:
            yield f"{target.model} takes no effort setting; it is left out"
