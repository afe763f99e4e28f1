"""The names of sessions that people see."""

from __future__ import annotations

from ralph.sessions.places import age_text, named_session, title_from
from tests.rows import every_row


@every_row(
    ("age_s", "said"),
    [
        (-5, "0 s ago"),
        (59.4, "59 s ago"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (3600, "1 h ago"),
        (2 * 86_400 - 1, "47 h ago"),
        (2 * 86_400, "2 days ago"),
    ],
)
def test_an_age_is_told_in_the_largest_unit_that_is_whole(age_s, said) -> None:
    assert age_text(age_s) == said


@every_row(
    ("task", "said"),
    [
        ("fix\n it", "fix it"),
        ("\x1b[2Jx", "[2Jx"),
        ("", "no task yet"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
    ],
)
def test_a_session_is_named_by_eight_characters_its_age_and_its_task(task, said) -> None:
    assert named_session("3f2a9c1e-0000", 5, task) == f"3f2a9c1e (last written to 5 s ago: {said})"


@every_row(
    ("task", "title"),
    [
        ("fix it", "fix it"),
        ("\n---\n<task>\n## > Read hours\n\nThe parser...", "Read hours"),
        ("- [x] *one*\n- b", "[x] *one*"),
        ("Look around,\nthen change it.\n\nMore.", "Look around, then change it."),
        ("\x1b[2J\u202e1. do it", "1. do it"),
        ("x" * 121, "x" * 119 + "…"),
        ("?!\n", ""),
    ],
)
def test_a_title_is_the_first_heading_or_paragraph_of_the_task_that_says_something(task, title) -> None:
    assert title_from(task) == title
