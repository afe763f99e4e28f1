"""The HTML page of a night, without a browser."""

from __future__ import annotations

from ralph.pages.night import Night
from ralph.pages.page import html_of


def test_hidden_characters_are_shown_by_name_and_colours_of_programs_are_left_out() -> None:
    place = "a\x1b[1;31mb\x1b[0m\x07\x85\u202e\ud800\U000e0041"
    page = html_of(Night(made_at_s=0.0, version="1", works=(), place=place)).decode()
    assert "ab␇⟨U+0085⟩⟨U+202E⟩⟨U+D800⟩⟨U+E0041⟩" in page
