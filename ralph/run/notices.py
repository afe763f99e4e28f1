"""Notices for people about surprising facts of a run: limits, tools, credentials, targets. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.values.limits import LimitSettings
from ralph.values.permission_mode import is_permitted
from ralph.values.tool_choice import TOOL_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ralph.conversation.session import Session
    from ralph.conversation.target import Target
    from ralph.prompt.system_prompt import PromptParts
    from ralph.retry.roster import Roster
    from ralph.run.wiring import Surroundings
    from ralph.settings.tables import Settings
    from ralph.values.permission_mode import PermissionMode


def cut_notices(parts: PromptParts) -> Iterator[str]:
    """Notices about instruction files that are too long."""
    for instructions in parts.instructions:
        if instructions.was_cut:
            yield f"{instructions.path} was cut: only 32 KB of project instructions are read"


def roster_notices(roster: Roster, targets: Sequence[Target], old: Session | None) -> Iterator[str]:
    """Notices about requests that differ from earlier ones, or from the options. `old`: the session that is resumed."""
    for name in roster.changed:
        yield f"{name}: requests change from here on, as the settings ask for something else than before"
    yield from _lost_notice(roster, old)
    yield from _effort_notices(targets)


def _lost_notice(roster: Roster, old: Session | None) -> tuple[str, ...]:
    """A notice about targets that the session had and this run lacks: a fallback may be missing when it is needed."""
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
    """A notice if no limit is set, because nobody watches an unattended run."""
    if settings.limits != LimitSettings():
        return ()
    return ("no limit is set: this run goes on until it is done (--max-time 2h would end it)",)


def tools_notice(around: Surroundings, names: Sequence[str], mode: PermissionMode) -> tuple[str, ...]:
    """A notice that lists the tools of a run that lacks some of them. `names`: the tools that the run offers."""
    usable = [name for name in names if is_permitted(mode, name)]
    if len(usable) == len(TOOL_NAMES):
        return ()
    limits = around.settings.enabled_tools
    why = [around.settings.origins["tools"]] if len(limits) < len(TOOL_NAMES) else []
    if not all(is_permitted(mode, name) for name in limits):
        why.append(f"permission mode {mode}")
    if {name for name in limits if is_permitted(mode, name)} - set(usable):
        why.append("as the session had them before; --tools default gives all of them")
    return (f"tools of this run: {', '.join(usable) or 'none'} ({'; '.join(why)})",)


def withheld_notice(around: Surroundings) -> tuple[str, ...]:
    """A notice about variables that are withheld from tools. It explains a failure of commands that need them."""
    withheld = around.environment.keys() - around.tools_environment.keys()
    names = sorted(name for name in withheld if not name.startswith("ANTHROPIC_"))
    if not names:
        return ()
    listed = ", ".join(names)
    return (f"kept from tools, as they look like credentials: {listed} (--pass-env NAME lets one through)",)


def _effort_notices(targets: Sequence[Target]) -> Iterator[str]:
    """Notices about requested options that are not sent, because the model is known to refuse them."""
    for target in targets:
        if target.effort is not None and target.facts is not None and not target.facts.takes_effort:
            yield f"{target.model} takes no effort setting; it is left out"
