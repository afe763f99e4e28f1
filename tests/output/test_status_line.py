"""The present moment of a run, as it follows from the events, and the status line that shows it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ralph.output.status_line import (
    FEWEST_COLUMNS,
    LiveRun,
    RunningTool,
    doing,
    fit_to_screen,
    live_after,
    status_text,
)
from ralph.values import events as ev
from ralph.values.answer import ToolCall, ToolOutput, ToolResult
from ralph.values.screen_text import columns_of
from ralph.values.servers import ModelFacts, Price
from ralph.values.usage import TokenUsage
from tests.rows import every_row

BASH, READ = ToolCall("1", "Bash", {"command": "make\ntest"}), ToolCall("2", "Read", {"file_path": "a.py"})
PRICED = ModelFacts(None, None, Price(input=1, output=2, cache_write=1, cache_write_1h=1, cache_read=1))


def finished(call: ToolCall) -> ev.ToolFinished:
    return ev.ToolFinished(call, ToolResult(call.id, ToolOutput("")), 1.0)


def attempt(turn: int, facts: ModelFacts | None = PRICED, kind: str | None = None) -> ev.AttemptEnded:
    return ev.AttemptEnded(turn, 1, "t", "m", 1.0, TokenUsage(input=1000, output=500), facts, kind=kind)


def after(*events: tuple[float, ev.Event]) -> LiveRun:
    live = LiveRun(0.0)
    for at_s, event in events:
        live = live_after(live, event, at_s, str)
    return live


def test_turn_tools_cost_and_tokens_follow_the_events() -> None:
    events: list[tuple[float, ev.Event]] = [
        (1, ev.TurnStarted(1)),
        (5, attempt(1)),
        (6, ev.ToolStarted(BASH)),
        (7, ev.ToolStarted(READ)),
    ]
    live = after(*events)
    assert (live.turn, live.answered, live.tokens_in, live.tokens_out) == (1, 1, 1000, 500)
    assert live.cost_usd == pytest.approx(0.002)
    assert doing(live, 48) == ("Bash: make test (and 1 more)", "42s")
    assert doing(after(*events, (50, finished(BASH))), 52) == ("Read: a.py", "45s")
    done = after(*events, (50, finished(BASH)), (51, finished(READ)))
    assert doing(done, 61) == ("the model works", "10s")
    assert after((1, attempt(1)), (2, attempt(2, None))).cost_usd is None
    assert after((1, attempt(1, kind="server"))).answered == 0


def test_a_wait_is_shown_until_it_is_over() -> None:
    retry = ev.RetryScheduled(1, 4, 30.0, 529, "HttpError", "overloaded", "Overloaded")
    live = after((1, ev.TurnStarted(4)), (10, retry))
    assert doing(live, 15) == ("waiting after 529", "25s left")
    assert doing(live, 45) == ("the model works", "5.0s")


def test_commands_in_the_background_are_there_until_they_end() -> None:
    started = ev.BackgroundStarted("bash_1", "npm run\ndev")
    live = after(
        (1, ev.TurnStarted(1)), (5, started), (6, ev.TurnStarted(2)), (7, replace(started, id="bash_2"))
    )
    assert [(one.id, one.text, one.since_s) for one in live.background] == [
        ("bash_1", "npm run dev", 5),
        ("bash_2", "npm run dev", 7),
    ]
    live = live_after(live, ev.BackgroundEnded("bash_1", "npm run dev"), 9.0, str)
    assert [one.id for one in live.background] == ["bash_2"]


# --- The line


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


# --- A terminal that is too small


@every_row(
    ("lines", "rows", "shown"),
    [
        (["abc", ""], 2, ["abc", ""]),
        (["ab世界c"], 2, ["ab…"]),
        (["abcdefgh", "i", "j"], 3, ["abc…", "i", "j"]),
        (["abcde", "i", "j"], 2, ["abc…", "i"]),
    ],
)
def test_lines_and_their_list_are_cut(lines: list[str], rows: int, shown: list[str]) -> None:
    assert fit_to_screen(lines, 4, rows) == shown
