"""One supervisor starts the commands of a run and limits their number of processes. Tested with whole runs."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.machine import launcher
from ralph.mock_api import Fault, Step
from tests.patience import wait_until
from tests.processes.children import is_gone
from tests.processes.process_groups import groups_of, needs_group
from tests.program.conftest import processes_of
from tests.program.model_answers import DONE, bash, calls, results

if TYPE_CHECKING:
    import subprocess

    from ralph.mock_api import Turn

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

PARENTS = (
    "of() { sed -n 's/^PPid:[^0-9]*//p' /proc/$1/status; }; supervisor=$(of $PPID); ralph=$(of $supervisor)"
)
# In namespaces of their own, commands do not see these processes.
SEES_ALL = ("--sandbox", "off")

LIMIT = 30
# Forks until it is refused or has 60, says how many there were, and ends with them.
STORM = """
import os, signal
children = []
try:
    for _ in range(60):
        child = os.fork()
        if not child:
            signal.pause()
        children.append(child)
    print("never refused")
except BlockingIOError as refused:
    print("refused:", len(children), refused.strerror)
"""


def test_the_commands_of_a_run_have_one_supervisor_and_one_launcher(ralph, serve) -> None:
    server = serve(*(bash(f"{PARENTS}; echo $ralph $supervisor $PPID {n}") for n in range(3)), DONE)
    assert ralph("go", *SEES_ALL).code == 0
    told = [said.split() for nth in (1, 2, 3) for said, _ in results(server, nth)]
    assert len(told) == 3
    assert len({tuple(line[:3]) for line in told}) == 1
    assert all(is_gone(int(pid)) for pid in told[0][:3])


def test_a_run_without_a_command_has_no_supervisor_and_one_starts_while_its_call_arrives(
    ralph, serve
) -> None:
    """The call never arrives completely. So the process that exists was started when the call began to arrive."""
    serve(
        calls(("Write", {"file_path": "a", "content": "x"})), Step(bash("echo"), Fault(stall_after_events=3))
    )
    process = ralph.start("go", "--output-format", "stream-json")
    try:
        wait_until((ralph.cwd / "a").exists)
        wait_until(lambda: "supervisor.py" in _command_lines_below(process.pid))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert processes_of(ralph) == {}


def test_without_a_command_no_supervisor_is_started(ralph, serve) -> None:
    seen: list[str] = []
    process: list[subprocess.Popen[bytes]] = []

    def look(_request: Any, index: int) -> Turn:
        if index == 0:
            return calls(("Write", {"file_path": "a", "content": "x"}))
        seen.append(_command_lines_below(process[0].pid))
        return DONE

    serve(script=look)
    process.append(ralph.start("go"))
    assert ralph.finish(process[0]).code == 0
    assert seen == [""]


def test_a_command_that_kills_the_supervisor_costs_that_call_alone(ralph, serve) -> None:
    server = serve(
        bash(
            f"{PARENTS}; (trap '' TERM; setsid sleep 99 &); echo $supervisor; kill -9 $supervisor; sleep 99"
        ),
        bash(f"{PARENTS}; echo $supervisor"),
        DONE,
    )
    assert ralph("go", "--sandbox", "off").code == 0
    [(first, is_error)] = results(server, 1)
    assert is_error
    assert (
        "the process that supervised it is gone; all it had started was stopped. How far the command came is unknown"
        in first
    )
    [(second, is_error)] = results(server, 2)
    assert not is_error
    assert second.split()[0] != first.split()[0]
    assert processes_of(ralph) == {}


def test_a_stopped_supervisor_saves_nothing_of_a_killed_run(ralph, serve) -> None:
    """A stopped process does not notice the end of its socket, but SIGKILL ends it."""
    serve(
        bash(
            f"{PARENTS}; trap '' TERM; kill -STOP $supervisor; (setsid sleep 99 &); touch there; sleep 99; :"
        )
    )
    process = ralph.start("go")
    wait_until((ralph.cwd / "there").exists)
    supervisors = [pid for pid in launcher.children_of(process.pid) if "supervisor.py" in _command_line(pid)]
    process.kill()
    process.communicate()
    assert [is_gone(pid) for pid in supervisors] == [True]
    wait_until(lambda: processes_of(ralph) == {})


@needs_group
def test_a_storm_of_forks_is_refused_in_its_command_and_the_run_continues(ralph, serve) -> None:
    storm = f"{sys.executable} -c '{STORM}'"
    server = serve(bash(storm), bash("echo still here"), calls(("Grep", {"pattern": "x"})), DONE)
    ralph.user_file.write_text(f"[sandbox]\nmax_processes = {LIMIT}\n")
    process = ralph.start("go")
    ran = ralph.finish(process)
    assert (ran.code, ran.stdout) == (0, "All done.\n")
    [(said, _)] = results(server, 1)
    assert said.startswith("refused: ")
    assert int(said.split()[1]) < LIMIT
    assert "Resource temporarily unavailable" in said
    assert results(server, 2) == [("still here", False)]
    assert groups_of(process.pid) == [], "the group goes with the run"


@needs_group
def test_a_killed_runs_group_is_removed_by_the_next(ralph, serve) -> None:
    serve(bash("touch there; sleep 99"), DONE)
    process = ralph.start("go")
    wait_until((ralph.cwd / "there").exists)
    [group] = groups_of(process.pid)
    process.kill()
    process.communicate()
    wait_until(lambda: not group.exists() or not (group / "cgroup.procs").read_text())  # others sweep too
    serve(bash("echo"), DONE)
    assert ralph("again").code == 0
    assert not group.exists()


def test_doctor_says_whether_commands_have_a_limit_on_processes(ralph) -> None:
    for most in (512, 77):
        [line] = [line for line in ralph("doctor").stdout.splitlines() if "process limit" in line]
        assert f"a command may have {most} processes and threads at a time; " in line
        ralph.user_file.write_text("sandbox.max_processes = 77\n")


@needs_group
def test_doctor_names_the_limit_where_there_is_one_and_leaves_no_group(ralph) -> None:
    process = ralph.start("doctor")
    said = ralph.finish(process).stdout
    assert (
        "process limit: a command may have 512 processes and threads at a time; a control group enforces it"
        in said
    )
    assert groups_of(process.pid) == []


def _command_lines_below(pid: int) -> str:
    return "".join(map(_command_line, launcher.children_of(pid)))


def _command_line(pid: int) -> str:
    with suppress(OSError):  # it has just ended
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
