"""The status line fits into the terminal, and shows what changes."""

from __future__ import annotations

from ralph.output.live import LiveRun, RunningTool
from ralph.output.status_line import FEWEST_COLUMNS, status_text
from ralph.values.screen_text import columns_of, cut_to_columns
from tests.rows import every_row

WIDE = "Bash: echo 日本語の長いテキストがここにあります 👩\u200d👩\u200d👧 e\u0301e\u0301"


def live(text: str) -> LiveRun:
    return LiveRun(0.0, turn=4, tools=(RunningTool("1", text, 10.0),), cost_usd=0.1234)


def test_it_names_turn_tool_time_and_cost() -> None:
    assert status_text(live("Bash: make test"), 52.0, 80) == "[now] turn 4, Bash: make test, 42s, $0.1234"
    assert status_text(live("Bash: make test"), 52.0, FEWEST_COLUMNS - 1) == ""


@every_row("text", ["Bash: " + "x" * 300, WIDE])
@every_row("columns", [*range(FEWEST_COLUMNS, 70), 400])
def test_it_never_reaches_the_last_column_and_time_and_cost_stay(text: str, columns: int) -> None:
    line = status_text(live(text), 52.0, columns)
    assert columns_of(line) < columns
    assert line.endswith(", 42s, $0.1234")


@every_row(
    ("text", "columns", "cut"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"),
        ("abc", 0, ""),
    ],
)
def test_a_text_is_cut_between_characters(text: str, columns: int, cut: str) -> None:
    assert cut_to_columns(text, columns) == cut
