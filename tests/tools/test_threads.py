"""Tools run beside the thread that handles signals, and a system without free threads does no harm."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.machine import starting
from ralph.machine.starting import end_idle_threads
from ralph.values.answer import FileChange, ToolCall, ToolOutput
from ralph.values.outcome import ShortageError
from ralph.values.ports import Interrupted
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def is_over() -> Iterator[threading.Event]:
    """Set when the test is over."""
    over = threading.Event()
    yield over
    over.set()


@pytest.mark.parametrize("tool", ["Edit", "Write"])
def test_a_signal_is_heard_while_a_file_is_changed_and_not_waited_for_long(
    tools, monkeypatch, is_over, tool
) -> None:
    def slow(_arguments: Any, _context: Any) -> ToolOutput:
        is_over.wait()
        return ToolOutput("done")

    monkeypatch.setattr(f"ralph.tools.edit.plan_{tool.lower()}", slow)
    threading.Timer(0.1, tools.waiter.inbox.note_signal, [signal.SIGINT]).start()
    started_s = time.monotonic()
    with pytest.raises(Interrupted):
        tools.box.run([ToolCall("1", tool, {})])
    assert time.monotonic() - started_s >= 0.5


def test_a_write_in_progress_is_finished_before_the_signal_is_raised(tools, monkeypatch, tmp_path) -> None:
    really_rename, really_wait, is_waited_for = os.rename, tools.waiter.wait, threading.Event()

    def wait(*arguments: Any, waiting_for: str, **options: Any) -> Any:
        if waiting_for == "tools":
            is_waited_for.set()
        return really_wait(*arguments, waiting_for=waiting_for, **options)

    def slow_rename(*names: Any, **options: Any) -> None:
        tools.waiter.inbox.note_signal(signal.SIGINT)
        is_waited_for.wait(PATIENCE_S)
        time.sleep(0.1)  # not at once, for one who does not wait
        really_rename(*names, **options)

    monkeypatch.setattr(tools.waiter, "wait", wait)
    monkeypatch.setattr("os.rename", slow_rename)
    with pytest.raises(Interrupted):
        tools.box.run([ToolCall("1", "Write", {"file_path": "a", "content": "x"})])
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "x")]


def no_more_threads(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    really_start = threading.Thread.start
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if len(started) >= after:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        really_start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    end_idle_threads()


@pytest.mark.parametrize("after", [0, 1])
def test_without_a_thread_left_files_are_read_and_written_all_the_same(
    tools, monkeypatch, tmp_path, after
) -> None:
    no_more_threads(monkeypatch, after)
    tools.ok("Write", file_path="a", content="x\n")
    calls = [ToolCall(str(number), "Read", {"file_path": "a"}) for number in range(3)]
    assert [output.content for output, _ in tools.box.run(calls)] == ["     1\tx"] * 3


@pytest.mark.parametrize("bell", [True, False])
def test_without_a_thread_left_a_command_runs_all_the_same(make_tools, monkeypatch, tmp_path, bell) -> None:
    """Its output is kept in a file here, for which a thread reads if there is one. Without descriptors for its bell, the
    thread that waits looks at its queue again and again.
    """
    if not bell:
        monkeypatch.setattr("ralph.machine.waiter._Bell", _no_descriptor)
    tools = make_tools(max_output_bytes=100)
    no_more_threads(monkeypatch, 0)
    text = tools.ok("Bash", command="seq 1000; sleep 0.1; echo the end")
    assert text.endswith("the end")
    (kept,) = re.findall(r"whole output: (\S+) ", text)
    assert Path(kept).read_text() == "".join(f"{number}\n" for number in range(1, 1001)) + "the end\n"


def _no_descriptor() -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_thread_that_dies_without_a_word_is_not_waited_for_ever(tools, monkeypatch) -> None:
    """A thread ends like this if there is no memory left for its result."""
    end_idle_threads()
    monkeypatch.setattr(starting._Worker, "run", lambda _worker: None)
    with pytest.raises(ShortageError, match="no memory left"):
        tools.box.run([ToolCall("1", "Read", {"file_path": "a"})])


@pytest.mark.parametrize("lacking", [MemoryError(), OSError(24, "Too many open files")], ids=repr)
def test_a_tool_that_finds_the_machine_short_says_so_and_is_no_bug(tools, monkeypatch, lacking) -> None:
    def fails(*_: Any) -> ToolOutput:
        raise lacking

    monkeypatch.setattr("ralph.tools.read.run", fails)
    text = tools.error("Read", file_path="a")
    assert text.startswith("this machine has no ")
    assert text.endswith("left; nothing is wrong with the call. That passes: try again")


@pytest.mark.parametrize("before", [None, "00"])
def test_t11_settling_does_not_open_a_fifo(tools, tmp_path, before) -> None:
    path = tmp_path / "a"
    os.mkfifo(path)
    settled = tools.box.settle(FileChange(str(path), before, "11"))
    if before is None:
        assert settled is None, "there was no file, and there is none"
    else:
        assert "neither the old content nor the new" in settled.content


def test_p7_a_signal_is_heard_while_a_write_is_settled(tools, monkeypatch, is_over) -> None:
    monkeypatch.setattr("ralph.tools.planned_write.settle", lambda *_: is_over.wait())
    threading.Timer(0.1, tools.waiter.inbox.note_signal, [signal.SIGINT]).start()
    with pytest.raises(Interrupted):
        tools.box.settle(FileChange("/a", None, "11"))


def test_what_cannot_be_settled_is_an_error_and_no_hang(tools) -> None:
    settled = tools.box.settle(FileChange("a\0b", None, "11"))
    assert settled.is_error
    assert "ValueError" in settled.content
