"""Lays out a help page as plain text: usage, description, sections with two columns, epilog. No I/O happens here.

The pages look like the pages that typer makes for the small commands. typer is not used here, because its import
takes longer than everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HELP_ROW = ("-h, --help", "Show this message and exit.")

_AS_IT_IS = "\b"
"""If this is the first line of a paragraph, the paragraph keeps its line breaks."""
_MOST_COLUMNS = 80
_FEWEST_COLUMNS = 24
_INDENT = "  "
_WIDEST_NAME = 30
"""The maximum width of the first column. A longer name gets a separate line."""
_GAP = 2
"""The number of spaces after each column."""
_FEWEST_LETTERS = 16
"""The minimum width of the second column. If the terminal is narrower, each meaning stands below its name."""
_MARGIN_BELOW = " " * 6
"""The margin of a meaning that stands below its name."""


def help_page(
    usage: str,
    description: str,
    sections: Mapping[str, Sequence[tuple[str, str]]],
    epilog: str = "",
    *,
    columns: int,
) -> str:
    """Makes the page for a terminal that is `columns` wide. `sections` maps the title of each section to its rows. A
    row is a name and its meaning. Sections without rows are left out. In `description` and `epilog`, paragraphs are
    separated by empty lines.
    """
    width = max(min(columns, _MOST_COLUMNS), _FEWEST_COLUMNS) - _GAP
    parts = [f"Usage: {usage}", *_paragraphs(description, width)]
    parts += ["\n".join([f"{title}:", *_rows(rows, width)]) for title, rows in sections.items() if rows]
    parts += _paragraphs(epilog, width)
    return "\n\n".join(parts)


def _paragraphs(text: str, width: int) -> Iterator[str]:
    for paragraph in text.strip(" \n").split("\n\n"):
        first, *others = paragraph.split("\n")
        lines = others if first == _AS_IT_IS else _wrapped(" ".join(paragraph.split()), width - len(_INDENT))
        if lines:
            yield "\n".join(_INDENT + line for line in lines)


def _rows(rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    names_width = min(max(len(name) for name, _ in rows), _WIDEST_NAME) + _GAP
    margin = _INDENT + " " * names_width
    meaning_width = width - names_width - _GAP
    is_stacked = meaning_width < _FEWEST_LETTERS
    if is_stacked:
        margin, meaning_width = _MARGIN_BELOW, width - len(_MARGIN_BELOW)
    for name, meaning in rows:
        lines = _wrapped(meaning, meaning_width)
        if is_stacked or len(name) + _GAP > names_width:
            yield _INDENT + name
        else:
            lines[:1] = [f"{name:{names_width}}{line}" for line in lines[:1]]
            yield _INDENT + lines.pop(0)
        yield from (margin + line for line in lines)


def _wrapped(text: str, width: int) -> list[str]:
    """Breaks a text into lines, only at spaces, so that no option is split. Two spaces in a row are kept. A word that
    is longer than `width` gets a separate line.
    """
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and len(longer) > width:
            lines.append(line.rstrip())
            line = word
        else:
            line = longer
    return [*lines, line] if line else lines
