"""Writes the table of settings in docs/settings.md, and that of Claude Code's keys in docs/from-claude.md: `make generated`.
`tests/settings/test_merge.py` compares them, and `tests/settings/test_one_row.py` makes the first for a copy of ralph with more
settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ralph.settings.tables import KEYS
from ralph.values.claude_file import CLAUDE_KEYS

if TYPE_CHECKING:
    from ralph.values.setting import Key

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PAGE_OF_KEYS = DOCS / "settings.md", DOCS / "from-claude.md"


_REFERENCE_HEAD = (
    "| key | default | flag, variable | in a repository | meaning |",
    "| --- | --- | --- | --- | --- |",
)


def page(old: str) -> str:
    """The page of settings with its table made anew. Raises ValueError if `old` has no such table."""
    return _with_table(old, (*_REFERENCE_HEAD, *map(_reference_line, KEYS)))


def _reference_line(key: Key) -> str:
    default = value_in_a_file(key.default)
    cells = (
        f"`{key.name}`",
        default if default == "none" else f"`{default}`",
        ", ".join(f"`{place}`" for place in key.places),
        key.in_repository.says if key.in_repository else "no",
        key.meaning,
    )
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def value_in_a_file(default: object) -> str:
    """The default of a setting, written as in a settings file."""
    match default:
        case None | ():
            return "none"
        case bool():
            return str(default).lower()
        case float():
            return f"{default:g}"
        case tuple():
            return f"[{', '.join(map(value_in_a_file, default))}]"
        case _:
            return str(default)


def page_of_keys(old: str) -> str:
    """The page for users of Claude Code with its table of keys made anew. Raises ValueError if `old` has no such table."""
    heading = "| Key | In ralph | As, or instead |"
    named: dict[tuple[str, str], list[str]] = {}
    for key in CLAUDE_KEYS:
        named.setdefault((key.does, key.says), []).append(f"`{key.name}`")
    rows = (
        f"| {', '.join(names)} | {does} | {says} |".replace("|  |", "| |")
        for (does, says), names in named.items()
    )
    return _with_table(old, (heading, "| --- | --- | --- |", *rows))


def _with_table(old: str, table: tuple[str, ...]) -> str:
    heading, *rows = table
    before, found, after = old.partition(f"\n{heading}\n")
    if not found:
        raise ValueError(f"the page has no line {heading!r}")
    lines = after.split("\n")
    end = next(number for number, line in enumerate(lines) if not line.startswith("|"))
    return "\n".join((before, heading, *rows, *lines[end:]))


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    PAGE_OF_KEYS.write_text(page_of_keys(PAGE_OF_KEYS.read_text()))
