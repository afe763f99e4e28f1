"""The options that the command to resume a session must repeat."""

from __future__ import annotations

from ralph.run.options import RunOptions


def test_a_budget_is_given_again_because_it_limits_one_process() -> None:
    for budget, again in ((5.0, "5"), (0.205, "0.205")):
        options = RunOptions(settings={"limits.max_budget_usd": budget, "limits.max_turns": 3})
        assert options.needed_again == {"--max-budget-usd": again}


def test_sources_that_the_command_line_named_are_named_again() -> None:
    sources = frozenset({"user", "local"})
    assert RunOptions(setting_sources=sources, names_sources=True).needed_again == {
        "--setting-sources": "local,user"
    }
    assert RunOptions(setting_sources=sources).needed_again == {}
