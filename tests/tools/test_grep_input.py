"""Unusual globs, expressions and files."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from ralph.tools import search
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name in ("a.txt", "b.py", "[x].txt", "ab", "sub/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("needle\n")
    return tmp_path


EVERYTHING = ["[x].txt", "a.txt", "ab", "b.py", "sub/c.txt"]


@every_row(
    ("glob", "expected"),
    [
        ("./*.txt", ["[x].txt", "a.txt", "sub/c.txt"]),
        ("./sub/*.txt", ["sub/c.txt"]),
        ("", EVERYTHING),
        ("./", EVERYTHING),
        ("**", EVERYTHING),
        ("*:*", ["No matches found: no file was searched; none matches the glob"]),
        ("{a,}b", ["ab"]),
        ("{a.{txt,md},b.py}", ["a.txt", "b.py"]),
        (r"\[x].txt", ["[x].txt"]),
        ("[ab].*", ["a.txt", "b.py"]),
        ("[z-a]*", ["No matches found: no file was searched; none matches the glob"]),
    ],
)
def test_a_glob_means_what_it_says_to_ripgrep_and_to_ralph(search_tools, files, glob, expected) -> None:
    assert search_tools.ok("Grep", pattern="needle", glob=glob).split("\n") == expected


@every_row("glob", ["[", "a[b", "[]", "{a,b", "a}", "*.tx\\", "!", "./["])
def test_a_glob_that_was_not_finished_is_an_error_that_says_so(search_tools, files, glob) -> None:
    assert search_tools.error("Grep", pattern="needle", glob=glob) == (
        f"the glob {glob!r} is not finished: a bracket, a brace or a name is missing"
    )


def test_globs_and_expressions_of_any_length_are_answered_quickly(search_tools, files) -> None:
    started_s = time.process_time()
    assert "at most 4,096" in search_tools.error("Grep", pattern="needle", glob="[" * 100_000)
    assert "at most 4,096" in search_tools.error("Glob", pattern="[" * 100_000)
    search_tools.error("Grep", pattern="[^" * 30_000)
    assert time.process_time() - started_s < 5


@every_row(
    ("pattern", "is_refused"),
    [
        *((one, True) for one in ("a\nb", r"a\nb", r"[\n]", r"\\\n")),
        *((one, False) for one in (r"needle[^\n]*", r"[^]\n]eedle", r"needle|\\n")),
    ],
)
def test_an_expression_with_a_line_break_is_an_error_that_says_what_to_do(
    search_tools, files, pattern, is_refused
) -> None:
    output = search_tools.call("Grep", {"pattern": pattern})
    assert output.content.startswith("the pattern contains a line break" if is_refused else "[x].txt\na.txt")


def test_the_first_line_begins_behind_a_byte_order_mark(search_tools, tmp_path) -> None:
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfneedle\nneedle 2\n")
    assert search_tools.ok("Grep", pattern="^needle", output_mode="content") == (
        "marked:1:needle\nmarked:2:needle 2"
    )


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("Grep", {"pattern": "needle"}),
        ("Grep", {"pattern": "needle", "output_mode": "count"}),
        ("Grep", {"pattern": "needle", "output_mode": "content"}),
        ("Glob", {"pattern": "*"}),
    ],
)
def test_what_was_found_before_a_search_was_stopped_is_reported(
    make_tools, tmp_path, monkeypatch, tool, arguments
) -> None:
    """The last few kilobytes may be missing, because ripgrep has not yet printed them."""
    (tmp_path / "0000-with-a-long-name").write_text("needle\n")
    for number in range(1, 900):  # a link is a file as well, and much cheaper to make
        (tmp_path / f"{number:04}-with-a-long-name").hardlink_to(tmp_path / "0000-with-a-long-name")
    (tmp_path / "stuck").mkdir()
    os.mkfifo(tmp_path / "stuck/.gitignore")
    text = make_tools(search_timeout_s=300.0).ok(tool, **arguments)
    assert text.startswith("0000")
    assert "[the search would read stuck/.gitignore for ever" in text
    if tool == "Glob":
        monkeypatch.setattr(search, "_LOOKS_AFTER_S", 300.0)
        text = make_tools(search_timeout_s=3.0).ok(tool, **arguments)
        assert text.startswith("0000")
        assert "[stopped after 3 s" in text
