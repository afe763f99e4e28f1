"""The options that the command to resume a session must repeat."""

from __future__ import annotations

from ralph.run.options import RunOptions


def test_sources_that_the_command_line_named_are_named_again() -> None:
    sources = frozenset({"user", "local"})
    assert RunOptions(setting_sources=sources, names_sources=True).needed_again == {
        "--setting-sources": "local,user"
    }
    assert RunOptions(setting_sources=sources).needed_again == {}
