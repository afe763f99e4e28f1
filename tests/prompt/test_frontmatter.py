"""Tests the frontmatter of a command's file: the fields that are read, and the errors for all others."""

from __future__ import annotations

from typing import Any

import pytest

from ralph.prompt.frontmatter import as_names, as_text, split_frontmatter
from tests.rows import every_row

HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "a text": ("description: Fix it: now", {"description": "Fix it: now"}),
    "single quotes": ("a: 'it''s # no comment'", {"a": "it's # no comment"}),
    "double quotes": ('a: "x\\n: y"', {"a": "x\n: y"}),
    "a comment": ("# first\na: b # rest\n", {"a": "b"}),
    "nothing": ("a:", {"a": ""}),
    "a list in brackets": (
        "a: [Read, 'Write', Bash(git add:*, x)]",
        {"a": ("Read", "Write", "Bash(git add:*, x)")},
    ),
    "a list in brackets below": (
        "a:\n  ['Read', Bash(git *)]\nb: c",
        {"a": ("Read", "Bash(git *)"), "b": "c"},
    ),
    "a list in brackets over lines": (
        "a: [\n  Read,\n  'Write'\n]\nb: c",
        {"a": ("Read", "Write"), "b": "c"},
    ),
    "such a list below": ("a:\n  [\n    Read,\n    Write,\n  ]", {"a": ("Read", "Write")}),
    "a list in lines": ("a:\n  - Read\n  - Bash(git *)\nb: c", {"a": ("Read", "Bash(git *)"), "b": "c"}),
    "a list without indent": ("a:\n- Read\nb: c", {"a": ("Read",), "b": "c"}),
    "a folded block": ("a: >-\n  one\n  two\nb: c", {"a": "one two", "b": "c"}),
    "a kept block": ("a: |\n  one\n  two", {"a": "one\ntwo"}),
    "a long line": ("a: one\n  two", {"a": "one two"}),
    "a nested block": ("hooks:\n  Stop:\n    - x", {"hooks": "Stop:\n    - x"}),
}


@every_row("case", HEADS)
def test_a_head_is_read(case: str) -> None:
    head, expected = HEADS[case]
    fields, body = split_frontmatter(f"---\n{head}\n---\nbody\n---\nmore")
    assert fields == expected
    assert body == "body\n---\nmore"


@every_row("text", ["body", "", "---\nno end", "x\n---\na: b\n---\n", " ---\na: b\n---\n"])
def test_a_text_without_a_head_is_all_body(text: str) -> None:
    assert split_frontmatter(text) == ({}, text)


@every_row(
    ("head", "line"),
    [("a: b\nallowed-tools Read", 3), ("a: b\na: c", 3), ("&anchor", 2), ("? a\n: b", 2), ("a:b", 2)],
)
def test_a_line_that_is_not_understood_is_named(head: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"line {line} of its head is not understood"):
        split_frontmatter(f"---\n{head}\n---\n")


@every_row(
    ("text", "says"),
    [
        ("---\nallowed-tools: Read\nDo it", "its head has no end: no line is ---"),
        ("---\na: b\n- Read\n---\n", "the value of a in its head is not understood"),
    ],
)
def test_a_head_in_which_a_guard_could_be_lost_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        split_frontmatter(text)


@every_row(
    "field",
    [
        "Read, Bash(git add:*, x)  Edit",
        ("Read", "Bash(git add:*, x)", "Edit"),
        "Read,Bash(git add:*, x),Edit",
    ],
)
def test_names_are_separated_by_commas_and_spaces_but_not_in_a_pattern(field: Any) -> None:
    assert as_names(field) == ("Read", "Bash(git add:*, x)", "Edit")


def test_a_field_as_text_is_one_line() -> None:
    assert as_text("a\n b") == "a b"
    assert as_text(("a", "b")) == "a, b"
