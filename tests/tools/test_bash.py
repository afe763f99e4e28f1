from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.starting import IDLE_THREAD
from ralph.sandbox import command_box, disk_work
from ralph.sandbox.box_plan import BoxPlan, Means
from ralph.sandbox.landlock import Support
from ralph.tools import bash
from ralph.tools.tool_context import ToolContext
from tests.fakes.box import FakeBox, note_of
from tests.patience import wait_until, within_s
from tests.processes.children import children
from tests.processes.descriptors import open_descriptors, wait_until_closed
from tests.tools.conftest import SECRET

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")


def processes_with(marker: str) -> list[int]:
    """The ids of running processes that have the marker in their arguments or their environment."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            is_marked = (
                marker.encode() in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            )
            is_dead = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if is_marked and not is_dead:
            found.append(int(process.name))
    return found


def marker_for(test: str) -> str:
    return f"MARK_{test}_{os.getpid()}_{time.monotonic_ns()}"


def test_a_command_is_told_with_its_output_and_its_exit_code(tools) -> None:
    assert tools.ok("Bash", command="echo one; echo two >&2; echo three") == "one\ntwo\nthree"
    assert tools.ok("Bash", command="true") == "(no output)"
    assert tools.ok("Bash", command="yes | head -1") == "y", (
        "a program that closes its pipe early is not told"
    )
    assert tools.error("Bash", command="echo no; exit 3") == "no\nExit code 3"
    assert tools.error("Bash", command="kill -SEGV $$") == "(no output)\nExit code 139"
    assert "Exit code 127" in tools.error("Bash", command="no-such-program-anywhere")


def test_a_path_that_never_answers_costs_the_explanation_and_not_the_result(monkeypatch, make_tools) -> None:
    monkeypatch.setattr(bash, "_EXPLAIN_WITHIN_S", 0.05)
    box = FakeBox("all", silent="denial")
    monkeypatch.setattr(ToolContext, "box", box)
    text = make_tools().error("Bash", command="echo no; exit 3")
    assert text == f"no\nExit code 3\n{note_of('all')}"
    assert not box.answers.is_set()


@pytest.mark.parametrize(
    "failure", [PermissionError(13, "Permission denied"), ValueError("null"), RecursionError()]
)
def test_an_explanation_that_fails_costs_no_output(monkeypatch, make_tools, failure) -> None:
    def denial_note(*_: str) -> str:
        raise failure

    box = FakeBox("all")
    monkeypatch.setattr(box, "denial_note", denial_note)
    monkeypatch.setattr(ToolContext, "box", box)
    assert make_tools().error("Bash", command="echo no; exit 3") == f"no\nExit code 3\n{note_of('all')}"


def test_a_file_system_that_never_answers_costs_the_command_and_not_the_run(monkeypatch, make_tools) -> None:
    monkeypatch.setattr(disk_work, "_ANSWERS_WITHIN_S", 0.05)
    box = FakeBox(silent="look")
    monkeypatch.setattr(ToolContext, "box", box)
    tools = make_tools()
    for _ in range(2):
        assert "the command was not started: a file system" in tools.error("Bash", command="echo yes")
    monkeypatch.setattr(disk_work, "_ANSWERS_WITHIN_S", within_s(60))
    box.answers.set()
    assert tools.ok("Bash", command="echo yes") == "yes"
    assert box.done.count("look") == 3, "no look of an earlier call is left that could come during a command"


def test_a_command_that_cannot_be_started_is_compared_too(monkeypatch, make_tools) -> None:
    """Otherwise the state directory would say that a command is running."""

    def fails(*_arguments: Any, **_options: Any) -> None:
        raise PermissionError(13, "no")

    box = FakeBox()
    monkeypatch.setattr(ToolContext, "box", box)
    monkeypatch.setattr(CommandSupervisor, "start", fails)
    assert make_tools().error("Bash", command="true") == "the command could not be started: no"
    assert box.done[-3:] == ["look", "prepare", "undo"]


@linux_only
def test_t1_a_tree_that_hangs_and_ignores_term_is_killed_at_its_timeout_with_its_output_kept(tools) -> None:
    marker = marker_for("t1")
    command = f"export M={marker}; trap '' TERM; echo before; (trap '' TERM; sleep 1000000) & sleep 1000000; sleep 1000000"
    text = tools.error("Bash", command=command, timeout=300)
    assert text.startswith("before\n[timed out after 0.3 s;")
    assert "at most 600000 ms" in text
    assert processes_with(marker) == []


def test_a_timeout_above_the_maximum_is_lowered_and_said(make_tools) -> None:
    text = make_tools(bash_max_timeout_s=5).ok("Bash", command="echo x", timeout=60_000)
    assert text == "x\n[timeout was lowered to the maximum, 5000 ms]"


@linux_only
@pytest.mark.parametrize(
    ("daemon", "stopped"),
    [
        ("sleep N & sleep 0.05", "1 process that this command started was"),
        ("sleep N & sleep 600 &", "2 processes that this command started were"),
        ("setsid sleep N & sleep 0.1", "1 process that this command started was"),
        (
            "(setsid sh -c 'setsid sleep N >/dev/null 2>&1 & sleep 77; :' &) ; sleep 0.1",
            "3 processes that this command started were",
        ),
        (
            "nohup setsid env -i sleep N >/dev/null 2>&1 & disown; sleep 0.1",
            "1 process that this command started was",
        ),
    ],
    ids=["background job", "two jobs", "own session", "double fork", "empty environment"],
)
def test_t2_a_daemon_is_gone_after_the_call_and_counted(tools, daemon, stopped) -> None:
    number = str(770_000_000 + os.getpid())
    said = tools.ok("Bash", command=f"{daemon.replace('N ', f'{number} ', 1)}\necho ok")
    assert said == f"ok\n[{stopped} stopped; run_in_background keeps a server]"
    assert processes_with(f"sleep\x00{number}") == []


@pytest.mark.parametrize(
    "command",
    [
        "echo ok; sleep 1000000 &",
        "echo ok; (trap '' TERM; sleep 1000000) &",
        "exec > >(cat); echo ok",
        "echo ok; setsid sleep 1000000 &",
    ],
)
def test_t3_a_grandchild_that_holds_the_output_open_is_not_waited_for(tools, command) -> None:
    assert tools.ok("Bash", command=command).split("\n")[0] == "ok"


def test_what_ends_by_itself_after_the_command_is_not_counted_and_what_it_wrote_is_kept(tools) -> None:
    """The processes of an ended command have a tenth of a second. A busy machine may need longer, so it is asked again."""
    wait_until(lambda: tools.ok("Bash", command="exec > >(cat); sleep 0.01 & echo ok") == "ok")
    wait_until(lambda: tools.ok("Bash", command="exec > >(sleep 0.02; cat); echo late") == "late")
    stopped = "[1 process that this command started was stopped; run_in_background keeps a server]"
    assert tools.error("Bash", command="sleep 600 & exit 3") == f"(no output)\n{stopped}\nExit code 3"


def test_t4_long_output_keeps_head_and_tail_and_a_private_file_with_all(make_tools) -> None:
    tools = make_tools(max_output_bytes=1000)
    text = tools.ok("Bash", command="seq 1 20000")
    note = re.search(r"\n\[\.\.\. ([\d,]+) bytes left out; whole output: (\S+) \.\.\.\]\n", text)
    assert note
    assert text.startswith("1\n2\n3\n")
    assert text.endswith("\n19999\n20000")
    whole = Path(note[2])
    expected = "".join(f"{number}\n" for number in range(1, 20001))
    assert whole.read_text() == expected
    shown = text.replace(note[0], "\n") + "\n"
    assert int(note[1].replace(",", "")) == len(expected) - len(shown)
    assert (whole.stat().st_mode & 0o777, whole.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    tools.box.close()
    assert not whole.parent.exists()


@pytest.mark.parametrize("command", ["yes", "cat /dev/zero", "yes | tr -d '\\n'"])
def test_t4_a_command_that_never_stops_printing_is_stopped(make_tools, command) -> None:
    text = make_tools(spill_bytes=5_000_000).error("Bash", command=command)
    assert "[stopped: it printed more than 5,000,000 bytes" in text
    assert len(text.encode()) < 31_000


@linux_only
def test_t4_memory_stays_flat_while_a_command_floods(tmp_path) -> None:
    """The memory is measured in a separate process, while 45 MB of output pass through."""
    script = textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from ralph.values.answer import ToolCall
        from ralph.machine.waiter import SystemClock
        from ralph.tools.toolbox import LocalToolbox
        from ralph.tools.tool_context import ToolSettings
        from ralph.machine.waiter import InboxWaiter
        from tests.processes.memory import peak_kib, reset_peak
        clock = SystemClock()
        settings = ToolSettings(cwd=Path(sys.argv[1]), environment={"PATH": os.environ["PATH"]}, spill_bytes=15_000_000)
        box = LocalToolbox(settings, waiter=InboxWaiter(clock), clock=clock)
        box.run([ToolCall("1", "Bash", {"command": "echo warm"})])
        reset_peak()
        before = peak_kib()
        for command in ("yes", "cat /dev/zero", "yes | tr -d '\\\\n'"):
            box.run([ToolCall("1", "Bash", {"command": command})])
        print(peak_kib() - before)
        box.close()
    """)
    grown_kib = int(subprocess.check_output([sys.executable, "-c", script, str(tmp_path)]))
    assert grown_kib < 4096


GIT = "git init -q . && git -c user.email=a@b -c user.name=x"


@pytest.mark.parametrize(
    "command",
    [
        "read x || echo nothing",
        "cat; echo nothing",
        f"{GIT} commit --allow-empty; echo nothing",
        f"{GIT} commit -q --allow-empty -m x && git rebase -i --root; echo nothing",
        f"{GIT} ls-remote https://user@127.0.0.1:9/x.git; echo nothing",
        "seq 1000 | less >/dev/null; echo nothing",
        "test -t 0 || test -t 1 || ! true </dev/tty && echo nothing",
    ],
)
def test_t5_nothing_waits_for_a_person(tools, command) -> None:
    assert tools.ok("Bash", command=command, timeout=10_000).endswith("nothing")


def test_t6_binary_output_becomes_text_with_its_damage_counted(tools) -> None:
    text = tools.ok("Bash", command="head -c 1000000 /dev/urandom")
    assert json.loads(json.dumps(text)) == text
    assert re.search(r"\n\[[\d,]+ bytes were not valid UTF-8", text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text)
    assert len(text.encode()) < 31_000


def test_t6_terminal_control_is_stripped_and_progress_reduced(tools) -> None:
    command = r"printf '10%%\r50%%\r100%%\r\ndone\0 \033[1;31mred\033[0m \033]0;title\007x\n'"
    assert tools.ok("Bash", command=command) == "100%\ndone red x"


def test_t7_a_command_that_kills_its_supervisor_ends_alone(tools) -> None:
    marker = marker_for("t7")
    text = tools.error("Bash", command=f"export M={marker}; sleep 666 & echo ok; kill -9 $PPID; sleep 555")
    why = "how it ended is unknown, as the process that supervised it is gone; all it had started was stopped"
    assert why in text
    assert processes_with(marker) == []


def test_a_command_sees_only_the_environment_it_was_given(make_tools, monkeypatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    given = {"PATH": os.environ["PATH"], "CI": "yes", "PAGER": "more"}
    names = {
        line.partition("=")[0] for line in make_tools(environment=given).ok("Bash", command="env").split("\n")
    }
    own = """
    PAGER GIT_PAGER MANPAGER EDITOR VISUAL GIT_EDITOR GIT_SEQUENCE_EDITOR TERM
    GIT_TERMINAL_PROMPT GIT_ASKPASS SSH_ASKPASS_REQUIRE
    """
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {*own.split(), *given}


def test_credentials_are_redacted_in_the_result_and_in_the_file(make_tools) -> None:
    # In two writes, so that it arrives in two pieces; and again and again, so that some lie on every border.
    pieces = f"for i in 1 2 3; do printf {SECRET[:7]}; sleep 0.02; printf '{SECRET[7:]} '; done"
    command = f"{pieces}; for i in $(seq 100); do printf 'x%.0s' $(seq $i); printf {SECRET}; done"
    text = make_tools(max_output_bytes=400).ok("Bash", command=command)
    whole = Path(re.search(r"whole output: (\S+)", text)[1]).read_text()  # type: ignore[index]
    for shown in (text, whole):
        assert "0123456789" not in shown
        assert "sk-ant-" not in shown
    assert whole.count("[redacted]") == 103


def test_a_command_too_long_for_the_system_is_refused_with_advice(tools) -> None:
    assert "script file" in tools.error("Bash", command="#" + "x" * 131_071)
    assert tools.ok("Bash", command="echo hi #" + "x" * 131_000) == "hi"


@pytest.mark.parametrize("command", ["echo \0", "echo \ud83d"])
def test_a_command_no_shell_can_read_is_refused(tools, command) -> None:
    assert "no shell can read" in tools.error("Bash", command=command)


def busy_threads() -> int:
    return len([thread for thread in threading.enumerate() if thread.name != IDLE_THREAD])


def test_p16_many_calls_leave_no_descriptor_no_thread_and_no_child(tools) -> None:
    tools.ok("Bash", command="true")
    descriptors = open_descriptors()
    threads = busy_threads()
    before = children()
    for _ in range(20):
        tools.ok("Bash", command="true & true")
    wait_until_closed(descriptors)
    assert busy_threads() <= threads, "one of another test may have ended meanwhile"
    assert not children() - before


@linux_only
def test_a_command_that_finds_no_gpu_and_succeeds_is_told_so_where_the_machine_has_one(
    make_tools, monkeypatch
) -> None:
    for devices in ((), ("/dev/nvidia0",)):
        monkeypatch.setattr(command_box, "gpu_devices", lambda _wanted, found=devices: found)
        tools = make_tools(box_plan=BoxPlan(Means(Support(0))))
        output = tools.call("Bash", {"command": "echo 'Falling back to cpu.'; echo 'x: Permission denied'"})
        assert not output.is_error
        assert output.is_denied == bool(devices)
        told = "\n[the sandbox gives commands no GPU: " in output.content
        assert told == bool(devices)
