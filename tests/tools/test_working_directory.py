"""A working directory that is gone ends the work in it, and is never made again."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ralph.tools.tool_context import ToolContext
from ralph.values.answer import ToolCall
from ralph.values.ports import WorkingDirectoryGoneError
from tests.fakes.box import FakeBox
from tests.processes.descriptors import open_descriptors, wait_until_closed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CALLS = {
    "Read": {"file_path": "a"},
    "Write": {"file_path": "deep/a", "content": "x"},
    "Edit": {"file_path": "a", "old_string": "x", "new_string": "y"},
    "Bash": {"command": "touch here"},
    "Glob": {"pattern": "*"},
    "Grep": {"pattern": "x"},
}


def removed(work: Path) -> None:
    shutil.rmtree(work)


def moved(work: Path) -> None:
    work.rename(work.parent / "moved")


def replaced(work: Path) -> None:
    shutil.rmtree(work)
    work.mkdir()


def swapped_for_a_file(work: Path) -> None:
    shutil.rmtree(work)
    work.touch()


def led_elsewhere(work: Path) -> None:
    moved(work)
    (work.parent / "elsewhere").mkdir()
    work.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("tool", "goes"),
    [
        *((tool, removed) for tool in CALLS),
        *(
            (tool, way)
            for way in (moved, replaced, swapped_for_a_file, led_elsewhere)
            for tool in ("Read", "Bash")
        ),
    ],
)
def test_t8_a_working_directory_that_is_gone_is_told_by_every_tool_and_not_made_again(
    make_tools, tmp_path, tool, goes
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a").write_text("x")
    tools = make_tools(cwd=work)
    goes(work)
    before = sorted(tmp_path.rglob("*"))
    call = ToolCall("1", tool, CALLS[tool])
    ways: list[Callable[[], object]] = [lambda: tools.box.run([call]), lambda: tools.box.plan(call)]
    # Only what writes or calls a server is planned. A command's launcher looks when it starts the command.
    for way in ways[: 2 if tool in ("Write", "Edit") else 1]:
        with pytest.raises(WorkingDirectoryGoneError, match="is gone: it was removed, moved or replaced"):
            way()
    assert sorted(tmp_path.rglob("*")) == before


def test_t8_in_a_directory_that_took_its_place_nothing_is_undone(make_tools, tmp_path, monkeypatch) -> None:
    """And ralph's state does not say that a command is running."""
    work = tmp_path / "work"
    work.mkdir()
    box = FakeBox("x")
    monkeypatch.setattr(ToolContext, "box", box)
    tools = make_tools(cwd=work)
    replaced(work)
    with pytest.raises(WorkingDirectoryGoneError):
        tools.box.run([ToolCall("1", "Bash", {"command": "true"})])
    assert [done for done in box.done if done != "prepare"] == ["look", "not started"]


def test_t8_the_command_that_removed_it_has_its_own_result(make_tools, tmp_path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    tools = make_tools(cwd=work)
    assert tools.ok("Bash", command='rm -rf "$PWD"; echo removed') == "removed"
    with pytest.raises(WorkingDirectoryGoneError):
        tools.box.run([ToolCall(str(number), "Glob", {"pattern": "*"}) for number in range(3)])


def test_t8_a_directory_that_comes_back_is_worked_in_again(make_tools, tmp_path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    tools = make_tools(cwd=work)
    moved(work)
    (tmp_path / "moved").rename(work)
    tools.ok("Write", file_path="a", content="x")


def test_t8_one_that_is_gone_before_the_first_call_is_said_too(make_tools, tmp_path) -> None:
    with pytest.raises(WorkingDirectoryGoneError):
        make_tools(cwd=tmp_path / "nowhere")


def test_closing_the_toolbox_leaves_no_descriptor(make_tools, tmp_path) -> None:
    (tmp_path / "other").mkdir()
    before = open_descriptors()
    tools = make_tools(writable=(tmp_path / "other",))
    tools.ok("Write", file_path="new/a", content="x")
    tools.box.close()
    wait_until_closed(before)
    with pytest.raises(FileNotFoundError):
        make_tools(writable=(tmp_path / "other", tmp_path / "nowhere"))
    wait_until_closed(before)
