"""Iterations that are real `ralph run` processes."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ralph.loop.values import Setback
from ralph.mock_api import Fault, Turn
from ralph.values.outcome import Outcome
from tests.loop.iteration_processes import SESSION_ID
from tests.patience import wait_until
from tests.processes import fork_server, forked_processes
from tests.processes.children import is_gone
from tests.program.model_answers import DONE, bash, report, results, told_texts

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")

# In namespaces of their own, commands do not know their pids as others see them.
SEES_ALL = ("--sandbox", "off")

LOOP = """
import fcntl, os, sys
from ralph.loop.values import IterationOrder, LoopPlan
from ralph.machine.waiter import SystemClock
from ralph.loop.process.iterations import RalphIterations
from ralph.machine.waiter import InboxWaiter
from ralph.values.redaction import Redactor
from pathlib import Path

plan = LoopPlan(
    directory=sys.argv[1], launch_directory=sys.argv[1], run_arguments=("--sandbox", "off")
)
lock = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
clock = SystemClock()
iterations = RalphIterations(
    plan,
    folder=Path(sys.argv[1], "folder"),
    environment=dict(os.environ),
    waiter=InboxWaiter(clock),
    clock=clock,
    settings=(),
    redactor=Redactor(),
    lock=lock,
)
iterations.run(IterationOrder(sys.argv[3], "Do it."))
"""


@pytest.fixture(scope="module", autouse=True)
def server() -> Any:
    """The fork server. It starts before any test, because what a test starts is ended with it."""
    return fork_server._server() if sys.platform == "linux" else None


@pytest.fixture
def afresh() -> None:
    """The iterations of a test that asks for this get an interpreter of their own."""


@pytest.fixture(autouse=True)
def _forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, server: Any) -> None:
    """Makes the iterations forks of the fork server, as those of a loop that is a fork itself."""
    if "afresh" in request.fixturenames or server is None:
        return
    usual: Any = vars(subprocess.Popen)["_execute_child"]

    def execute_child(popen: Any, *how: Any) -> None:
        start = forked_processes.Start(*how)
        if server.can_fork and forked_processes._is_ralph(start):
            with server.lock:
                forked_processes.start_fork(popen, start, server.orders, start.args)
        else:
            usual(popen, *how)

    monkeypatch.setattr(subprocess.Popen, "_execute_child", execute_child)


def parent_of(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1])


def is_free(lock: Path) -> bool:
    with lock.open() as mine:
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_the_model_gets_the_prompt_and_the_loop_what_came_of_it(iterating, serve) -> None:
    server = serve(bash("pwd"), DONE)
    (iterating.root / "launch" / "system.md").write_text("Be brief.")
    subprocess.run(["git", "init", "-q", str(iterating.work)], check=True)
    prompt = "Add a test.\n\n\U0001f600 \udc80"

    result = iterating.run("-q", "--append-system-prompt-file", "system.md", prompt=prompt)

    assert (result.exit_code, result.outcome) == (0, Outcome.COMPLETED)
    assert (result.turns, result.last_words, result.reason) == (2, "All done.", "")
    assert result.cost_usd is not None
    assert result.cost_usd > 0
    assert result.duration_s > 0
    assert result.stopped_by is None
    assert told_texts(server, 0)[-1] == "Add a test.\n\n\U0001f600 ?"
    assert results(server) == [(str(iterating.work), False)]
    assert "Be brief." in str(server.requests[0].json()["system"])  # from where the loop was started
    file = iterating.root / "folder" / "prompt.md"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=iterating.work, capture_output=True, check=True
    )
    assert status.stdout == b""
    assert list((iterating.root / "tmp").glob("ralph-loop-*")) == []


def test_an_outage_says_when_to_come_back_and_its_session_is_gone_on_with(iterating, serve) -> None:
    server = serve(bash("echo 1"), Fault(status=529, headers={"retry-after": "7"}), DONE)
    first = iterating.run("--retry", "off")
    assert (first.exit_code, first.outcome, first.turns) == (75, Outcome.API_UNAVAILABLE, 1)
    assert first.retry_after_s == 7
    assert "529" in first.reason

    second = iterating.run("--retry", "off", prompt=None)
    assert (second.outcome, second.turns, second.last_words) == (Outcome.COMPLETED, 2, "All done.")
    assert second.cost_usd is not None
    assert first.cost_usd is not None
    assert second.cost_usd > first.cost_usd
    assert len(server.requests) == 3


def test_what_is_left_of_the_limits_is_passed_on_and_the_limit_that_ended_it_is_named(
    iterating, serve
) -> None:
    serve(Turn("Much.", usage={"input_tokens": 10, "output_tokens": 1}))
    result = iterating.run("--max-budget-usd", "5", budget_usd=1e-9, time_s=1e-9 + 600)
    assert (result.exit_code, result.outcome, result.limit) == (3, Outcome.LIMIT_REACHED, "max_budget_usd")
    assert "budget" in result.reason


def test_a_report_speaks_where_there_is_no_answer(iterating, serve) -> None:
    serve(report("failure", "Two tests fail."))
    result = iterating.run("--require-report")
    assert (result.exit_code, result.outcome) == (1, Outcome.TASK_FAILED)
    assert result.last_words == "Two tests fail."


def test_options_that_ralph_run_refuses_are_usage(iterating) -> None:
    result = iterating.run("--no-such-option")
    assert (result.exit_code, result.outcome, result.turns, result.cost_usd) == (2, Outcome.USAGE, 0, 0.0)
    assert result.reason == "ralph run refused its options: its words stand above"


@linux_only
def test_a_signal_ends_the_command_and_the_lock_is_not_the_commands(iterating, serve) -> None:
    server = serve(bash("ls -l /proc/self/fd"), bash(f"echo $$ >{iterating.root}/launch/pid; sleep 1000000"))
    lock = os.open(iterating.root / "lock", os.O_RDWR | os.O_CREAT)
    iterating.once_there("pid", lambda _line: iterating.waiter.inbox.note_signal(signal.SIGTERM))
    result = iterating.run(*SEES_ALL, "--add-dir", str(iterating.root / "launch"), lock=lock)
    os.close(lock)

    assert (result.exit_code, result.outcome, result.stopped_by) == (143, Outcome.INTERRUPTED, 15)
    assert result.turns == 2, "the one that was stopped included"
    assert result.reason == "stopped by SIGTERM"
    assert is_gone(int(iterating.noted("pid")))
    [(listing, _)] = results(server)
    assert "/dev/null" in listing
    assert str(iterating.root / "lock") not in listing


@linux_only
def test_of_one_that_is_killed_the_session_tells_what_it_spent_and_nothing_is_left(iterating, serve) -> None:
    serve(bash(f"echo $$ $PPID >{iterating.root}/launch/pids; sleep 99"))

    def kill_ralph(line: str) -> None:
        _shell, launcher = map(int, line.split())
        os.kill(parent_of(parent_of(launcher)), signal.SIGKILL)

    iterating.once_there("pids", kill_ralph)
    result = iterating.run(*SEES_ALL, "--add-dir", str(iterating.root / "launch"))
    assert (result.exit_code, result.outcome, result.stopped_by) == (137, Outcome.INTERRUPTED, None)
    assert (result.reason, result.setback) == ("was killed by SIGKILL", Setback.KILL)
    assert result.cost_usd is not None
    assert result.cost_usd > 0
    assert all(is_gone(int(word)) for word in iterating.noted("pids").split())


@linux_only
def test_nothing_outlives_a_loop_that_is_killed_and_its_lock_is_held_until_then(iterating, serve) -> None:
    serve(bash("echo $$ $PPID >pids; sleep 99"))
    lock = iterating.root / "lock"
    pids = iterating.work / "pids"
    loop = subprocess.Popen(
        [sys.executable, "-c", LOOP, str(iterating.work), str(lock), SESSION_ID],
        env=iterating.environment,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    shell, launcher = map(int, pids.read_text().split())
    ralph = parent_of(parent_of(launcher))
    os.kill(ralph, signal.SIGSTOP)  # so that the orphan can be looked at

    loop.kill()
    loop.wait()
    assert not is_free(lock)
    os.kill(ralph, signal.SIGCONT)
    assert all(is_gone(process_id) for process_id in (ralph, launcher, shell))
    wait_until(lambda: is_free(lock))  # its last thread is gone a moment after its first


def test_a_place_that_cannot_be_written_to_is_an_os_error(iterating) -> None:
    (iterating.root / "folder").write_text("")
    with pytest.raises(FileExistsError, match="folder"):
        iterating.run()
    iterating.root.joinpath("launch").rmdir()
    (iterating.root / "folder").unlink()
    with pytest.raises(FileNotFoundError):
        iterating.run()


def test_a_package_called_ralph_in_the_checkout_is_not_run(iterating, serve, afresh) -> None:
    serve(DONE)
    (iterating.root / "launch" / "ralph").mkdir()
    (iterating.root / "launch" / "ralph" / "__main__.py").write_text("raise SystemExit(9)")
    assert iterating.run().exit_code == 0
