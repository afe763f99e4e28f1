"""A command line must be decoded into its Struct before its command begins."""

from __future__ import annotations

import gc

import pytest

from ralph.cli.line_command import LineCommand, Section, Typed
from ralph.machine.loading import put_off_garbage_collection
from tests.cli.lines import ExampleLine

CALLS: list[tuple[ExampleLine, Typed, tuple[int, int, int]]] = []


def call(line: ExampleLine, typed: Typed) -> int:
    CALLS.append((line, typed, gc.get_threshold()))
    return 7


@pytest.fixture
def command() -> LineCommand:
    CALLS.clear()
    return LineCommand("example", call, (Section(ExampleLine),))


def ran(command: LineCommand, *words: str) -> int:
    read = command.read(words, is_command_inserted=True)
    assert read is not None
    return command.run(*read)


def test_the_command_gets_its_options_as_one_value(command) -> None:
    assert ran(command, "--Tools", "A", "B,C", "-qf", "x", "--tools=D", "w") == 7
    [(line, typed, _)] = CALLS
    assert line == ExampleLine(word="w", tools=("A", "B,C", "D"), file="x", quiet=True)
    assert typed.given == {"word": "WORD", "tools": "--tools", "file": "--file", "quiet": "--quiet"}
    assert typed.is_command_inserted
    assert [option.words for option in typed.options] == [
        ("--Tools=A", "--Tools=B,C"),
        ("-qf", "x"),
        ("--tools=D",),
    ]


@pytest.mark.parametrize("words", [["--help"], ["-qh"], ["x", "--form", "yaml", "y", "-h"]])
def test_the_help_may_be_asked_for_in_any_place(command, words) -> None:
    assert command.read(words) is None


def test_garbage_is_collected_from_the_beginning_of_a_command_on(command) -> None:
    usual = gc.get_threshold()
    put_off_garbage_collection()
    try:
        assert gc.isenabled()
        assert gc.get_threshold() > usual
        ran(command)
        assert [thresholds for _, _, thresholds in CALLS] == [usual]
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
