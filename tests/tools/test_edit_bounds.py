"""Edits that would take for ever or use all memory if the algorithms were not linear."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ralph.tools.edit import hint_for_no_match
from ralph.tools.files.text_match import Places
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
    assert Places("a\r\n" * 350_000 + end, "a\n" * 10_000 + "b").count == 0


def test_the_hint_for_a_large_file_comes_quickly() -> None:
    assert hint_for_no_match("aa\n" * 200_000, " aa\n" * 50_000 + "b") == "Read the file again."
    assert "at line 1 if white space" in hint_for_no_match("aa\n" * 200_000, " aa\n" * 50_000)


def test_all_of_ten_million_places_are_replaced_quickly(tools, tmp_path) -> None:
    (tmp_path / "a").write_text("x" * TEN_MB)
    text = tools.ok("Edit", file_path="a", old_string="x", new_string="y", replace_all=True)
    assert "at 10485760 places" in text
    assert (tmp_path / "a").read_bytes() == b"y" * TEN_MB
    assert "occurs 10485760 times in a, at lines 1, 1," in tools.error(
        "Edit", file_path="a", old_string="y", new_string="z"
    )


def test_a_result_that_grows_without_bound_is_refused() -> None:
    with pytest.raises(ToolError, match="larger than 20 MB"):
        Places("x" * 1_000_000, "x").replaced("y" * 1_000_000)
