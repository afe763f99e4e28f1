"""Tests commands in the background with real processes, without a model."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ralph.machine.files.trees import SpillDirectory
from ralph.machine.running_command import OutputCapture, StreamRedaction
from ralph.tools import background
from ralph.tools.background import BackgroundCommand, BackgroundCommands
from ralph.values.answer import ToolCall
from ralph.values.events import BackgroundEnded, BackgroundStarted
from ralph.values.ports import Interrupted
from ralph.values.redaction import Redactor
from tests.patience import wait_until
from tests.processes.children import children, is_gone
from tests.processes.descriptors import open_descriptors, wait_until_closed
from tests.tools.test_bash import marker_for, processes_with

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")
NAME = "background commands"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_WAITS_S", 0.3)


def start(tools: Any, command: str) -> str:
    said = tools.ok("Bash", command=command, run_in_background=True)
    assert said.startswith("Command running in background with ID: ")
    return str(said.split()[6])


def read(tools: Any, command_id: str) -> str:
    return str(tools.ok("BashOutput", bash_id=command_id))


def read_to_end(tools: Any, command_id: str) -> str:
    """All that BashOutput shows until the command has ended."""
    shown = ""
    while "has ended: " not in shown:
        shown += read(tools, command_id) + "\n"
    return shown


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == NAME]


def test_output_is_shown_once_and_the_end_with_its_status(tools, tmp_path) -> None:
    first = start(tools, "echo one; until [ -e go ]; do sleep 0.02; done; echo two >&2; exit 7")
    assert read(tools, first).startswith("one\n[bash_1 is running, ")
    assert read(tools, first).startswith("(nothing new within 0.3 s)\n[bash_1 is running, ")
    (tmp_path / "go").touch()
    assert read_to_end(tools, first).endswith("two\n[bash_1 has ended: exit code 7]\n")
    assert "all of its output was read" in tools.error("BashOutput", bash_id=first)
    assert tools.error("KillBash", shell_id=first) == "bash_1 has ended already (exit code 7)"


def test_what_it_printed_after_its_output_was_taken_is_shown_with_its_end(
    tools, tmp_path, monkeypatch
) -> None:
    one = start(tools, "echo early; until [ -e go ]; do sleep 0.02; done; echo late")
    as_ever = BackgroundCommands.read

    def reading(commands: Any, command: Any, *rest: Any) -> str | None:
        monkeypatch.setattr(BackgroundCommands, "read", as_ever)
        taken = as_ever(commands, command, *rest)
        (tmp_path / "go").touch()
        wait_until(lambda: command.is_over)
        return taken

    monkeypatch.setattr(BackgroundCommands, "read", reading)
    assert read(tools, one) == "early\nlate\n[bash_1 has ended: exit code 0]"


def test_a_command_that_fails_at_once_says_so_in_its_call(tools, monkeypatch) -> None:
    monkeypatch.setattr(background, "_ENDS_EARLY_S", 60.0)
    said = tools.error("Bash", command="echo no; exit 3", run_in_background=True)
    assert said == "no\n[bash_1 has ended: exit code 3]"
    said = tools.ok("Bash", command="true", run_in_background=True)
    assert said == "(no output)\n[bash_2 has ended: exit code 0]"


@linux_only
def test_it_lives_as_long_as_one_of_its_processes(tools, tmp_path) -> None:
    """Such as what `pg_ctl start` starts."""
    loop = "until [ -e go ]; do sleep 0.02; done; echo last"
    one = start(tools, f"setsid sh -c '{loop}' & echo began")
    assert read(tools, one).startswith("began\n[bash_1 is running, ")
    assert "is running" in read(tools, one), "its shell has ended for long"
    (tmp_path / "go").touch()
    assert read_to_end(tools, one).endswith("last\n[bash_1 has ended: exit code 0]\n")


def test_it_is_asked_to_end_before_it_is_killed(tools) -> None:
    one = start(tools, "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.02; done")
    assert read(tools, one).startswith("ready\n")
    assert tools.ok("KillBash", shell_id=one).endswith("; BashOutput shows the rest of its output")
    assert read(tools, one).endswith("bye\n[bash_1 has ended: it was stopped]")


def test_a_command_that_prints_without_end_is_read_with_pauses() -> None:
    class Process:
        output_descriptor, sink = os.pipe()
        report_descriptor, report = os.pipe()

    class Poller(list[int]):
        def register(self, descriptor: int, _events: int) -> None:
            self.append(descriptor)

    process: Any = Process()
    try:
        os.write(process.sink, b"x" * 65_536)
        capture = OutputCapture(
            max_bytes=100, spill_bytes=0, spill=SpillDirectory(), redaction=StreamRedaction(Redactor([]))
        )
        command = BackgroundCommand(BackgroundStarted("bash_1", "yes"), process, process, capture, tuple)
        command.look(frozenset({process.output_descriptor}), 10.0)
        early, later = Poller(), Poller()
        assert command.watch(early, 10.0) == pytest.approx(10.01)  # type: ignore[arg-type]  # a list of what is registered
        command.watch(later, 10.02)  # type: ignore[arg-type]  # as above
        assert (early, later) == (
            [process.report_descriptor],
            [process.report_descriptor, process.output_descriptor],
        )
    finally:
        for one in (process.output_descriptor, process.sink, process.report_descriptor, process.report):
            os.close(one)


@linux_only
def test_what_it_leaves_behind_is_stopped_by_a_kill_however_it_hides(tools) -> None:
    marker = marker_for("background")
    one = start(
        tools, f"export {marker}=1; trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 300' &); sleep 300"
    )
    wait_until(lambda: len(processes_with(marker)) >= 3)
    assert tools.ok("KillBash", shell_id=one).startswith("bash_1 was stopped (")
    assert processes_with(marker) == []


@linux_only
def test_after_the_end_of_its_launcher_nothing_of_it_and_nothing_else_is_killed(tools) -> None:
    marker, other = marker_for("launcher"), marker_for("other")
    before = children()
    one = start(tools, f"export {marker}=1; setsid sleep 300 & sleep 300")
    (supervisor,) = children() - before
    start(tools, f"export {other}=1; sleep 300")
    tools.ok("Bash", command="true")
    wait_until(lambda: len(processes_with(marker)) >= 2)
    wait_until(lambda: processes_with(other))
    launcher = int(Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text())
    os.kill(launcher, signal.SIGKILL)
    assert "how it ended is unknown" in read_to_end(tools, one)
    assert processes_with(marker) == []
    assert processes_with(other) != []
    assert tools.ok("Bash", command="echo still") == "still"


def test_a_flood_is_bounded_and_the_newest_output_is_kept(make_tools, tmp_path) -> None:
    tools = make_tools(max_output_bytes=2_000, spill_bytes=200_000)
    one = start(tools, "seq 1000000; touch done; sleep 300")
    wait_until((tmp_path / "done").exists)
    shown = read(tools, one)
    assert len(shown) < 2_300
    assert shown.startswith("1\n2\n")
    assert "\n1000000\n[bash_1 is running, " in shown
    assert "(only its first " in shown
    path = shown.partition("whole output: ")[2].split()[0]
    assert 200_000 <= Path(path).stat().st_size < 400_000


def test_the_number_of_running_commands_is_bounded(tools, monkeypatch) -> None:
    monkeypatch.setattr(background, "_MOST_RUNNING", 2)
    first, _ = start(tools, "sleep 300"), start(tools, "sleep 300")
    said = tools.error("Bash", command="sleep 300", run_in_background=True)
    assert said == "2 commands run in the background already (bash_1, bash_2): stop one first"
    tools.ok("KillBash", shell_id=first)
    assert start(tools, "sleep 300") == "bash_3"
    said = tools.error("BashOutput", bash_id="bash_9")
    assert said == "there is no background command 'bash_9'; running: bash_2, bash_3"


def test_what_happened_is_told_once(tools) -> None:
    one = start(tools, "sleep 300")
    assert tools.box.background_news() == (BackgroundStarted(one, "sleep 300", "toolu_1"),)
    assert (dict(tools.box.background.running), tools.box.background_news()) == ({one: "sleep 300"}, ())
    tools.box.stop_background()
    (ended,) = tools.box.background_news()
    assert (ended.id, ended.stopped_by, ended.status, ended.call_id) == (one, "run", "stopped", "toolu_1")
    assert isinstance(ended, BackgroundEnded)
    assert tools.box.background.running == {}


def test_one_thread_reads_all_of_them_and_nothing_is_left_open(make_tools) -> None:
    before, running = open_descriptors(), children()
    tools = make_tools()
    for _ in range(3):
        start(tools, "echo hi; sleep 300")
    assert threads() == [NAME]
    tools.box.stop_background()
    wait_until(lambda: threads() == [])
    assert (start(tools, "sleep 300"), threads()) == ("bash_4", [NAME])
    tools.box.close()
    assert threads() == []
    wait_until_closed(before)
    assert children() <= running


def test_a_signal_ends_the_wait_for_output_at_once(tools, monkeypatch) -> None:
    monkeypatch.setattr(background, "_WAITS_S", 300.0)
    one = start(tools, "sleep 300")
    tools.waiter.inbox.note_signal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        tools.box.run([ToolCall("toolu_2", "BashOutput", {"bash_id": one})])


def test_ended_commands_are_forgotten_when_there_are_many(tools, monkeypatch) -> None:
    monkeypatch.setattr(background, "_MOST_REMEMBERED", 2)
    monkeypatch.setattr(background, "_ENDS_EARLY_S", 60.0)
    for _ in range(4):
        tools.ok("Bash", command="true", run_in_background=True)
    assert "there is no background command 'bash_2'" in tools.error("BashOutput", bash_id="bash_2")
    assert "all of its output was read" in tools.error("BashOutput", bash_id="bash_3")


@linux_only
def test_a_stopped_process_is_killed_too(tools) -> None:
    one = start(tools, "echo $$; kill -STOP $$")
    pid = int(read(tools, one).split()[0])
    tools.ok("KillBash", shell_id=one)
    assert is_gone(pid)


def test_a_limit_in_time_is_not_for_the_background(tools) -> None:
    said = tools.ok("Bash", command="sleep 300", run_in_background=True, timeout=1)
    assert said.endswith("(timeout is not for commands in the background)")
    time.sleep(0.05)
    assert "is running" in read(tools, "bash_1")
