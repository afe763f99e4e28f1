"""The table of keys in docs/settings.md, a line of Markdown for each setting that a file may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.settings.keys import KEYS

if TYPE_CHECKING:
    from ralph.settings.rows import Key

HEAD = (
    "| key | default | flag, variable | in a repository | meaning |",
    "| --- | --- | --- | --- | --- |",
)


def reference_lines() -> tuple[str, ...]:
    return (*HEAD, *map(_line, KEYS))


def _line(key: Key) -> str:
    default = _shown(key.default)
    cells = (
        f"`{key.name}`",
        default if default == "none" else f"`{default}`",
        ", ".join(f"`{place}`" for place in key.places),
        key.in_repository.says if key.in_repository else "no",
        key.meaning,
    )
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _shown(default: object) -> str:
    """As a settings file would say it."""
    match default:
        case None | ():
            return "none"
        case bool():
            return str(default).lower()
        case float():
            return f"{default:g}"
        case tuple():
            return f"[{', '.join(map(_shown, default))}]"
        case _:
            return str(default)
