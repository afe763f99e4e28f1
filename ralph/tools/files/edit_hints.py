"""Finds what came close when an edit's old_string does not occur. Looks at a bounded part of a large file."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r"\s*\d+\t")
_SHORTEST_TELLING_LINE = 4
# Each bound keeps its step below a fraction of a second.
_MOST_CHARACTERS_SQUEEZED = 1_000_000
_MOST_LINES_COMPARED = 2000
_LONGEST_COMPARED_LINE = 100


def hint_for_no_match(text: str, wanted: str) -> str:
    """A sentence about what came close and where; empty when nothing did."""
    beginning = text[:_MOST_CHARACTERS_SQUEEZED].split("\n")
    wanted_lines = wanted.strip("\n")[:_MOST_CHARACTERS_SQUEEZED].split("\n")
    at = _first_line_of(beginning, wanted_lines)
    if at:
        return f"It would match at line {at} if white space were ignored: copy the indentation exactly."
    if all(_NUMBERED.match(line) for line in wanted_lines):
        return "Leave out the line numbers that Read puts before each line."
    telling = max(wanted_lines, key=lambda line: len(line.strip())).strip()
    if len(telling) < _SHORTEST_TELLING_LINE:
        return ""
    position = text.find(telling)
    if position >= 0:
        at = text.count("\n", 0, position) + 1
        return f"Its longest line stands at line {at}, but the lines around it differ."
    return _most_similar(beginning[:_MOST_LINES_COMPARED], telling)


def _first_line_of(lines: list[str], wanted_lines: list[str]) -> int:
    """The 1-based number of the line where the wanted lines begin when white space is ignored; 0 for nowhere."""
    squeezed, have = _squeezed(wanted_lines), _squeezed(lines)
    if not squeezed.strip("\n"):
        return 0
    at = have.find(squeezed)
    return have.count("\n", 0, at) + 1 if at >= 0 else 0


def _squeezed(lines: list[str]) -> str:
    """Each line without its white space, between line breaks, so that only whole lines are found."""
    return "\n".join(["", *("".join(line.split()) for line in lines), ""])


def _most_similar(lines: list[str], telling: str) -> str:
    import difflib  # noqa: PLC0415 - only a mistake needs it

    compared = [line.strip()[:_LONGEST_COMPARED_LINE] for line in lines]
    similar = difflib.get_close_matches(
        telling[:_LONGEST_COMPARED_LINE], dict.fromkeys(compared), n=1, cutoff=0.7
    )
    if not similar:
        return ""
    return f"The most similar line is {compared.index(similar[0]) + 1}: {similar[0]}"
