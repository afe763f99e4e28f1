"""Edits that would take for ever or use all memory if the algorithms were not linear."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.tools.edit import EditableText, hint_for_no_match
from ralph.values.answer import ToolError
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

TEN_MB = 10 * 1024 * 1024


@pytest.fixture(autouse=True)
def is_fast() -> Iterator[None]:
    """Limits the CPU time of each test, which does not depend on other programs. An algorithm that is not linear
    would take minutes.
    """
    started_s = time.process_time()
    yield
    assert time.process_time() - started_s < 20


@every_row("end", ["", "\n"])
def test_a_long_text_that_nearly_occurs_everywhere_is_not_found_quickly(end) -> None:
    text = EditableText("a\r\n" * 350_000 + end)
    assert text.places("a\n" * 10_000 + "b").count == 0


def test_the_hint_for_a_large_file_comes_quickly() -> None:
    assert hint_for_no_match("aa\n" * 200_000, " aa\n" * 50_000 + "b") == ""
    assert "at line 1 if white space" in hint_for_no_match("aa\n" * 200_000, " aa\n" * 50_000)
    text = ("x" * 99 + "\n") * 100_000 + "telling line\n"
    assert "is at line 100001," in hint_for_no_match(text, "telling line\nother")
    similar = "".join("a" * 90 + f"{number}\n" for number in range(5000))
    assert "The most similar line is" in hint_for_no_match(similar, "a" * 80 + "bcdefgh")


def test_all_of_ten_million_places_are_replaced_quickly(tools, tmp_path) -> None:
    (tmp_path / "a").write_text("x" * TEN_MB)
    text = tools.ok("Edit", file_path="a", old_string="x", new_string="y", replace_all=True)
    assert "at 10485760 places" in text
    assert (tmp_path / "a").read_bytes() == b"y" * TEN_MB
    assert "occurs 10485760 times in a, at lines 1, 1," in tools.error(
        "Edit", file_path="a", old_string="y", new_string="z"
    )


def test_a_file_with_both_line_breaks_takes_many_places_but_not_millions() -> None:
    text = "ab" * 90_000 + "x" * TEN_MB + "\r\n\n"
    assert EditableText(text).places("ab").replaced("1\n2") == "1\r\n2" * 90_000 + text[180_000:]
    many = EditableText("x" * 1_000_000 + "\r\n\n").places("x")
    assert many.replaced("y").startswith("yyy")
    with pytest.raises(ToolError, match="1,000,000 places are too many at once"):
        many.replaced("\n")


def test_a_result_that_grows_without_bound_is_refused() -> None:
    with pytest.raises(ToolError, match="larger than 20 MB"):
        EditableText("x" * 1_000_000).places("x").replaced("y" * 1_000_000)


@given(
    st.text(st.sampled_from("ab\r\n")),
    st.text(st.sampled_from("ab\r\n"), min_size=1, max_size=4),
    st.text(st.sampled_from("xy\r\n"), max_size=4),
)
def test_all_places_are_replaced_as_an_expression_for_either_line_break_would(text, old, new) -> None:
    pattern = re.escape(old)
    if "\n" in old and not ("\r" in old and old in text) and "\r\n" in text:
        pattern = r"\r?\n".join(re.escape(line) for line in old.replace("\r\n", "\n").split("\n"))
        with_lf = old.replace("\r\n", "\n")
        if "\r\n" in with_lf or with_lf.endswith("\r"):  # half of an end is wanted: no expression says that
            return

    def replacement(found):
        if "\r" in new or "\r" in old:
            return new
        at = text.find("\n", found.start())
        at = text.rfind("\n") if at < 0 else at
        return new.replace("\n", "\r\n") if at > 0 and text[at - 1] == "\r" else new

    places = EditableText(text).places(old)
    assert [(span.start, span.end) for span in places.spans()] == [
        found.span() for found in re.finditer(pattern, text)
    ]
    assert places.replaced(new) == re.sub(pattern, replacement, text)
