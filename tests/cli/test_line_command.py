"""A command line is decoded into its Struct before its command begins."""

from __future__ import annotations

import gc

import pytest

from ralph.cli.line_command import LineCommand, Typed
from tests.cli.lines import ExampleLine

CALLS: list[tuple[ExampleLine, Typed, bool]] = []


def call(line: ExampleLine, typed: Typed) -> int:
    CALLS.append((line, typed, gc.isenabled()))
    return 7


@pytest.fixture
def command() -> LineCommand:
    CALLS.clear()
    return LineCommand("example", call, ExampleLine)


def test_the_command_gets_its_options_as_one_value(command) -> None:
    words = ["--tools", "A", "B,C", "-qf", "x", "--tools=D"]
    assert command.main(words, standalone_mode=False) == 7
    [(line, typed, _)] = CALLS
    assert line == ExampleLine(tools=("A", "B,C", "D"), file="x", quiet=True)
    assert typed.given == {"tools": "--tools", "file": "--file", "quiet": "--quiet"}
    assert [option.words for option in typed.options] == [
        ("--tools=A", "--tools=B,C"),
        ("-qf", "x"),
        ("--tools=D",),
    ]


def test_garbage_is_collected_from_the_beginning_of_a_command_on(command) -> None:
    gc.disable()
    try:
        command.main([], standalone_mode=False)
        assert [is_enabled for _, _, is_enabled in CALLS] == [True]
    finally:
        gc.enable()
