"""`ralph loop` with `--gate`, `--plan` and `--until`: when it goes on, what it commits and pushes, and when it is done."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import wait_until
from tests.program.conftest import first_prompt, loop_folder, loop_lines, loop_record
from tests.program.loop.test_loop_killed import kill
from tests.program.model_answers import bash

PLAN = "# Plan\n\n- [ ] one\n- [ ] two\n- [ ] three\n"
GREEN = "test ! -e broken"
"""A gate that is red while a file `broken` is there."""


def tick(name: str, also: str = "true") -> str:
    return f"sed -i 's/- \\[ \\] {name}$/- [x] {name}/' PLAN.md; touch {name}; {also}"


def subjects(top, branch: str = "main") -> list[str]:
    log = subprocess.run(
        ["git", "log", "--format=%s", "--reverse", branch],
        cwd=top,
        capture_output=True,
        text=True,
        check=True,
    )
    return log.stdout.splitlines()[1:]


def test_three_open_tasks_in_a_green_repository_are_three_iterations_exits_0(
    ralph, ralph_here, checkout, iterations
) -> None:
    checkout.write("PLAN.md", PLAN)
    checkout.write(".ralph/stop", "of yesterday")
    server = iterations([bash(tick("one"))], [bash(tick("two"))], [bash(tick("three"))])
    gate = f"mktemp formatted.XXXXXX > /dev/null; {GREEN}"
    options = ("--gate", gate, "--plan", "PLAN.md", "--commit", "--push", "--max-iterations", "9")
    ran = ralph("loop", "go", *options)
    assert ran.code == 0
    assert checkout.git("status", "--porcelain") == "", "what the gate writes is committed too"
    lines = loop_lines(ran)
    assert lines[1] == "gate before the first iteration: passed"
    ended = [line for line in lines if line.startswith("iteration") and "completed" in line]
    assert [line.partition("gate ")[2].rpartition(", ")[0] for line in ended] == [
        "passed, 2 open tasks",
        "passed, 1 open task",
        "passed, 0 open tasks",
    ]
    assert lines[-1].startswith("completed: the gate passes and no task in PLAN.md is open; 3 iterations, ")
    assert not any("stop file" in line for line in lines)
    assert len(subjects(checkout.top)) == 3
    assert subjects(checkout.top.with_name("remote.git")) == subjects(checkout.top)
    assert "It has 2 open tasks." in first_prompt(server.requests[2])
    told = ralph_here("loop", "--status").stdout
    assert f"gate `{gate}`: passed\nplan PLAN.md: 0 open tasks\n" in told
    assert (loop_folder(ralph) / "gate.log").read_text() == ""


def test_work_that_is_red_stays_in_the_tree_until_a_later_iteration_makes_it_green_exits_0(
    ralph, checkout, iterations
) -> None:
    checkout.write("PLAN.md", PLAN.replace("- [ ] three\n", ""))
    gate = f"{GREEN} || {{ echo so broken; exit 1; }}"
    server = iterations(
        [bash(tick("one", "touch broken; git add broken; git commit -qm red"))],
        [bash(tick("two", "git rm -q broken"))],
    )
    ran = ralph("loop", "go", "--gate", gate, "--plan", "PLAN.md", "--commit", "--push")
    assert ran.code == 0
    lines = loop_lines(ran)
    assert [line for line in lines if line.startswith("pushed")] == ["pushed 2 commits"]
    [red] = [line for line in lines if ", gate failed (exit 1), 1 open task, " in line]
    assert ", 1 commit, " in red, "the agent's own"
    assert subjects(checkout.top) == ["red", "ralph loop: iteration 2"]
    second = first_prompt(server.requests[2])
    assert (
        "after the last iteration: it failed (exit 1). The end of its output:\n\n```\nso broken\n```"
        in second
    )
    assert checkout.git("status", "--porcelain") == ""


def test_commit_red_commits_what_is_red_and_the_branch_is_pushed_when_it_is_green(
    ralph, checkout, iterations
) -> None:
    iterations([bash("touch broken")], [bash("rm broken; touch fixed")])
    ran = ralph("loop", "go", "--gate", GREEN, "--commit", "--commit-red", "--push", "--max-iterations", "2")
    assert ran.code == 0, "without --until and --plan, and with a green gate at the end"
    assert [line for line in loop_lines(ran) if line.startswith("pushed")] == ["pushed 2 commits"]
    assert subjects(checkout.top) == ["ralph loop: iteration 1", "ralph loop: iteration 2"]


def test_what_the_gate_itself_changes_is_committed_with_the_work_and_is_no_progress(
    ralph, checkout, iterations
) -> None:
    iterations([bash("echo 1 > new")], [bash("true")])
    ran = ralph("loop", "go", "--gate", "date +%N > a.txt; git add dir", "--commit", "--max-iterations", "2")
    assert ran.code == 0
    assert checkout.git("show", "--name-only", "--format=", "HEAD~1").split() == ["a.txt", "new"]
    assert checkout.git("show", "--name-only", "--format=", "HEAD").split() == ["a.txt"]
    assert [one["made_progress"] for one in loop_record(ralph)["iterations"]] == [True, False]
    assert checkout.git("status", "--porcelain") == ""


UNUSABLE = {
    "a gate that is mistyped": (
        ("--gate", "mkae test"),
        "the gate cannot be run (exit 127: no such command): ",
    ),
    "a check that is mistyped": (
        ("--gate", "false", "--until", "mkae"),
        "the check cannot be run (exit 127: ",
    ),
    "a plan without a box": (
        ("--plan", "a.txt"),
        "the plan a.txt has no task: a task is a line such as `- [ ] ",
    ),
    "a plan that is missing": (("--plan", "P.md"), "the plan P.md cannot be read: No such file or directory"),
}


@pytest.mark.parametrize(("options", "says"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_what_can_never_be_done_is_told_before_anything_is_paid_exits_78(
    ralph, checkout, iterations, options, says
) -> None:
    server = iterations()
    ran = ralph("loop", "go", *options)
    assert (ran.code, server.request_count) == (78, 0)
    assert says in loop_lines(ran)[-1]


def test_a_plan_that_an_iteration_removes_is_not_done_exits_3(
    ralph, ralph_here, checkout, iterations
) -> None:
    checkout.write("PLAN.md", PLAN)
    iterations([bash("rm PLAN.md")], [bash("echo done > PLAN.md")])
    ran = ralph("loop", "go", "--plan", "PLAN.md", "--max-iterations", "2")
    assert ran.code == 3
    assert "the plan PLAN.md cannot be read: No such file or directory" in loop_lines(ran)
    assert ": 2 iterations are done, PLAN.md has no task at all; " in loop_lines(ran)[-1]
    checkout.write("PLAN.md", "- [x] one\n")
    again = ralph_here("loop", "--continue")
    assert (again.code, "completed: no task in PLAN.md is open; 2 iter" in again.last_line) == (0, True)


def test_a_stop_file_before_all_is_done_is_removed_and_the_next_prompt_says_so(
    ralph, checkout, iterations
) -> None:
    checkout.write("PLAN.md", PLAN.replace("- [ ] three\n", ""))
    server = iterations([bash(tick("one", "mkdir -p .ralph; touch .ralph/stop"))], [bash(tick("two"))])
    ran = ralph("loop", "go", "--gate", GREEN, "--plan", "PLAN.md")
    assert ran.code == 0
    assert "the stop file was removed: PLAN.md has 1 open task" in loop_lines(ran)
    prompt = first_prompt(server.requests[2])
    assert "The file .ralph/stop was removed, because PLAN.md has 1 open task: the work continues." in prompt
    assert not (ralph.cwd / ".ralph" / "stop").exists()


def test_a_stop_file_ends_a_loop_whose_gate_is_green_exits_0(ralph, checkout, iterations) -> None:
    (ralph.cwd / "broken").touch()
    server = iterations([bash("touch .ralph/stop")], [bash("rm broken; touch .ralph/stop")])
    ran = ralph("loop", "go", "--gate", GREEN, "--max-iterations", "9")
    assert (ran.code, server.request_count) == (0, 4)
    assert "the stop file was removed: the gate failed (exit 1)" in loop_lines(ran)
    assert loop_lines(ran)[-1].startswith(
        "completed: the gate passes and the stop file is there; 2 iterations"
    )


ONCE = "{ test -e ../hung || { touch ../hung; sleep 60; }; }"
MOMENTS = {
    "the first gate": (f"{ONCE}; {GREEN}", "true"),
    "the gate after it": (f"test ! -e one || {ONCE}; {GREEN}", "true"),
    "the check after it": (GREEN, f"test ! -e one || {ONCE}; test -e one"),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere an iteration outlives its loop")
@pytest.mark.parametrize(("gate", "until"), MOMENTS.values(), ids=MOMENTS.keys())
def test_a_loop_that_is_killed_in_its_gate_or_check_loses_nothing_and_counts_once_exits_0(
    ralph, checkout, iterations, gate, until
) -> None:
    checkout.write("PLAN.md", "- [ ] one\n")
    server = iterations([bash(tick("one"))])
    options = ("--gate", gate, "--until", until, "--plan", "PLAN.md", "--commit", "--push")
    process = ralph.start("loop", "go", *options)
    wait_until((ralph.cwd.parent / "hung").exists)
    kill(ralph, process)
    ran = ralph("loop", "--continue")
    assert (ran.code, server.request_count) == (0, 2)
    [counted] = loop_record(ralph)["iterations"]
    assert (counted["number"], counted["gate"], counted["check"]) == (1, "passed", "passed")
    assert (counted["open_tasks"], counted["commits"]) == (0, 1)
    assert subjects(checkout.top) == ["ralph loop: iteration 1"]
    assert subjects(checkout.top.with_name("remote.git")) == subjects(checkout.top)


# --- what is red at the end


def test_what_is_red_at_the_limit_goes_to_a_branch_of_its_own_which_is_pushed_exits_3(
    ralph, ralph_here, checkout, iterations
) -> None:
    iterations([bash("echo 1 > good")], [bash("touch broken; echo 2 > half; git rev-parse HEAD > ../head")])
    options = ("--gate", GREEN, "--commit", "--push", "--max-iterations", "2")
    ran = ralph("loop", "go", *options)
    assert ran.code == 3, "a branch that is not pushed while it is red is no failed push"
    lines = loop_lines(ran)
    assert [line for line in lines if line.startswith("pushed")] == [
        "pushed 1 commit",
        "pushed 1 commit as ralph/red-1",
    ]
    assert "what the gate did not let through is on branch ralph/red-1" in lines[-4:]
    assert ": 2 iterations are done, the gate failed (exit 1); " in lines[-1]
    remote = checkout.top.with_name("remote.git")
    for top in (checkout.top, remote):
        assert subjects(top) == ["ralph loop: iteration 1"]
        assert subjects(top, "ralph/red-1") == ["ralph loop: iteration 1", "ralph loop: iteration 2"]
    assert checkout.git("rev-parse", "HEAD") == (ralph.cwd.parent / "head").read_text().strip()
    assert checkout.git("status", "--porcelain").split() == ["??", "broken", "??", "half"]
    assert "is on branch ralph/red-1\n" in ralph_here("loop", "--status").stdout
    (ralph.cwd / "broken").unlink()
    again = ralph("loop", "--continue", "--max-iterations", "3")
    assert again.code == 0
    assert subjects(checkout.top) == ["ralph loop: iteration 1", "ralph loop: iteration 3"]
    assert subjects(remote) == subjects(checkout.top)
    assert "ralph/red" not in again.stderr


@pytest.mark.parametrize("phase", ["an iteration", "the gate"])
def test_after_a_signal_what_the_gate_has_not_seen_goes_to_a_branch_of_its_own_exits_143(
    ralph, checkout, iterations, phase
) -> None:
    hangs = "touch ../hung; sleep 60"
    iterations([bash(f"echo 1 > half; {hangs}" if phase == "an iteration" else "echo 1 > half")])
    gate = "true" if phase == "an iteration" else f"test ! -e half || {{ {hangs}; }}"
    process = ralph.start("loop", "go", "--gate", gate, "--commit", "--push")
    wait_until((ralph.cwd.parent / "hung").exists)
    ran = ralph.stopped_by(process, signal.SIGTERM)
    assert ran.code == 143
    assert "what the gate did not let through is on branch ralph/red-1" in loop_lines(ran)
    assert (subjects(checkout.top), len(subjects(checkout.top, "ralph/red-1"))) == ([], 1)
    assert checkout.git("show", "ralph/red-1:half") == "1"
    assert checkout.git("status", "--porcelain") == "?? half"
    assert not any(line.startswith("pushed") for line in loop_lines(ran))


@pytest.fixture
def hung(ralph, checkout) -> Path:
    """A file that is made when git first reads the file `broken` for a commit, with a filter of the user's that hangs then."""
    home, made = Path(ralph.environment["HOME"]), Path(ralph.cwd.parent, "hung")
    (home / "slow.sh").write_text(f"test -e {made} || {{ touch {made}; exec sleep 60; }}; cat")
    checkout.write(".gitattributes", "broken filter=slow\n")
    checkout.git("add", ".gitattributes")
    checkout.git("commit", "-qm", "attributes")
    config = f'[user]\nname = a\nemail = a@b\n[filter "slow"]\nclean = sh {home}/slow.sh\n'
    ralph.environment["GIT_CONFIG_GLOBAL"] = str(home / "config")
    (home / "config").write_text(config)
    return made


def test_a_loop_that_is_killed_while_git_reads_what_it_commits_goes_on_exits_0(
    ralph, checkout, iterations, hung
) -> None:
    iterations([bash("touch broken")])
    process = ralph.start("loop", "go", "--commit", "--max-iterations", "1", "--sandbox", "off")
    wait_until(hung.exists)
    kill(ralph, process)
    ran = ralph("loop", "--continue")
    assert ran.code == 0, ran.stderr
    assert subjects(checkout.top)[1:] == ["ralph loop: iteration 1"]
    assert checkout.git("status", "--porcelain") == ""


def test_a_first_signal_while_red_work_is_kept_ends_the_loop_and_keeps_it_exits_143(
    ralph, checkout, iterations, hung
) -> None:
    iterations([bash("touch broken")])
    options = ("--gate", GREEN, "--commit", "--max-iterations", "1", "--sandbox", "off")
    process = ralph.start("loop", "go", *options)
    wait_until(hung.exists)
    ran = ralph.stopped_by(process, signal.SIGTERM)
    assert ran.code == 143
    assert not any("once more" in line for line in loop_lines(ran))
    assert "what the gate did not let through is on branch ralph/red-1" in loop_lines(ran)


def test_red_work_that_cannot_be_committed_to_a_branch_is_no_success_exits_74(
    ralph, checkout, iterations
) -> None:
    lock = checkout.top / ".git/refs/heads/ralph/red-1.lock"
    lock.parent.mkdir()
    lock.touch()
    iterations([bash("touch broken")])
    ran = ralph("loop", "go", "--gate", GREEN, "--commit", "--max-iterations", "1")
    assert ran.code == 74
    problem = (
        "what the gate did not let through could not be committed, and is left as it is: git update-ref: "
    )
    assert any(line.startswith(problem) for line in loop_lines(ran))
    assert loop_lines(ran)[-1].startswith(
        "io_error (exit 74): 1 iteration is done, the gate failed (exit 1), but "
    )
    lock.unlink()
    ran = ralph("loop", "--continue")
    assert (ran.code, subjects(checkout.top, "ralph/red-1")) == (3, ["ralph loop: iteration 1"])
