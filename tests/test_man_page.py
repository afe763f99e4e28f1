"""The man page must say the same as the tables, and every man program must be able to show it."""

from __future__ import annotations

import re
import subprocess

import pytest

from benchmarks.man_page import PAGE, page
from tests.services.outside_programs import program_or_skip


def test_the_man_page_is_the_one_that_the_tables_make() -> None:
    assert PAGE.read_text() == page(), "make generated"


@pytest.mark.outside
def test_mandoc_finds_nothing_to_warn_of_and_shows_options_that_can_be_copied() -> None:
    mandoc = program_or_skip("mandoc")
    lint = subprocess.run([mandoc, "-Tlint", PAGE], capture_output=True, text=True, check=False)
    assert (lint.returncode, lint.stdout) == (0, "")
    shown = subprocess.run(
        [mandoc, "-Tutf8", "-Owidth=200", PAGE], capture_output=True, text=True, check=True
    ).stdout
    plain = re.sub(".\b", "", shown)
    for text in (
        "--permission-mode MODE",
        "| ralph -p 'review this change'",
        ".ralph/stop",
        "~/.config/ralph/config.toml",
        "128+n",
    ):
        assert text in plain


@pytest.mark.outside
def test_groff_has_no_warning_for_the_page() -> None:
    """The program `man` of most distributions uses groff."""
    command = [program_or_skip("groff"), "-man", "-ww", "-Tutf8", "-P-cbou", str(PAGE)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert "--until CMD" in ran.stdout
