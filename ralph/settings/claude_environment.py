"""Reads environment variables that were set for Claude Code: model aliases, Claude Code's own login, and other
clouds.

The variables may show that a key is meant for another cloud. `why_not_asked` then gives a reason not to send the key.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ralph.settings.kinds import about
from ralph.values.models import ALIASES, NamedModel, named_model
from ralph.values.setting import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

ALIAS_VARIABLES = {alias: f"ANTHROPIC_DEFAULT_{alias.upper()}_MODEL" for alias in ALIASES}
LOGIN_VARIABLE = "CLAUDE_CODE_OAUTH_TOKEN"
_CLOUDS = {
    "CLAUDE_CODE_USE_BEDROCK": "Amazon Bedrock",
    "CLAUDE_CODE_USE_VERTEX": "Google Vertex AI",
    "CLAUDE_CODE_USE_FOUNDRY": "Microsoft Foundry",
}


# What a program looks at to find a server or to trust it, as far as ralph or its libraries do.
_AIMING = re.compile(r"(?:ANTHROPIC|OPENAI)_.*|CLAUDE_CODE_USE_.*|SSL_CERT_FILE")


def is_of_network(variable: str) -> bool:
    """Whether a variable of this name is about proxies or authorities, which each connection reads from the process's own
    environment.
    """
    from ralph.machine.network.trust import VARIABLES  # noqa: PLC0415 - few settings files hold variables

    return variable in VARIABLES or variable.lower().endswith("_proxy")


def aims_requests(variable: str) -> bool:
    """Whether a variable of this name decides where requests go, with which key and model, or whom they trust."""
    if _AIMING.fullmatch(variable) or variable == LOGIN_VARIABLE or is_of_network(variable):
        return True
    from ralph.values.vendors import VENDORS  # noqa: PLC0415 - few settings files hold variables

    return any(vendor.key_variable == variable for vendor in VENDORS)


def aliases_from(environment: Mapping[str, str]) -> Mapping[str, NamedModel]:
    """The models for which `opus`, `sonnet` and `haiku` are aliases. Raises ValueError if a variable contains an
    invalid name. The error names the variable.
    """
    aliases = dict(ALIASES)
    for alias, variable in ALIAS_VARIABLES.items():
        name = environment.get(variable, "").strip()
        if not name:
            continue
        with about(variable):
            aliases[alias] = named_model(printable(name))
    return aliases


def other_cloud(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable that makes Claude Code use another cloud, and the name of that cloud. None if no such variable is
    set.
    """
    for variable, cloud in _CLOUDS.items():
        if environment.get(variable, "").strip().lower() in {"1", "true", "yes", "on"}:
            return variable, cloud
    return None


def why_not_asked(environment: Mapping[str, str], base_url: str) -> str | None:
    """The reason why a key must not be sent to `base_url`, or None if the key may be sent. Call this only if the user
    did not give --base-url. If a variable selects another cloud, the key may be meant for that cloud.
    """
    cloud = other_cloud(environment)
    if cloud is None:
        return None
    variable, name = cloud
    return (
        f"{variable} is set, and ralph does not find {name} by it: it would ask another endpoint, {base_url}. "
        f"Unset {variable}, or say whom to ask by --base-url"
    )


def login_of_another_program(environment: Mapping[str, str]) -> str:
    """A note in parentheses for the message that no key was found. It names settings of Claude Code that ralph found
    but does not use: a login, or another cloud. Empty if there are no such settings.
    """
    said = []
    if environment.get(LOGIN_VARIABLE, "").strip():
        said.append(f"{LOGIN_VARIABLE} is Claude Code's own login, which ralph does not use")
    if (cloud := other_cloud(environment)) is not None:
        said.append(f"{cloud[0]} is set, and ralph does not find {cloud[1]} by it")
    return f" ({'; '.join(said)})" if said else ""
