"""The answer to a driver's `initialize`: the models that it can choose, and the present permission mode.
Pure.

Readers look here instead of sending requests. Lists of what ralph does not have are empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.output.stream_json import OUTPUT_STYLE, READERS_WANT_VERSION
from ralph.settings.tables import EFFORTS
from ralph.values.endpoint import is_default

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.conversation.target import Target
    from ralph.retry.roster import Roster


def introduction(roster: Roster, permission_mode: str) -> dict[str, Any]:
    """The answer to `initialize`. `models` has every name that `set_model` takes for certain."""
    return {
        "commands": [],
        "agents": [],
        "models": [_model(target) for target in _choices(roster)],
        "account": _account(roster.first),
        "output_style": OUTPUT_STYLE,
        "available_output_styles": [OUTPUT_STYLE],
        "claude_code_version": READERS_WANT_VERSION,
        "current_permission_mode": permission_mode,
    }


def _choices(roster: Roster) -> Iterator[Target]:
    """The targets; without any in the settings also the models that Anthropic's own API is known to have."""
    for name in roster.names:
        yield roster.find(name)
    if roster.takes_any_model and is_default(roster.first.base_url):
        for alias, model in roster.aliases.items():
            if model.id != roster.first.model:
                yield roster.find(alias)


def _model(target: Target) -> dict[str, Any]:
    facts = target.facts
    takes_effort = facts is not None and facts.takes_effort
    window = facts.context_window if facts is not None else None
    about = f"{target.model}, a window of {window:,} tokens" if window is not None else target.model
    effort = {"supportedEffortLevels": list(EFFORTS)} if takes_effort else {}
    return {
        "value": target.name,
        "resolvedModel": target.model,
        "displayName": target.name,
        "description": about,
        "supportsEffort": takes_effort,
        **effort,
    }


def _account(first: Target) -> dict[str, str]:
    """The source of the credential; a bearer token is no key."""
    key = first.credentials[0] if first.credentials else None
    is_token = key is not None and key.header == "authorization"
    return {
        "tokenSource": key.source if key is not None and is_token else "none",
        "apiKeySource": key.source if key is not None and not is_token else "none",
        "apiProvider": "firstParty",
    }
