"""`ralph loop --continue` after the loop was killed at any moment, also elsewhere: nothing is lost, and nothing counts twice."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.patience import PATIENCE_S, wait_until
from tests.processes.scripts import before_git
from tests.program.conftest import (
    Ralph,
    first_prompt,
    in_turn,
    is_loop_waiting,
    iteration_of_loop,
    loop_folder,
    loop_lines,
    loop_record,
    processes_of,
)
from tests.program.model_answers import bash, write

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere an iteration outlives its loop"
)
HANGS = Step(Turn("Late."), Fault(stall_before_headers_s=60))
QUICK = "[retry]\npolicy = 'custom'\nbase_delay_s = 0.01\nmax_retries = 1\n[loop]\noutage_waits_s = [1]\n"


def kill(ralph, process) -> None:
    """Kills the loop with SIGKILL, and waits until everything that it had started has ended by itself."""
    kill_alone(process)
    wait_until(lambda: not processes_of(ralph))


def kill_alone(process) -> None:
    """Kills the loop without reading its output to the end, because processes that it started have this output open
    too.
    """
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()


USAGE = {"input_tokens": 1000, "output_tokens": 100}
ANSWER_USD = 0.003
"""The cost of an answer with that usage, from the model sonnet."""
NOW = Turn("Now.", usage=USAGE)
AWAY = Step(fault=Fault(status=529))
WORK = bash("echo 1 >> log", usage=USAGE)
HANGING_WORK = bash("echo $$ > started; sleep 60", usage=USAGE)
# The model's steps, the check, and when the loop is killed: after this number of requests, or if that is 0, when
# `started` exists.
MOMENTS = {
    "in the first check": (
        [WORK, NOW],
        "test -e started || { touch started; sleep 60; }; grep -q 1 log",
        0,
        2,
    ),
    "in the first stream": ([in_turn(HANGS, WORK), NOW], "grep -q 1 log", 1, 2),
    "in a later stream": (
        [WORK, in_turn(HANGS, bash("touch said", usage=USAGE)), NOW],
        "grep -q 1 log && test -e said",
        2,
        3,
    ),
    "in a tool": ([HANGING_WORK, WORK, NOW], "grep -q 1 log", 0, 3),
    "in the check after it": (
        [WORK, NOW],
        "test -e log || exit 1; test -e started || { touch started; sleep 60; }; grep -q 1 log",
        0,
        2,
    ),
}


@pytest.mark.parametrize(("story", "check", "requests", "answers"), MOMENTS.values(), ids=MOMENTS.keys())
def test_a_killed_loop_continues_where_it_was_and_ends_as_if_nothing_had_happened_exits_0(
    ralph, ralph_here, iterations, story, check, requests, answers
) -> None:
    server = iterations(story)
    process = ralph.start("loop", "go", "--until", check, "--max-iterations", "3")
    if requests:
        assert server.wait_for_requests(requests, PATIENCE_S)
    else:
        wait_until((ralph.cwd / "started").exists)
    assert f"running as process {process.pid}: 0 iterations" in ralph_here("loop", "--status").stdout
    kill(ralph, process)
    left = loop_record(ralph)
    assert "stopped without recording an end, last active " in ralph_here("loop", "--status").stdout
    assert ralph_here("loop", "--status").stdout.endswith("continue with: ralph loop --continue\n")
    ran = ralph("loop", "--continue", code=0)
    [counted] = loop_record(ralph)["iterations"]
    if left["current"] is not None:
        assert counted["session_id"] == left["current"]["session_id"]
    assert (counted["number"], counted["exit_code"]) == (1, 0)
    assert counted["cost_usd"] == pytest.approx(answers * ANSWER_USD)
    assert counted["made_progress"]
    assert (ralph.cwd / "log").read_text() == "1\n"
    assert not [*Path(ralph.environment["TMPDIR"]).glob("ralph-loop-*")]
    assert (
        f"; 1 iteration, {counted['turns']} turns, ${answers * ANSWER_USD:.4f}, 0 commits, "
        in loop_lines(ran)[-1]
    )


def test_a_wait_for_the_api_that_a_kill_broke_off_is_waited_to_its_end_exits_0(
    ralph, ralph_here, iterations
) -> None:
    ralph.user_file.write_text(QUICK)
    iterations([WORK, in_turn(AWAY, AWAY, Turn("Back."))])
    process = ralph.start("loop", "go", "--max-iterations", "1")
    wait_until(lambda: is_loop_waiting(ralph))
    until_s = time.monotonic() + 1
    told = ralph_here("loop", "--status").stdout
    assert "waiting until " in told
    kill(ralph, process)
    ralph("loop", "--continue", code=0)
    assert time.monotonic() > until_s - 0.2
    [counted] = loop_record(ralph)["iterations"]
    assert (counted["turns"], (ralph.cwd / "log").read_text()) == (2, "1\n")


@pytest.mark.ordinary_user
def test_while_an_iteration_that_lost_its_loop_still_ends_no_other_loop_begins_exits_78(
    ralph, iterations
) -> None:
    """The iteration holds the lock too. While it is stopped, it does not receive the signal that ends it."""
    iterations([HANGING_WORK])
    process = ralph.start("loop", "go")
    wait_until((ralph.cwd / "started").exists)
    iteration = iteration_of_loop(ralph)
    os.kill(iteration, signal.SIGSTOP)
    kill_alone(process)
    ran = ralph("loop", "--continue")
    os.kill(iteration, signal.SIGCONT)
    assert ran.code == 78
    assert f"the loop of process {process.pid}, since " in loop_lines(ran)[-1]
    assert "has ended, but a process that it started still works on this checkout" in loop_lines(ran)[-1]
    wait_until(lambda: not processes_of(ralph))
    ran = ralph("loop", "go", "--until", "true", code=0)
    assert "the last loop here stopped in iteration 1; this is a new loop" in loop_lines(ran)[0]


def kill_iteration(ralph, number: signal.Signals = signal.SIGKILL) -> None:
    """Kills the iteration as soon as its command runs, as the system does if memory runs out."""
    started = ralph.cwd / "started"
    wait_until(lambda: started.exists() and started.read_text() != "")
    started.unlink()
    os.kill(iteration_of_loop(ralph), number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_an_iteration_that_was_killed_alone_is_resumed_twice_and_counts_once_with_all_it_cost_exits_0(
    ralph, iterations, number
) -> None:
    """The command is not repeated. The model learns that it was interrupted, and decides."""
    ralph.user_file.write_text(QUICK)
    server = iterations([HANGING_WORK, HANGING_WORK, WORK, NOW])
    process = ralph.start("loop", "go", "--until", "test -e log", "--max-iterations", "1")
    for _ in range(2):
        kill_iteration(ralph, number)
    ran = ralph.finish(process).having(0)
    assert processes_of(ralph) == {}
    [counted] = loop_record(ralph)["iterations"]
    assert (counted["number"], counted["exit_code"]) == (1, 0)
    assert counted["cost_usd"] == pytest.approx(4 * ANSWER_USD)
    assert server.request_count == 4
    assert (ralph.cwd / "log").read_text() == "1\n"
    waits = [
        line
        for line in loop_lines(ran)
        if "was killed, perhaps because it used too much memory: waiting 1s" in line
    ]
    assert [kill in line for kill, line in zip(("(kill 1,", "(kill 2 in"), waits, strict=True)] == [
        True,
        True,
    ]
    assert waits[0].endswith("then iteration 1 resumes")


def test_the_third_kill_in_a_row_ends_the_loop_which_says_why_and_can_be_resumed_exits_75(
    ralph, iterations
) -> None:
    ralph.user_file.write_text(QUICK)
    iterations([HANGING_WORK, HANGING_WORK, HANGING_WORK, WORK, NOW])
    process = ralph.start("loop", "go", "--until", "test -e log")
    for _ in range(3):
        kill_iteration(ralph)
    ran = ralph.finish(process).having(75)
    assert loop_lines(ran)[-1].startswith(
        "api_unavailable (exit 75): iteration 1 was killed by SIGKILL, 3 times in a row; 0 iterations and 1 not finished, "
    )
    assert "continue with: ralph loop --continue" in loop_lines(ran)
    assert processes_of(ralph) == {}
    assert ralph("loop", "--continue").code == 0
    [counted] = loop_record(ralph)["iterations"]
    assert counted["cost_usd"] == pytest.approx(5 * ANSWER_USD)


def test_what_was_typed_elsewhere_and_read_from_standard_input_is_known_when_it_continues(
    ralph, ralph_here, iterations
) -> None:
    (ralph.cwd / "below").mkdir()
    server = iterations([in_turn(HANGS, WORK), NOW])
    process = ralph.start(
        *("loop", "--cd", "below", "--session-dir", "kept", "--quiet", "--until", "test -e log"),
        stdin=subprocess.PIPE,
    )
    process.stdin.write(b"the task")
    process.stdin.close()
    assert server.wait_for_requests(1, PATIENCE_S)
    kill(ralph, process)
    elsewhere = replace(ralph, cwd=ralph.cwd.parent)
    hint = f"continue with: ralph loop --continue --cd {ralph.cwd}/below\n"
    assert ralph_here("loop", "--status", "--cd", "below").stdout.endswith(hint)
    ran = elsewhere("loop", "--continue", "--cd", "work/below")
    assert (ran.code, ran.stdout) == (0, "Now.\n")
    assert [line.partition(",")[0] for line in loop_lines(ran)] == [
        "iteration 1: completed",
        "completed: the check passes; 1 iteration",
    ]
    assert (ralph.cwd / "below" / "log").exists()
    assert len([*(ralph.cwd / "kept").rglob("*.jsonl")]) == 1
    assert first_prompt(server.requests[-1]).endswith("---\n\nthe task")


def test_git_that_a_kill_of_the_loop_broke_off_may_remove_its_lock_first(
    ralph, checkout, iterations, tmp_path
) -> None:
    """Git removes its lock on SIGTERM. If the lock stayed, no later commit could be made, by the agent either."""
    iterations([write("log", "1\n")])
    hangs = f"trap ': > {tmp_path}/asked; exit 1' TERM; : > {tmp_path}/started; sleep 60 & wait"
    is_first_commit = f'case "$*" in *" update-ref "*) test ! -e {tmp_path}/started'
    before_git(ralph.environment, tmp_path / "bin", f"{is_first_commit} && {{ {hangs}; }} ;; esac")
    process = ralph.start("loop", "go", "--commit", "--max-iterations", "1")
    wait_until((tmp_path / "started").exists)
    kill(ralph, process)
    assert (tmp_path / "asked").exists()
    assert ralph("loop", "--continue").code == 0
    assert checkout.git("log", "-1", "--format=%s") == "ralph loop: iteration 1"
    assert [record["commits"] for record in loop_record(ralph)["iterations"]] == [1]


def test_a_project_of_three_iterations_survives_kills_at_any_moment_exits_0(
    ralph, checkout, iterations
) -> None:
    """A command that a kill interrupted may be missing, because the model does not repeat it. No command may run
    twice.
    """
    commands = [[f"{number}{step}" for step in "abc"] for number in (1, 2, 3)]
    turns = [[*(bash(f"echo {name} >> log", usage=USAGE) for name in names), NOW] for names in commands]
    server = iterations(*turns)
    moments = random.Random(7)
    arguments = ["loop", "go", "--commit", "--max-iterations", "3"]
    kills, ran = 0, None
    while ran is None:
        process = ralph.start(*arguments)
        deadline_s = time.monotonic() + (moments.uniform(0.15, 1.0) if kills < 3 else PATIENCE_S)
        while process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        if process.poll() is None:
            kill(ralph, process)
            kills += 1
        else:
            ran = ralph.finish(process)
        if (loop_folder(ralph) / "loop.json").exists():
            arguments = ["loop", "--continue"]
            if loop_record(ralph)["ended"] is not None:  # a kill after that leaves nothing to continue
                break
    assert ran is None or ran.code == 0, ran.stderr
    assert loop_record(ralph)["ended"]["exit_code"] == 0
    assert processes_of(ralph) == {}

    records = loop_record(ralph)["iterations"]
    assert [record["number"] for record in records] == [1, 2, 3]
    assert {name for record in records for name in record["files"]} == {"log"}
    assert len({record["session_id"] for record in records}) == 3
    # A turn that was asked when a stop broke it off counts, and is asked anew.
    assert 12 - kills <= sum(record["turns"] for record in records) <= 12 + kills
    cost_usd = sum(record["cost_usd"] for record in records)
    assert 12 * ANSWER_USD - 1e-9 <= cost_usd <= server.request_count * ANSWER_USD + 1e-9

    done = (ralph.cwd / "log").read_text().split()
    assert done == sorted(set(done))
    assert len(done) >= 9 - kills
    journals = "".join(path.read_text() for path in Path(ralph.environment["HOME"]).rglob("*.jsonl"))
    assert [name for name in done if f"echo {name} >> log" not in journals] == [], "all were announced"
    assert checkout.git("status", "--porcelain") == ""
    assert checkout.git("show", "HEAD:log").split() == done
    assert not (checkout.top / ".git" / "index.lock").exists()


def copied(ralph: Ralph, place: Path) -> Ralph:
    """The user on another machine, with a copy of the state and a clone of what is committed. The first place
    stays as it is.
    """
    place.mkdir()
    home, work = place / "home", place / "elsewhere"
    shutil.copytree(ralph.environment["HOME"], home, symlinks=True)
    return Ralph(work, {**ralph.environment, "HOME": str(home)})


def test_a_killed_loop_continues_in_a_copy_and_counts_no_iteration_twice_exits_0(
    ralph, checkout, iterations, tmp_path
) -> None:
    server = iterations(
        [bash("echo 1 >> log"), Turn("One.")],
        [bash("echo 2 >> log"), in_turn(HANGS, Turn("Two."))],
    )
    check = "test $(wc -l < log) = 2 && test $(git rev-list --count HEAD) = 3"
    process = ralph.start("loop", "go", "--until", check, "--commit", "--max-iterations", "2")
    assert server.wait_for_requests(4, PATIENCE_S)
    kill(ralph, process)
    left = loop_record(ralph)
    assert (len(left["iterations"]), left["current"]["number"]) == (1, 2)
    before = checkout.git("status", "--porcelain"), checkout.git("rev-parse", "HEAD")

    other = copied(ralph, tmp_path / "there")
    identity = ("-c", "user.name=Tester", "-c", "user.email=tester@example.com")
    checkout.git("clone", "-q", *identity, str(ralph.cwd), str(other.cwd))
    shutil.copy(ralph.cwd / "log", other.cwd / "log")  # not committed yet: the other program carries it
    refused = other("loop", "--continue", code=2)
    assert "there is no loop in" in refused.stderr
    other("loop", "--continue", "--moved", code=0)

    record = loop_record(other)
    assert record["plan"]["directory"] == str(other.cwd)
    assert [one["number"] for one in record["iterations"]] == [1, 2]
    assert record["iterations"][0] == left["iterations"][0]
    assert record["iterations"][1]["session_id"] == left["current"]["session_id"]
    assert (other.cwd / "log").read_text() == "1\n2\n"
    assert checkout.git("-C", str(other.cwd), "rev-list", "--count", "HEAD") == "3"
    assert server.request_count == 5
    assert f"now {other.cwd}; it was {ralph.cwd}." in str(server.requests[-1].json()["messages"][-1])
    assert (checkout.git("status", "--porcelain"), checkout.git("rev-parse", "HEAD")) == before
    assert loop_record(ralph) == left, "the first place was not touched"
    assert other("loop", "--continue", "--moved").code == 2, "it is completed"
