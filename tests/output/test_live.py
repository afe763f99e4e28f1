"""The present moment of a run, as it follows from the events."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ralph.output.live import LiveRun, doing, live_after
from ralph.values import events as ev
from ralph.values.answer import ToolCall, ToolOutput, ToolResult
from ralph.values.servers.models import ModelFacts, Price
from ralph.values.usage import TokenUsage

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
