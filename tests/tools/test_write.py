from __future__ import annotations

import errno
import os
import stat
from typing import Any

import pytest


def test_a_file_is_created_with_its_directories(tools, tmp_path) -> None:
    assert tools.ok("Write", file_path="a/b/c.txt", content="é\nx") == "Created a/b/c.txt (2 lines, 4 bytes)"
    assert (tmp_path / "a/b/c.txt").read_bytes() == b"\xc3\xa9\nx"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a/b/c.txt").stat().st_mode) == 0o666 & ~umask


def test_a_file_is_replaced_and_keeps_its_mode(tools, tmp_path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("old content\n")
    path.chmod(0o4751)
    said = tools.ok("Write", file_path="run.sh", content="new\r\n")
    assert (said, path.read_bytes()) == ("Replaced run.sh (1 line, 5 bytes; it had 12 bytes)", b"new\r\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o751  # what is new does not run with the owner's rights
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_content_again_changes_nothing(tools, tmp_path) -> None:
    tools.ok("Write", file_path="a", content="x")
    before = (tmp_path / "a").stat()
    assert "nothing was written" in tools.ok("Write", file_path="a", content="x")
    assert (tmp_path / "a").stat().st_ino == before.st_ino


def test_a_sparse_file_of_any_size_is_replaced_at_once(tools, tmp_path) -> None:
    path = tmp_path / "disk"
    with path.open("wb") as file:
        file.truncate(1 << 42)
    assert tools.ok("Write", file_path="disk", content="x\n").startswith("Replaced disk (1 line, 2 bytes; ")
    assert path.read_bytes() == b"x\n"


BOM = "byte order mark (UTF-8)"
KEPT = {
    "a mark": (b"\xef\xbb\xbfa\n", "b\n", b"\xef\xbb\xbfb\n", BOM),
    "a mark that is given too": (b"\xef\xbb\xbfa\n", "\ufeffb\n", b"\xef\xbb\xbfb\n", BOM),
    "CRLF": (b"a\r\nb\r\n", "c\nd\n", b"c\r\nd\r\n", "CRLF line breaks"),
    "CRLF that is given in part": (b"a\r\n", "c\r\nd\n", b"c\r\nd\r\n", "CRLF line breaks"),
    "CRLF that is given": (b"a\r\n", "c\r\nd\r\n", b"c\r\nd\r\n", ""),
    "both": (b"\xef\xbb\xbfa\r\n", "b\n", b"\xef\xbb\xbfb\r\n", f"{BOM} and CRLF line breaks"),
    "UTF-16": (
        "\ufeffa\r\n".encode("utf-16-le"),
        "ä\n",
        "\ufeffä\r\n".encode("utf-16-le"),
        "byte order mark (UTF-16-LE) and CRLF line breaks",
    ),
    "both line breaks": (b"a\r\nb\n", "c\nd\n", b"c\nd\n", ""),
    "one line": (b"a", "c\n", b"c\n", ""),
    "a binary file": (b"a\0\r\n", "c\n", b"c\n", ""),
    "no mark where one is given": (b"a\n", "\ufeffb\n", b"\xef\xbb\xbfb\n", ""),
}


@pytest.mark.parametrize("case", KEPT)
def test_mark_and_line_breaks_of_the_old_file_are_kept_and_said(tools, tmp_path, case) -> None:
    had, given, has, said = KEPT[case]
    (tmp_path / "a").write_bytes(had)
    output = tools.ok("Write", file_path="a", content=given)
    assert (tmp_path / "a").read_bytes() == has
    kept = f"[kept of the old file: {said}; Bash can change that]" if said else ""
    assert output.partition("\n")[2] == kept
    lines = given.count("\n")
    assert f"({lines} line{'' if lines == 1 else 's'}, {len(has)} bytes;" in output
    assert "nothing was written" in tools.ok("Write", file_path="a", content=given)


def test_t13_a_link_is_followed_and_its_target_replaced(tools, tmp_path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/real").write_text("old")
    (tmp_path / "link").symlink_to("dir/real")
    (tmp_path / "dangling").symlink_to("dir/new")
    tools.ok("Write", file_path="link", content="new")
    tools.ok("Write", file_path="dangling", content="made")
    assert (tmp_path / "link").is_symlink()
    assert ((tmp_path / "dir/real").read_text(), (tmp_path / "dir/new").read_text()) == ("new", "made")


def test_t13_extended_attributes_stay(tools, tmp_path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    try:
        os.setxattr(path, "user.origin", b"here")
    except (OSError, AttributeError):
        pytest.skip("no extended attributes here")
    tools.ok("Write", file_path="a", content="new")
    tools.ok("Edit", file_path="a", old_string="new", new_string="newer")
    assert os.getxattr(path, "user.origin") == b"here"


def test_what_cannot_be_written_is_named(tools, tmp_path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for path, why in (
        ("dir", "dir is a directory"),
        ("fifo", "fifo is a FIFO"),
        ("/dev/null", "/dev/null is a character device"),
        ("loop", "symbolic link"),
        ("file/a", "Not a directory"),
        ("x" * 300, "too long"),
    ):
        assert why in tools.error("Write", file_path=path, content="x")
    assert "surrogate" in tools.error("Write", file_path="a", content="\ud83d")


@pytest.mark.ordinary_user
def test_a_read_only_file_or_directory_is_said(tools, tmp_path) -> None:
    (tmp_path / "dir").mkdir(mode=0o555)
    (tmp_path / "file").touch(mode=0o444)
    assert "Permission denied" in tools.error("Write", file_path="dir/a", content="x")
    assert "file is read-only" in tools.error("Write", file_path="file", content="x")


@pytest.mark.parametrize("tool", ["Write", "Edit"])
@pytest.mark.parametrize("call", ["write", "fsync", "fchmod"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tools, tmp_path, monkeypatch, tool, call) -> None:
    """The disk is full at one step, whose system call fails."""
    (tmp_path / "a").write_text("old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    arguments = {"content": "new"} if tool == "Write" else {"old_string": "old", "new_string": "new"}
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        text = tools.error(tool, file_path="a", **arguments)
    assert (text, (tmp_path / "a").read_text()) == ("a was not written: No space left on device", "old")
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_a_short_write_is_continued(tools, tmp_path, monkeypatch) -> None:
    real_write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, bytes(data[:3])))
        tools.ok("Write", file_path="a", content="0123456789")
    assert (tmp_path / "a").read_text() == "0123456789"


def test_a_directory_that_cannot_be_opened_does_not_make_a_finished_write_a_failure(
    tools, tmp_path, monkeypatch
) -> None:
    really_open = os.open

    def no_directory(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if path == os.curdir:
            raise PermissionError(errno.EACCES, "Permission denied")
        return really_open(path, flags, *rest, **options)

    monkeypatch.setattr("os.open", no_directory)
    tools.ok("Write", file_path="a", content="x")
    assert (tmp_path / "a").read_text() == "x"
