"""A command line must be decoded into its Struct before its command begins."""

from __future__ import annotations

import gc

import pytest

from ralph.cli.line_command import LineCommand, Typed
from ralph.machine.garbage import put_off_garbage_collection
from tests.cli.lines import ExampleLine

CALLS: list[tuple[ExampleLine, Typed, tuple[int, int, int]]] = []


def call(line: ExampleLine, typed: Typed) -> int:
    CALLS.append((line, typed, gc.get_threshold()))
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
    usual = gc.get_threshold()
    put_off_garbage_collection()
    try:
        assert gc.isenabled()
        assert gc.get_threshold() > usual
        command.main([], standalone_mode=False)
        assert [thresholds for _, _, thresholds in CALLS] == [usual]
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
