"""Tests where a loop's prompt comes from. Uses real pipes and files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ralph.loop.check import PromptReader, PromptSource, find_prompt
from ralph.loop.values import LoopPlan
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.prompt.prompt_input import InputWait, PromptError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NOTHING = -1


@pytest.fixture
def piped() -> Iterator[Callable[[bytes], int]]:
    """Makes a pipe that contains this data and then ends. Returns its reading end."""
    ends: list[int] = []

    def pipe(data: bytes) -> int:
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        ends.append(reading)
        return reading

    yield pipe
    for end in ends:
        os.close(end)


def found(argument: str | None, file: str | None, stdin_fd: int = NOTHING) -> PromptSource:
    clock = SystemClock()
    wait = InputWait(InboxWaiter(clock), clock, 0.2, print)
    return find_prompt(argument, file, directories=(), wait=wait, stdin_fd=stdin_fd)


def test_an_argument_is_the_text(piped) -> None:
    assert found("do it", None) == PromptSource("do it", None)
    assert found("do it", None, piped(b"")) == PromptSource("do it", None)


def test_a_file_is_named_and_not_kept(tmp_path, piped) -> None:
    file = tmp_path / "PROMPT.md"
    file.write_text("do it")
    assert found(None, str(file), piped(b"\n")) == PromptSource(None, str(file))


@pytest.mark.parametrize(("argument", "file"), [(None, None), ("-", None), (None, "-")])
def test_standard_input_is_the_text(piped, argument, file) -> None:
    assert found(argument, file, piped(b"do it\n")) == PromptSource("do it\n", None)


def test_a_pipe_given_as_a_file_is_text_as_it_can_be_read_only_once(piped) -> None:
    assert found(None, f"/dev/fd/{piped(b'do it')}") == PromptSource("do it", None)


def test_a_silent_pipe_beside_a_prompt_is_left_alone_and_that_is_said() -> None:
    reading, writing = os.pipe()
    try:
        source = found("do it", None, reading)
    finally:
        os.close(writing)
        os.close(reading)
    assert source.text == "do it"
    assert source.silent is not None
    assert "ralph ignores it" in source.silent.notice


@pytest.mark.parametrize(
    ("argument", "file", "stdin", "says"),
    [
        ("a", None, b"b", "standard input holds data as well"),
        (None, "PROMPT.md", b"b", "standard input holds data as well"),
        (None, "LATIN1.md", None, "the prompt file LATIN1.md is not UTF-8 text"),
    ],
)
def test_what_is_no_single_prompt_is_refused(
    tmp_path, monkeypatch, piped, argument, file, stdin, says
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "PROMPT.md").write_text("do it")
    (tmp_path / "LATIN1.md").write_bytes("caf\xe9".encode("latin-1"))
    with pytest.raises(PromptError, match=says):
        found(argument, file, NOTHING if stdin is None else piped(stdin))


# --- read again before each iteration


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (lambda path: path.unlink(), "cannot read"),
    "empty": (lambda path: path.write_text(" \n"), "is empty"),
    "a pipe": (make_pipe, "not a regular file"),
}


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def reader(tmp_path: Path, warnings: list[str]) -> PromptReader:
    (tmp_path / "PROMPT.md").write_text("first\n")
    plan = LoopPlan(str(tmp_path), str(tmp_path), prompt_file=str(tmp_path / "PROMPT.md"))
    return PromptReader(plan, warn=warnings.append)


@pytest.mark.parametrize(("spoil", "said"), SPOILED.values(), ids=SPOILED)
def test_one_that_an_agent_spoiled_says_what_it_said_before(
    reader: PromptReader, tmp_path: Path, warnings: list[str], spoil: Callable[[Path], object], said: str
) -> None:
    reader.read()
    spoil(tmp_path / "PROMPT.md")
    assert reader.read() == "first\n"
    [warning] = warnings
    assert said in warning
    assert warning.endswith("the iteration gets its earlier content")


def test_where_nobody_knows_what_it_said_it_is_an_error(reader: PromptReader, tmp_path: Path) -> None:
    (tmp_path / "PROMPT.md").unlink()
    with pytest.raises(FileNotFoundError):
        reader.read()
