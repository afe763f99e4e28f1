"""`ralph loop --status` beside a loop that runs, and `ralph loop ls` and `show` after it has ended."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.patience import PATIENCE_S, wait_until
from tests.program.conftest import Finished, loop_folder, loop_record
from tests.program.model_answers import bash, calls
from tests.rows import every_row
from tests.services.small_terminal import PtyReader

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator


USAGE = {"input_tokens": 1000, "output_tokens": 100}
BLOCKS = "touch started; until test -e go_on; do sleep 0.05; done"


@pytest.fixture
def running(ralph, iterations) -> Iterator[subprocess.Popen[bytes]]:
    """A loop in whose first iteration a command runs until the file `go_on` exists, and another in the background."""
    server = ("Bash", {"command": "sleep 300", "run_in_background": True})
    iterations([calls(server, usage=USAGE), bash(BLOCKS, usage=USAGE)])
    options = ("--max-iterations", "1", "--max-budget-usd", "2", "--max-turns", "9")
    process = ralph.start("loop", "go", *options)
    wait_until((ralph.cwd / "started").exists)
    yield process
    (ralph.cwd / "go_on").touch()
    ralph.finish(process)


def test_the_status_includes_what_the_running_iteration_does_until_it_is_killed(
    ralph, ralph_here, running
) -> None:
    def told() -> Any:
        return json.loads(ralph_here("loop", "--status", "--json").stdout)

    def is_in_second_turn() -> bool:
        live = told()["live"]
        return live is not None and live["run"]["turn"] == 2 and bool(live["run"]["tools"])

    wait_until(is_in_second_turn)
    now = told()
    assert (now["live"]["max_turns"], now["totals"]["turns"]) == (9, 2)
    spent = now["totals"]["cost_usd"]
    assert spent == now["live"]["run"]["cost_usd"] > 0
    assert now["left"] == {"iterations": 0, "usd": pytest.approx(2 - spent), "seconds": None}
    assert now["iterations"] == []
    lines = ralph_here("loop", "--status").stdout.splitlines()
    assert f"running as process {running.pid}: 0 iterations and 1 not finished, 2 turns, $0.00" in lines[1]
    assert lines[2].startswith("left: 0 of 1 iteration, $1.99 of $2.00")
    assert f": turn 2 of 9, Bash: {BLOCKS} (" in lines[3]
    assert "2 turns, 2,000 tokens in, 200 out, $0.00" in lines[4]
    assert [(one["id"], one["text"]) for one in now["live"]["run"]["background"]] == [("bash_1", "sleep 300")]
    assert lines[5].startswith("in the background: bash_1 for ")
    assert lines[5].endswith(": sleep 300")

    os.kill(now["live"]["pid"], signal.SIGKILL)
    wait_until(lambda: told()["live"] is None)
    assert (loop_folder(ralph) / "live.json").exists()
    assert BLOCKS not in ralph_here("loop", "--status").stdout
    running.send_signal(signal.SIGTERM)


def is_drawn_again(terminal: PtyReader) -> bool:
    is_current = any("turn 2 of 9, Bash: touch" in line for line in terminal.lines())
    return is_current and terminal.raw.count("running as process") > 2


def test_a_watch_on_a_terminal_is_redrawn_and_gives_the_cursor_back(ralph, running) -> None:
    terminals = [PtyReader(100), PtyReader(100)]
    interrupted, followed = (
        ralph.start("loop", "--status", "--watch", stdout=one.theirs) for one in terminals
    )
    for one in terminals:
        wait_until(partial(is_drawn_again, one))
        assert len([line for line in one.lines() if "running as" in line]) == 1
        assert all(len(line) < 100 for line in one.lines())
        assert not one.is_cursor_shown
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.wait(PATIENCE_S) == 130
    (ralph.cwd / "go_on").touch()
    assert followed.wait(PATIENCE_S) == 0
    last = [one.close() for one in terminals][1]
    assert all(one.is_cursor_shown for one in terminals)
    assert any("completed: 1 iteration is done" in line for line in last)
    assert not any("turn 2 of 9" in line for line in last)
    for process in (interrupted, followed):
        process.communicate()


def test_a_watch_in_a_pipe_prints_a_line_per_change(ralph, running) -> None:
    watches = [ralph.start("loop", "--status", "--watch", *more) for more in ((), ("--json",))]
    now = f" iteration 1: turn 2 of 9, Bash: {BLOCKS}; 0 iterations and 1 not finished, 2 turns, $0.00"
    assert any(now in line.decode() for line in watches[0].stdout)
    assert any(json.loads(line)["live"]["run"]["turn"] == 2 for line in watches[1].stdout)
    (ralph.cwd / "go_on").touch()
    text, objects = (ralph.finish(watch).stdout.splitlines() for watch in watches)
    assert "completed: 1 iteration is done" in text[-1]
    assert json.loads(objects[-1])["ended"]["exit_code"] == 0
    assert len(text) <= 5, "a line each second would be more: the loop's end takes no longer than that"


def test_every_place_counts_the_iterations_that_ended_and_names_the_other_beside_them(
    ralph, ralph_here, serve, tmp_path
) -> None:
    serve(Step(Turn("Done.")), Step(fault=Fault(status=401)))
    assert ralph("loop", "go on").code == 77
    assert "; 1 iteration and 1 not finished, 1 turn, " in ralph_here("loop", "--status").stdout
    assert ralph_here("loop", "ls").stdout.splitlines()[1].split()[3:5] == ["auth", "1"]
    assert json.loads(ralph_here("loop", "--status", "--json").stdout)["totals"]["iterations"] == 1
    page = tmp_path / "page.html"
    assert ralph_here("report", "-o", str(page)).code == 0
    assert "<dt>Iterations</dt><dd><b>1</b> <small>and 1 not finished, 1 turn</small>" in page.read_text()


def test_the_log_of_a_loop_holds_every_event_and_line_in_order_and_quiet_shortens_nothing(
    ralph, iterations
) -> None:
    iterations([bash("echo 1 > done; echo the output")], [bash("echo 2 > done")])
    ran = ralph("loop", "go", "--max-iterations", "2", "-q", code=0)
    folder = loop_folder(ralph)
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [one["at"] for one in events] == sorted(one["at"] for one in events)
    sessions = [one["session_id"] for one in loop_record(ralph)["iterations"]]
    own = [(one["subtype"], one["iteration"]) for one in events if one["type"] == "loop"]
    assert own == [
        *(("iteration_began", 1), ("iteration_ended", 1), ("iteration_began", 2), ("iteration_ended", 2)),
        ("loop_ended", None),
    ]
    of_runs = [one for one in events if one["type"] != "loop"]
    assert {(one["iteration"], one["session_id"]) for one in of_runs} == set(enumerate(sessions, start=1))
    assert sum(one["type"] == "result" for one in of_runs) == 2
    assert "the output" in str([one for one in of_runs if one["type"] == "user"])
    lines = [line[20:] for line in (folder / "log.txt").read_text().splitlines()]
    assert [line for line in lines if line.startswith(("[loop]", "[tool]"))][:3] == [
        f"[loop] iteration 1 of 2, session {sessions[0][:8]}",
        "[tool] Bash: echo 1 > done; echo the output",
        next(line for line in ran.stderr.splitlines() if line.startswith("[loop] iteration 1")),
    ]
    assert lines.count("All done.") == 2
    assert set(ran.stderr.splitlines()) <= set(lines)


def refused(ran: Finished) -> str:
    assert (ran.code, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    return ran.stderr


@every_row(
    ("words", "says"),
    [
        (["show", "9"], "has no loop 9: none is recorded"),
        (["show", "x"], "has no loop x: none is recorded"),
        (["show"], "there is no loop in "),
        (["lss"], "did you mean `ralph loop ls`?"),
        (["shwo"], "did you mean `ralph loop show`?"),
        (["shwo", "3"], "see `ralph loop --help`"),
        (["logs"], "did you mean `ralph loop show`?"),
        (["-q", "ls"], "`ralph loop ls` takes its options after `ls`"),
        (["ls", "--al"], "see `ralph loop ls --help`"),
        (["--watch", "go"], "--watch needs --status"),
    ],
)
def test_a_slip_is_one_line_and_exit_2(ralph_here, words, says) -> None:
    assert says in refused(ralph_here("loop", *words, as_typed=True))
