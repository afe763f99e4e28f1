from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ralph.loop.opening.prompt_source import PromptReader
from ralph.loop.values import LoopPlan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
    assert warning.endswith("the iteration gets what it said before")


def test_where_nobody_knows_what_it_said_it_is_an_error(reader: PromptReader, tmp_path: Path) -> None:
    (tmp_path / "PROMPT.md").unlink()
    with pytest.raises(FileNotFoundError):
        reader.read()
