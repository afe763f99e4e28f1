"""A file that somebody else has changed since the model saw it must not be overwritten."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.conversation.journal_lines import line_of
from ralph.conversation.records import ResultRecord, result_record
from ralph.tools import tool_context
from ralph.tools.tool_context import SeenFiles
from ralph.values.answer import FileChange, ToolCall, ToolError, ToolOutput, ToolResult
from tests.journals.reading import read_lines

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGED = "a changed on disk since it was read; read it again. Nothing was written"
EDIT = {"old_string": "one", "new_string": "1"}
ARGUMENTS: dict[str, dict[str, str]] = {"Edit": EDIT, "Write": {"content": "whole\n"}}


def in_place(path: Path) -> None:
    path.write_text("one\nmore\n")


def by_rename(path: Path) -> None:
    (path.parent / "b").write_text("one\nmore\n")
    (path.parent / "b").rename(path)


def of_the_same_size_and_time(path: Path) -> None:
    before = path.stat()
    path.write_text("one\ntow\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


@pytest.mark.parametrize("tool", ["Edit", "Write"])
@pytest.mark.parametrize("change", [in_place, by_rename, of_the_same_size_and_time])
@pytest.mark.parametrize("seen_by", ["Read", "Write", "Edit"])
def test_t14_a_file_that_changed_since_it_was_seen_is_left_alone_until_it_is_read_again(
    tools, tmp_path, tool, change, seen_by
) -> None:
    path = tmp_path / "a"
    path.write_text("one\ntw0\n")
    if seen_by == "Read":
        tools.ok("Read", file_path="a", limit=1)
    elif seen_by == "Write":
        tools.ok("Write", file_path="a", content="one\ntwo\n")
    else:
        tools.ok("Edit", file_path="a", old_string="0", new_string="o")
    change(path)
    changed = path.read_text()
    for _ in range(2):
        assert tools.error(tool, file_path="a", **ARGUMENTS[tool]) == CHANGED
    assert path.read_text() == changed
    tools.ok("Read", file_path="a")
    tools.ok(tool, file_path="a", **ARGUMENTS[tool])
    assert path.read_text() != changed


@pytest.mark.parametrize("tool", ["Edit", "Write"])
def test_t14_a_new_time_or_mode_or_the_same_content_again_is_no_change(tools, tmp_path, tool) -> None:
    path = tmp_path / "a"
    path.write_text("one\ntwo\n")
    tools.ok("Read", file_path="a")
    os.utime(path, (1, 1))
    path.chmod(0o600)
    by_rename(path)
    path.write_text("one\ntwo\n")
    tools.ok(tool, file_path="a", **ARGUMENTS[tool])


def test_t14_a_file_is_one_whatever_path_leads_to_it(tools, tmp_path) -> None:
    (tmp_path / "a").write_text("one\n")
    (tmp_path / "link").symlink_to("a")
    tools.ok("Read", file_path=str(tmp_path / "link"))
    in_place(tmp_path / "a")
    assert tools.error("Write", file_path="a", content="x") == CHANGED


def test_t14_a_file_that_is_gone_may_be_written_anew(tools, tmp_path) -> None:
    (tmp_path / "a").write_text("one\n")
    tools.ok("Read", file_path="a")
    (tmp_path / "a").unlink()
    tools.ok("Write", file_path="a", content="x")


def test_t14_a_large_file_is_known_by_its_time_and_size(tools, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tool_context, "_MOST_BYTES_HASHED", 3)
    (tmp_path / "a").write_text("one\ntwo\n")
    tools.ok("Read", file_path="a")
    os.utime(tmp_path / "a", (1, 1))
    assert tools.error("Write", file_path="a", content="x") == CHANGED


def test_t14_a_change_between_plan_and_write_is_refused(tools, tmp_path) -> None:
    (tmp_path / "a").write_text("one\n")
    call = ToolCall("1", "Write", {"file_path": "a", "content": "x"})
    tools.box.plan(call)
    in_place(tmp_path / "a")
    [(output, _)] = tools.box.run([call])
    assert output.content == "a changed while this call was prepared; read it again"
    (tmp_path / "b").unlink(missing_ok=True)
    new = ToolCall("2", "Write", {"file_path": "b", "content": "x"})
    tools.box.plan(new)
    (tmp_path / "b").write_text("theirs")
    [(output, _)] = tools.box.run([new])
    assert output.is_error
    assert (tmp_path / "b").read_text() == "theirs"


def test_t14_a_writer_at_the_same_time_never_meets_an_edit_of_what_it_replaced(tools, tmp_path) -> None:
    """Every written file must be the content that was read, with the edit in it. It must not mix two contents."""
    path = tmp_path / "a"
    path.write_text("0 one\n" * 2000)
    ends = threading.Event()

    def write() -> None:
        for number in range(1, 1_000_000):
            (tmp_path / "theirs").write_text(f"{number} one\n" * 2000)
            (tmp_path / "theirs").rename(path)
            if ends.wait(0.001):
                return

    writer = threading.Thread(target=write)
    writer.start()
    done, refused = 0, 0
    until_s = time.monotonic() + 0.15
    while time.monotonic() < until_s or not refused:
        tools.ok("Read", file_path="a", limit=1)
        output = tools.call("Edit", {"file_path": "a", **EDIT, "replace_all": True})
        done += not output.is_error
        refused += "changed" in output.content
        lines = path.read_text().splitlines()
        assert (len(lines), len(set(lines))) == (2000, 1)
    ends.set()
    writer.join()
    assert refused


def test_what_was_seen_longest_ago_is_forgotten_first(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tool_context, "_MOST_FILES", 2)
    (tmp_path / "a").write_text("x")
    stat = (tmp_path / "a").stat()
    seen = SeenFiles()
    for name in ("a", "b", "a", "c"):
        seen.was_written(Path(name), stat, "before")
    seen.refuse_changed(Path("b"), stat, "after", "b")
    for name in ("a", "c"):
        with pytest.raises(ToolError, match=f"^{name} changed on disk"):
            seen.refuse_changed(Path(name), stat, "after", name)


def continues(make_tools: Callable[..., Any], *outputs: ToolOutput) -> Any:
    """The tools of a run that resumes a session with these results."""
    seen: dict[str, str] = {}
    for output in outputs:
        [record] = read_lines(line_of(0, result_record(ToolResult("c", output)))).records
        assert isinstance(record, ResultRecord)
        seen |= record.seen
    tools = make_tools()
    tools.box.resume_from(seen, [])
    return tools


SEEING: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "Read": [("Read", {"limit": 1})],
    "Write": [("Write", {"content": "one\n"})],
    "Edit": [("Edit", {"old_string": "two", "new_string": "three"})],
    "Read, then Edit": [("Read", {}), ("Edit", {"old_string": "two", "new_string": "three"})],
}


@pytest.mark.parametrize("seen_by", SEEING)
@pytest.mark.parametrize(("tool", "hashed_bytes"), [("Edit", 0), ("Write", 10_000_000)])
def test_t14_what_an_earlier_run_saw_is_known_after_a_resume(
    tools, make_tools, tmp_path, monkeypatch, tool, seen_by, hashed_bytes
) -> None:
    monkeypatch.setattr(tool_context, "_MOST_BYTES_HASHED", hashed_bytes)
    path = tmp_path / "a"
    path.write_text("one\ntwo\n")
    outputs = [tools.call(name, {"file_path": "a", **arguments}) for name, arguments in SEEING[seen_by]]
    continues(make_tools, *outputs).ok(tool, file_path="a", **ARGUMENTS[tool])
    outputs.append(tools.call("Read", {"file_path": "a"}))
    by_rename(path)
    again = continues(make_tools, *outputs)
    assert again.error(tool, file_path="a", **ARGUMENTS[tool]) == CHANGED
    again.ok("Read", file_path="a")
    again.ok(tool, file_path="a", **ARGUMENTS[tool])


def test_t14_what_a_settled_write_left_is_known_too(tools, tmp_path) -> None:
    path = tmp_path / "a"
    path.write_text("whole\n")
    digest = hashlib.sha256(b"whole\n").hexdigest()
    settled = tools.box.settle(FileChange(str(path), None, digest))
    assert settled.seen == {str(path): digest}
    in_place(path)
    assert tools.error("Write", file_path="a", content="new\n") == CHANGED


def test_t14_a_name_that_is_no_utf8_is_left_out_of_the_journal(tools, tmp_path) -> None:
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / name).write_text("x")
    output = tools.call("Read", {"file_path": name})
    assert (output.is_error, output.seen) == (False, {})


@pytest.mark.parametrize("text", ["", "1:2", "1:2:3:4:5", "a:b:c:d"])
def test_what_another_version_noted_has_to_be_read_again(tmp_path, text) -> None:
    (tmp_path / "a").write_text("x")
    seen = SeenFiles()
    seen.restore({str(tmp_path / "a"): text})
    with pytest.raises(ToolError, match="read it again"):
        seen.refuse_changed(tmp_path / "a", (tmp_path / "a").stat(), "00", "a")
