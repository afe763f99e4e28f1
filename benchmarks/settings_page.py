"""Writes the table of settings in docs/settings.md: `make generated`. `tests/settings/test_merge.py` compares it, and
`tests/settings/test_one_row.py` makes it for a copy of ralph with more settings.
"""

from __future__ import annotations

from pathlib import Path

from ralph.settings.listing import reference_lines

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"


def page(old: str) -> str:
    """The page with the table made anew. Raises ValueError if `old` has no such table."""
    heading, *rows = reference_lines()
    before, found, after = old.partition(f"\n{heading}\n")
    if not found:
        raise ValueError(f"{PAGE} has no line {heading!r}")
    lines = after.split("\n")
    end = next(number for number, line in enumerate(lines) if not line.startswith("|"))
    return "\n".join((before, heading, *rows, *lines[end:]))


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
