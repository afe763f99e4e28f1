"""Write and Edit change files only beneath the working directory and the added directories. Read may read
elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ralph.sandbox.box_plan import BoxPlan
from ralph.values.answer import ToolCall
from tests.sandbox.boxes import LEVELS, means_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work/dir").mkdir(parents=True)
    (tmp_path / "other/dir").mkdir(parents=True)
    (tmp_path / "other/file").write_text("old\n")
    return tmp_path / "work"


@pytest.fixture
def tools(make_tools: Callable[..., Any], work: Path) -> Any:
    return make_tools(cwd=work, user_environment={})  # no home, which would be closed to Read


def refusals(tools: Any, path: str) -> set[str]:
    return {
        tools.error("Write", file_path=path, content="new\n"),
        tools.error("Edit", file_path=path, old_string="old", new_string="new"),
    }


def test_t10_a_path_that_leads_outside_is_read_and_not_written(tools, work) -> None:
    outside = work.parent / "other/file"
    (work / "relative").symlink_to("../other/file")
    (work / "absolute").symlink_to(outside)
    (work / "dir/up").symlink_to("../../other")
    for path in ("../other/file", "dir/../../other/file", "relative", "absolute", "dir/up/file"):
        assert "old" in tools.ok("Read", file_path=path)
        [refusal] = refusals(tools, path)
        assert refusal.startswith(f"{path} (really {outside}) is outside the directories"), refusal
        assert str(work) in refusal
        assert "--add-dir" in refusal
    [refusal] = refusals(tools, str(outside))
    assert refusal.startswith(f"{outside} is outside")
    assert outside.read_text() == "old\n"


def test_t10_nothing_is_made_outside(tools, work) -> None:
    (work / "dangling").symlink_to("../other/new")
    (work / "up").symlink_to("../other")
    (work.parent / "work2").mkdir()
    for path in ("../new/file", "dangling", "up/new/file", "../work2/a"):
        assert "outside the directories" in tools.error("Write", file_path=path, content="x")
    assert {path.name for path in (work.parent / "other").iterdir()} == {"dir", "file"}
    assert not (work.parent / "new").exists()


@pytest.mark.parametrize("level", LEVELS)
def test_the_temporary_directory_of_commands_is_written_too(make_tools, work, level) -> None:
    tools = make_tools(cwd=work, box_plan=BoxPlan(means_of(level)), user_environment={})
    told = tools.ok("Bash", command="ln -s $PWD/../other $TMPDIR/l; echo $TMPDIR").strip()
    tools.ok("Write", file_path=f"{told}/made", content="x\n")
    assert tools.ok("Bash", command="cat $TMPDIR/made").strip() == "x"
    for path in (f"{told}/l/new", f"{told}x/new", f"{told}/../new"):
        assert "outside the directories" in tools.error("Write", file_path=path, content="x")


def test_links_that_stay_inside_keep_working_absolute_ones_too(tools, work) -> None:
    (work / "dir/file").write_text("old")
    (work / "relative").symlink_to("dir/file")
    (work / "absolute").symlink_to(work / "dir")
    tools.ok("Edit", file_path="relative", old_string="old", new_string="new")
    assert (work / "relative").is_symlink()
    assert (work / "dir/file").read_text() == "new"
    tools.ok("Write", file_path="absolute/made", content="x")
    tools.ok("Write", file_path=str(work / "dir/../top"), content="x")
    assert {path.name for path in work.rglob("*")} == {
        *("dir", "file", "made", "relative", "absolute", "top")
    }


def test_a_working_directory_that_is_a_link_means_what_it_leads_to(make_tools, work) -> None:
    (work.parent / "link").symlink_to("work")
    tools = make_tools(cwd=work.parent / "link")
    tools.ok("Write", file_path="a", content="x")
    tools.ok("Write", file_path=str(work.parent / "link/b"), content="x")
    tools.ok("Write", file_path=str(work / "c"), content="x")
    assert {path.name for path in work.iterdir()} == {"a", "b", "c", "dir"}


def test_an_added_directory_may_be_written_too(make_tools, work) -> None:
    other = work.parent / "other"
    tools = make_tools(cwd=work, writable=(other / "dir", work.parent / "other"))
    (work / "link").symlink_to("../other/dir")
    tools.ok("Write", file_path="../other/dir/a", content="x")
    tools.ok("Write", file_path="link/new/b", content="x")
    tools.ok("Edit", file_path=str(other / "file"), old_string="old", new_string="new")
    assert {path.name for path in (other / "dir").iterdir()} == {"a", "new"}
    refusal = tools.error("Write", file_path="../c", content="x")
    assert all(str(root) in refusal for root in (work, other, other / "dir"))


def test_an_added_directory_that_was_moved_is_neither_made_again_nor_followed(make_tools, work) -> None:
    other = work.parent / "other"
    tools = make_tools(cwd=work, writable=(other,))
    other.rename(work.parent / "moved")
    assert "is gone" in tools.error("Write", file_path=str(other / "a"), content="x")
    assert not other.exists()
    assert not (work.parent / "moved/a").exists()
    tools.ok("Write", file_path="a", content="x")


def test_a_link_that_appears_between_the_plan_and_the_write_is_not_followed(make_tools, work) -> None:
    tools = make_tools(cwd=work)
    (work / "dir/deep").mkdir()
    (work.parent / "other/deep").mkdir()
    call = ToolCall("1", "Write", {"file_path": "dir/deep/file", "content": "x"})
    tools.box.plan(call)
    (work / "dir").rename(work / "aside")
    (work / "dir").symlink_to("../other")
    [(output, _)] = tools.box.run([call])
    assert output.content == f"dir/deep/file was not written: a link on its way leads out of {work}"
    (work / "dir").unlink()
    (work / "aside").rename(work / "dir")
    tools.box.plan(call)
    (work / "dir/deep/file").symlink_to(work.parent / "other/file")
    [(output, _)] = tools.box.run([call])
    assert output.content == "dir/deep/file changed while this call was prepared; read it again"
    assert (work.parent / "other/file").read_text() == "old\n"
    assert list((work.parent / "other/deep").iterdir()) == []
