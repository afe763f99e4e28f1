"""`ralph loop ls` and `ralph loop show`: the loops of a directory, after they have ended."""

from __future__ import annotations

import json

from ralph.mock_api import Fault, Step, Turn
from tests.program.conftest import Finished, loop_folder, loop_record
from tests.program.model_answers import bash
from tests.rows import every_row


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
