"""Shows the settings as text, with their values and origins, for `ralph doctor`. It never shows the values of API keys and
headers. It shows only the names of the environment variables and headers.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ralph.settings.tables import KEYS, Settings
from ralph.values.credentials import Secret
from ralph.values.endpoint import requests_url
from ralph.values.screen_text import counted
from ralph.values.tool_choice import without_background

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.conversation.target import Target
    from ralph.values.models import Price

# The column of values is at most this wide. A longer value moves only the origin in its own line to the right.
_WIDEST_VALUE = 34


def setting_lines(settings: Settings) -> Iterator[str]:
    """Yields lines of name, value and origin: one for each setting, one for the usable tools, and one for the
    number of targets.
    """
    rows = [(key.name, shown_value(attrgetter(key.name)(settings))) for key in KEYS]
    rows.append(("tools", shown_value(without_background(settings.enabled_tools))))
    rows.append(("targets", counted(len(settings.targets), "target")))
    name_width = max(len(name) for name, _ in rows)
    value_width = min(_WIDEST_VALUE, max(len(value) for _, value in rows))
    for name, value in rows:
        yield f"{name:<{name_width}}  {value:<{value_width}}  {settings.origins[name]}"


def target_lines(target: Target) -> Iterator[str]:
    """Yields the name of a target, followed by one line for each value of the target."""
    facts = target.facts
    window = facts.context_window if facts else None
    price = facts.price if facts else None
    keys = [f"{credential.place} (set)" for credential in target.credentials]
    yield target.name
    rows = (
        ("model", target.model),
        ("API", target.api),
        ("base URL", target.base_url),
        ("posts to", requests_url(target.base_url, target.api, target.model)),
        ("keys", ", ".join(keys) or "none"),
        ("headers", ", ".join(name for name, _ in target.headers.plain) or "none"),
        ("max tokens", shown_value(target.max_tokens)),
        ("window", f"{window} tokens" if window else "unknown"),
        ("thinking", target.thinking or "as the model is known to need it"),
        ("price", _price(price)),
    )
    for name, value in rows:
        yield f"  {name:<10}  {value}"


def shown_value(value: object) -> str:
    """The value of a setting, written as a person would write it. If a table contains secrets, only its keys are
    shown.
    """
    match value:
        case None:
            return "not set"
        case ():
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case Secret():
            return ", ".join(value.plain) or "none"
        case tuple():
            return " ".join(map(shown_value, value))
        case _:
            return str(value)


def _price(price: Price | None) -> str:
    if price is None:
        return "unknown: costs are not counted"
    return (
        f"input {price.input:g}, output {price.output:g}, cache write {price.cache_write:g}, "
        f"cache read {price.cache_read:g} USD per million tokens"
    )
