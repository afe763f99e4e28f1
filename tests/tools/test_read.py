from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def test_lines_come_numbered(tools, tmp_path) -> None:
    (tmp_path / "a").write_text("one\n\ttwo\nthree")
    assert tools.ok("Read", file_path="a") == "     1\tone\n     2\t\ttwo\n     3\tthree"
    assert tools.ok("Read", file_path=str(tmp_path / "a"), offset=2, limit=1) == (
        "     2\t\ttwo\n[the file continues: offset=3]"
    )
    assert tools.ok("Read", file_path="a", offset=0, limit=3).startswith("     1\tone")
    assert tools.ok("Read", file_path="a", offset=3) == "     3\tthree"


@pytest.mark.parametrize(
    ("content", "lines"), [("a\n", 1), ("a", 1), ("a\nb\n", 2), ("a\nb", 2), ("\n\n\n", 3)]
)
def test_an_offset_past_the_end_names_the_number_of_lines(tools, tmp_path, content, lines) -> None:
    (tmp_path / "a").write_text(content)
    for offset in (lines + 1, 99):
        said = f"offset {offset} is past the end: the file has {lines} line{'' if lines == 1 else 's'}"
        assert tools.error("Read", file_path="a", offset=offset) == said
    tools.ok("Read", file_path="a", offset=lines)


def test_an_empty_file_says_so(tools, tmp_path) -> None:
    (tmp_path / "a").touch()
    assert tools.ok("Read", file_path="a") == "(the file is empty)"


def test_bounds_on_lines_line_length_and_bytes_are_said(tools, tmp_path) -> None:
    (tmp_path / "lines").write_text("x\n" * 2001)
    assert tools.ok("Read", file_path="lines").endswith("  2000\tx\n[the file continues: offset=2001]")
    (tmp_path / "exact").write_text("x\n" * 2000)
    assert tools.ok("Read", file_path="exact").endswith("  2000\tx")
    (tmp_path / "long").write_text("é" * 5000 + "\nend")
    assert tools.ok("Read", file_path="long") == f"     1\t{'é' * 2000} [line cut: 10,000 bytes]\n     2\tend"
    (tmp_path / "wide").write_text(("y" * 1999 + "\n") * 1000)
    wide = tools.ok("Read", file_path="wide")
    assert wide.endswith("[256 KB are the most at once; the file continues: offset=132]")
    assert len(wide) < 270_000


@linux_only
def test_t11_two_gigabytes_are_read_in_part_in_a_second_and_little_memory(tmp_path) -> None:
    """The file has text, then a hole, then text. The memory is measured in a separate process."""
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.write(b"first line\n" * 10_000)
        file.truncate(2 * 1024**3)
    script = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from ralph.values.answer import ToolCall
        from ralph.machine.waiter import SystemClock
        from ralph.tools.toolbox import LocalToolbox
        from ralph.tools.tool_context import ToolSettings
        from ralph.machine.waiter import InboxWaiter
        from tests.processes.memory import peak_kib
        clock = SystemClock()
        box = LocalToolbox(ToolSettings(cwd=Path(sys.argv[1]), environment={}), waiter=InboxWaiter(clock), clock=clock)
        for offset in (1, 9_000, 10_001, 20_000):
            started = time.process_time()  # what other tests do at the same time is not its work
            [(output, _)] = box.run([ToolCall("1", "Read", {"file_path": "big", "offset": offset})])
            print(offset, output.is_error, time.process_time() - started)
        print(peak_kib())
    """)
    *reads, peak_kib = subprocess.check_output(
        [sys.executable, "-c", script, str(tmp_path)], text=True
    ).splitlines()
    fails = [read.split()[:2] for read in reads]
    assert fails == [["1", "False"], ["9000", "False"], ["10001", "False"], ["20000", "True"]]
    assert all(float(read.split()[2]) < 1.0 for read in reads)
    assert int(peak_kib) < 100 * 1024


def test_t11_what_is_no_regular_file_is_named_at_once(tools, tmp_path, monkeypatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tmp_path)  # a socket's path must be short
        listener.bind("socket")
    for name, kind in (
        *(("socket", "a socket"), ("fifo", "a FIFO"), ("link", "a FIFO")),
        *(("dir", "a directory; list it with Glob"), ("/dev/zero", "a character device")),
    ):
        assert f"{name} is {kind}" in tools.error("Read", file_path=name)


@linux_only
def test_t11_files_of_the_kernel_that_claim_to_be_empty_are_read(tools) -> None:
    assert "1\tMemTotal" in tools.ok("Read", file_path="/proc/meminfo", limit=3)


@linux_only
@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="needs the right to read the kernel's log")
def test_t11_a_kernel_log_that_never_ends_does_not_hang(tools) -> None:
    tools.call("Read", {"file_path": "/proc/kmsg"})


def test_a_missing_file_comes_with_similar_names(tools, tmp_path) -> None:
    (tmp_path / "README.md").touch()
    (tmp_path / "settings.py").touch()
    said = "readme.md does not exist. Similar names there: README.md."
    assert tools.error("Read", file_path="readme.md") == said
    assert "settings.py" in tools.error("Read", file_path="setings.py")
    assert f"{tmp_path} does" in tools.error("Read", file_path="no/such/file")
    for name in ("a\0b", "", "\ud800"):
        assert "cannot be the name of a file" in tools.error("Read", file_path=name)


@pytest.mark.parametrize(
    ("data", "shown", "note"),
    [
        ("grün\n".encode("latin-1"), "grün", "[not valid UTF-8: shown as Latin-1]"),
        ("\ufeffgrün\n".encode(), "grün", ""),
        ("grün\n日本".encode("utf-16"), "grün\n     2\t日本", "[encoded as utf-16-le]"),
        (b"\xfe\xff" + "grün\n".encode("utf-16-be"), "grün", "[encoded as utf-16-be]"),
        (b"a\r\nb\r\n", "a\n     2\tb", "[lines end in CRLF]"),
    ],
)
def test_encodings_are_read_for_show(tools, tmp_path, data, shown, note) -> None:
    (tmp_path / "a").write_bytes(data)
    assert tools.ok("Read", file_path="a") == f"     1\t{shown}" + (f"\n{note}" if note else "")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\x7fELF\x02\x01\x01\0", "ELF program or library"),
        (b"%PDF-1.7\n", "PDF document"),
        (b"PK\x03\x04\x14\0", "ZIP archive"),
        (b"SQLite format 3\0", "SQLite database"),
        (b"\0\0\0\x18ftypmp42", "MP4 or HEIF media"),
        (b"x" * 257 + b"ustar\0", "tar archive"),
        (b"abc\0def", "unknown type"),
    ],
)
def test_a_binary_file_is_named_by_type_and_size(tools, tmp_path, data, name) -> None:
    (tmp_path / "a").write_bytes(data)
    text = tools.error("Read", file_path="a")
    assert name in text
    assert text.endswith(f", {len(data)} bytes")


def test_the_home_directory_may_be_written_with_a_tilde(make_tools, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").write_text("x")
    assert make_tools(cwd=Path("/")).ok("Read", file_path="~/a") == "     1\tx"


def test_only_a_line_that_has_an_end_tells_what_lines_end_in(tools, tmp_path) -> None:
    (tmp_path / "mac").write_bytes(b"a\rb\r")
    assert "CRLF" not in tools.ok("Read", file_path="mac")
    (tmp_path / "dos").write_bytes(b"a\r\n")
    assert tools.ok("Read", file_path="dos") == "     1\ta\n[lines end in CRLF]"
