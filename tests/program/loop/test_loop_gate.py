"""`ralph loop` with `--gate`, `--plan` and `--until`: when it continues, what it commits and pushes, and when it is done."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import wait_until
from tests.program.conftest import loop_lines, loop_record
from tests.program.loop.test_loop_killed import kill
from tests.program.model_answers import bash
from tests.recorded.loop_scenes import GREEN, tick


def subjects(top, branch: str = "main") -> list[str]:
    log = subprocess.run(
        ["git", "log", "--format=%s", "--reverse", branch],
        cwd=top,
        capture_output=True,
        text=True,
        check=True,
    )
    return log.stdout.splitlines()[1:]


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
    ralph.user_file.write_text("[loop]\ngit_filters = ['slow']\n")
    return made


def test_a_loop_that_is_killed_while_git_reads_what_it_commits_continues_exits_0(
    ralph, checkout, iterations, hung
) -> None:
    iterations([bash("touch broken")])
    process = ralph.start("loop", "go", "--commit", "--max-iterations", "1", "--sandbox", "off")
    wait_until(hung.exists)
    kill(ralph, process)
    ralph("loop", "--continue", code=0)
    assert subjects(checkout.top)[1:] == ["ralph loop: iteration 1"]
    assert checkout.git("status", "--porcelain") == ""


def test_a_first_signal_while_red_work_is_kept_ends_the_loop_and_keeps_it_exits_143(
    ralph, checkout, iterations, hung
) -> None:
    iterations([bash("touch broken")])
    options = ("--gate", GREEN, "--commit", "--max-iterations", "1", "--sandbox", "off")
    process = ralph.start("loop", "go", *options)
    wait_until(hung.exists)
    ran = ralph.stopped_by(process, signal.SIGTERM, code=143)
    assert not any("once more" in line for line in loop_lines(ran))
    assert "work that did not pass the gate is on branch ralph/red-1" in loop_lines(ran)
