"""Times and costs in the form in which a list and a story show them."""

from __future__ import annotations

from ralph.sessions.story_text import local_time
from tests.rows import every_row


@every_row(
    "moment", ["", "yesterday", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00", "2026-13-01"]
)
def test_a_time_that_no_clock_shows_is_shown_as_it_was_written(moment) -> None:
    assert local_time(moment) == moment
