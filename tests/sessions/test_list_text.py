"""The rows of `ralph sessions ls`: they fit the terminal, and nothing is cut for a program."""

from __future__ import annotations

from datetime import UTC, datetime

from ralph.sessions.command import SessionList
from ralph.values.screen_text import columns_of
from tests.rows import every_row
from tests.sessions.session_journals import JournalBuilder

TASK = "# \u4fee\u590d\u89e3\u6790\u5668, then read hours, minutes and seconds wherever they are found\n\nDetails."
TITLE = TASK.split("\n", maxsplit=1)[0][2:]
DIRECTORY = "/home/somebody/projects/\u89e3\u6790\u5668/a/long/way/below"


def listed(width: int | None, *, has_directory: bool) -> list[str]:
    """The header, and the row of one session."""
    journal = JournalBuilder(cwd=DIRECTORY).run("2026-11-20T00:00:00+00:00").prompt(TASK)
    now = datetime(2026, 11, 20, tzinfo=UTC)
    rows = SessionList(now=now, width=width, has_directory=has_directory, has_color=False)
    return [rows.header(), rows.row(journal.look(written_at_s=now.timestamp()))]


@every_row(
    ("width", "has_directory", "columns"),
    [
        (160, True, ["ID", "WRITTEN", "DIRECTORY", "OUTCOME", "TURNS", "COST", "TITLE"]),
        (100, True, ["ID", "WRITTEN", "DIRECTORY", "OUTCOME", "TURNS", "COST", "TITLE"]),
        (80, False, ["ID", "WRITTEN", "OUTCOME", "TURNS", "COST", "TITLE"]),
    ],
)
def test_rows_fit_the_terminal_and_their_columns_are_below_their_names(width, has_directory, columns) -> None:
    header, row = listed(width, has_directory=has_directory)
    assert header.split() == columns
    assert columns_of(row) <= width
    assert columns_of(row[: row.index("\u4fee")]) == header.index("TITLE")
    assert (row.endswith("\u2026"), "/below" in row) == (width < 160, "DIRECTORY" in columns)


def test_nothing_is_cut_without_a_terminal() -> None:
    _, row = listed(None, has_directory=True)
    assert DIRECTORY in row
    assert row.endswith(f"  {TITLE}")
