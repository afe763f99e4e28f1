"""The models from which a driver can choose once the session is open.

A driver is a program that controls ralph over standard input. The response to its request `initialize` lists the
models, and its request `set_model` selects one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.output.stream_json import OUTPUT_STYLE, READERS_WANT_VERSION
from ralph.prompt.commands import read_command
from ralph.prompt.frontmatter import as_text
from ralph.run.driven.context_usage import context_usage
from ralph.run.wiring import why_uncountable
from ralph.settings.tables import EFFORTS
from ralph.values.endpoint import ANTHROPIC, is_default
from ralph.values.vendors import vendor_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ralph.conversation.target import Target
    from ralph.prompt.commands import CommandFile, Library
    from ralph.retry.roster import Roster
    from ralph.run.driven.context_usage import ContextSizes
    from ralph.settings.tables import Settings
    from ralph.values.controls import PermissionMode
    from ralph.values.redaction import Redactor


def _no_sizes() -> ContextSizes:
    raise ValueError("the session is not open yet")


class AboutSession(Struct, frozen=True):
    """Facts about a session that a driver can request. The defaults apply before the session is open."""

    sizes: Callable[[], ContextSizes] = _no_sizes
    """Returns the sizes of the parts of the next request."""
    mcp_status: Callable[[], list[dict[str, Any]]] = list
    commands: tuple[dict[str, str], ...] = ()
    """The commands that a prompt can call, in the form of the response to `initialize`."""


class ModelChoice:
    def __init__(self, roster: Roster, settings: Settings, redactor: Redactor, about: AboutSession) -> None:
        self._about = about
        self._roster = roster
        self._settings = settings
        self._redactor = redactor

    def choose(self, requested: str | None) -> str:
        """The name of the requested target. If no target has that name, the name of the requested model.

        If `requested` is None, returns the name of the first target. Raises ValueError if the model is not available,
        if it is one of another vendor, if the name of the model contains a credential, or if a budget is set and the price of
        the model is unknown.
        """
        if requested is not None and self._redactor.redact(requested) != requested:
            # The journal and every result would contain it as the name of the model.
            raise ValueError('"model" holds a credential, not a model\'s name')
        target = self._roster.find(requested)
        elsewhere = vendor_elsewhere(target.model, target.base_url)
        if elsewhere is not None and target not in self._roster.targets:
            raise ValueError(
                f"{target.model} is a model of {elsewhere}, and this run asks {target.base_url}: name it at the start "
                "(--fallback-model), or in [[targets]]"
            )
        problem = why_uncountable(target, self._settings)
        if problem is not None:
            raise ValueError(problem)
        return target.name if target in self._roster.targets else target.model

    @property
    def serving(self) -> str:
        """The name of the target that requests currently go to."""
        return self._roster.target.name

    def introduction(self, mode: PermissionMode) -> dict[str, Any]:
        """The response to `initialize`. It lists the models and the options, so that the driver need not ask for
        them.

        `models` lists only names that `set_model` accepts. Lists of features that ralph does not have are empty.
        """
        return {
            "commands": list(self._about.commands),
            "agents": [],
            "models": [_model(target) for target in _choices(self._roster)],
            "account": _account(self._roster.first),
            "output_style": OUTPUT_STYLE,
            "available_output_styles": [OUTPUT_STYLE],
            "claude_code_version": READERS_WANT_VERSION,
            "current_permission_mode": mode.value,
            "hook_on_failure_supported": True,
        }

    def context_usage(self) -> dict[str, Any]:
        return context_usage(self._about.sizes())

    def mcp_status(self) -> list[dict[str, Any]]:
        return self._about.mcp_status()


def described_commands(library: Library) -> tuple[dict[str, str], ...]:
    """The commands that a prompt can call, in the form that drivers expect. If the file of a command is unusable, the
    description of the command is empty.
    """
    return tuple(_described(library.files[name]) for name in library.names)


def _described(file: CommandFile) -> dict[str, str]:
    try:
        fields = read_command(file).fields
    except ValueError:
        fields = {}
    about, hint = (as_text(fields.get(key, "")) for key in ("description", "argument-hint"))
    return {"name": file.name, "description": about, "argumentHint": hint}


def _choices(roster: Roster) -> Iterator[Target]:
    """The targets of the run, and the known models of Anthropic's API.

    The known models are left out if the settings list targets, or if the first target is at another server.
    """
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
    """The source of the first target's credential, such as an environment variable. Drivers expect the source of a
    bearer token as `tokenSource`, and the source of an API key as `apiKeySource`.
    """
    key = first.credentials[0] if first.credentials else None
    is_token = key is not None and key.header == "authorization" and first.api == ANTHROPIC
    return {
        "tokenSource": key.source if key is not None and is_token else "none",
        "apiKeySource": key.source if key is not None and not is_token else "none",
        "apiProvider": "firstParty",
    }
