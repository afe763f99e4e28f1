"""Finds text in a file as a model saw it, line breaks of either kind alike, and says what came close."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_BREAK = re.compile(r"\r?\n")
_NUMBERED = re.compile(r"\s*\d+\t")
_SHORTEST_TELLING_LINE = 4
_MOST_LINES_COMPARED = 5000
_LONGEST_COMPARED_LINE = 200


@dataclass(frozen=True)
class Span:
    start: int
    end: int


def find_spans(text: str, wanted: str) -> list[Span]:
    """Where `wanted` stands, without overlaps. An LF in it also stands for the CRLF of the text."""
    exact = [Span(found.start(), found.end()) for found in re.finditer(re.escape(wanted), text)]
    if "\n" not in wanted or "\r\n" not in text or (exact and "\r" in wanted):
        return exact
    return [Span(found.start(), found.end()) for found in _any_line_break(wanted).finditer(text)]


def has_overlapping_span(text: str, wanted: str, first: Span) -> bool:
    """True when `wanted` begins once more inside its first occurrence: which one is meant cannot be told."""
    pattern = _any_line_break(wanted) if "\r" not in wanted else re.compile(re.escape(wanted))
    behind_line_break = 1 if text.startswith("\r\n", first.start) else 0
    again = pattern.search(text, first.start + 1 + behind_line_break)
    return again is not None and again.start() < first.end


def _any_line_break(wanted: str) -> re.Pattern[str]:
    return re.compile(r"\r?\n".join(re.escape(line) for line in _LINE_BREAK.split(wanted)))


def replacement_at(text: str, span: Span, old: str, new: str) -> str:
    """`new` with the line breaks of the place it goes to, unless old or new spell them out."""
    if "\n" not in new or "\r" in new or "\r" in old:
        return new
    at = text.find("\n", span.start, span.end)
    if at < 0:
        at = text.find("\n", span.end)
    if at < 0:
        at = text.rfind("\n", 0, span.start)
    return new.replace("\n", "\r\n") if at > 0 and text[at - 1] == "\r" else new


def line_number(text: str, position: int) -> int:
    """1-based."""
    return text.count("\n", 0, position) + 1


def hint_for_no_match(text: str, wanted: str) -> str:
    """What came close and where, as a sentence; empty when nothing did."""
    lines = text.split("\n")
    wanted_lines = wanted.strip("\n").split("\n")
    at = _first_line_of(lines, wanted_lines)
    if at:
        return f"It would match at line {at} if white space were ignored: copy the indentation exactly."
    if all(_NUMBERED.match(line) for line in wanted_lines):
        return "Leave out the line numbers that Read puts before each line."
    telling = max(wanted_lines, key=lambda line: len(line.strip())).strip()
    if len(telling) < _SHORTEST_TELLING_LINE:
        return ""
    at = next((number for number, line in enumerate(lines, 1) if telling in line), 0)
    if at:
        return f"Its longest line stands at line {at}, but the lines around it differ."
    return _most_similar(lines, telling)


def _first_line_of(lines: list[str], wanted_lines: list[str]) -> int:
    """1-based number of the line where the wanted lines begin when white space is left out; 0 for nowhere."""
    squeezed = ["".join(line.split()) for line in wanted_lines]
    have = ["".join(line.split()) for line in lines]
    if not any(squeezed):
        return 0
    for index, line in enumerate(have):
        if line == squeezed[0] and have[index : index + len(squeezed)] == squeezed:
            return index + 1
    return 0


def _most_similar(lines: list[str], telling: str) -> str:
    import difflib  # noqa: PLC0415 - only a mistake needs it

    candidates = {line.strip()[:_LONGEST_COMPARED_LINE]: 0 for line in lines[:_MOST_LINES_COMPARED]}
    similar = difflib.get_close_matches(telling[:_LONGEST_COMPARED_LINE], candidates, n=1, cutoff=0.7)
    if not similar:
        return ""
    at = next(
        number for number, line in enumerate(lines, 1) if line.strip()[:_LONGEST_COMPARED_LINE] == similar[0]
    )
    return f"The most similar line is {at}: {similar[0]}"
