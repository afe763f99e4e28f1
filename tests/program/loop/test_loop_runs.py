"""Whole runs of `ralph loop`: what people read, what each iteration is told, and when the loop is done."""

from __future__ import annotations

import json
import re

from tests.program.conftest import first_prompt, loop_folder, loop_lines, loop_record
from tests.program.model_answers import bash

CHECK = "seq -f 'row %g' 2000; test -e done && test $(wc -l < done) = 3"
OWN_COMMIT = r"1 commit \(1 by --commit\)"
FOUR_FILES = "4 files changed: done, x, y and 1 more"
MONEY, TIME = r"\$0\.000\d", r"(\d\.\d|\d+|\d+m\d\d)s"


def test_three_iterations_until_the_check_passes_tell_a_line_each_and_exit_0(
    ralph, checkout, iterations, tmp_path
) -> None:
    server = iterations(
        [bash("echo 1 >> done; git add done; git commit -qm one")],
        [bash("echo 2 >> done; touch x y z")],
        [bash("echo 3 >> done")],
    )
    ralph.environment["GITHUB_STEP_SUMMARY"] = str(tmp_path / "summary.md")
    (tmp_path / "summary.md").write_text("before\n")
    ran = ralph("loop", "go", "--until", CHECK, "--max-iterations", "5", "--commit")
    assert ran.code == 0
    expected = [
        r"check before the first iteration: failed \(exit 1\)",
        r"iteration 1 of 5, session [0-9a-f]{8}",
        rf"iteration 1 of 5: completed, 2 turns, {MONEY}, 1 commit, 1 file changed: done, check failed \(exit 1\), {TIME}",
        r"iteration 2 of 5, session [0-9a-f]{8}",
        rf"iteration 2 of 5: completed, 2 turns, {MONEY}, {OWN_COMMIT}, {FOUR_FILES}, check failed \(exit 1\), {TIME}",
        r"iteration 3 of 5, session [0-9a-f]{8}",
        rf"iteration 3 of 5: completed, 2 turns, {MONEY}, {OWN_COMMIT}, 1 file changed: done, check passed, {TIME}",
        rf"completed: the check passes; 3 iterations, 6 turns, {MONEY}, 3 commits, {TIME}",
    ]
    lines = loop_lines(ran)
    assert [
        line for line, pattern in zip(lines, expected, strict=True) if not re.fullmatch(pattern, line)
    ] == []
    assert ran.stderr.splitlines()[-1] == f"[loop] {lines[-1]}"

    prompts = [first_prompt(request) for request in server.requests[::2]]
    rows = "\n".join(f"row {n}" for n in range(1, 2001))
    for number, prompt in enumerate(prompts, 1):
        assert prompt.startswith(f"[ralph loop {number} of 5]")
        assert prompt.endswith("\n\n---\n\ngo")
        when = "before any work was done" if number == 1 else "after the last iteration"
        assert f"It was run {when}: it failed (exit 1)." in prompt
        tail = prompt.partition("```\n")[2].partition("\n```")[0]
        assert rows.endswith(f"\n{tail}")
        assert 4000 < len(tail) <= 4096
        assert ".ralph/stop" not in prompt
    assert (loop_folder(ralph) / "check.log").read_text() == f"{rows}\n"

    log = checkout.git("log", "--format=%s", "--reverse").splitlines()
    assert log[1:] == ["one", "ralph loop: iteration 2", "ralph loop: iteration 3"]
    assert checkout.git("status", "--porcelain") == "", "git ignores .ralph without anybody's doing"

    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("before\n### ralph loop: completed\n\nthe check passes (3 iterations, ")
    assert re.search(rf"^\| 1 \| completed \| 2 \| {MONEY} \| 1 \| .*done \| failed", summary, re.MULTILINE)
    assert len(re.findall(r"^\| \d ", summary, re.MULTILINE)) == 3

    titles = [line.split()[6:] for line in ralph("sessions", "ls").stdout.splitlines()]
    assert titles == [["go"]] * 3, "not the words of the loop, with which all of them begin"

    told = ralph("loop", "--status")
    assert (told.code, told.stderr) == (0, "")
    state = told.stdout.splitlines()
    assert state[0].startswith(f"loop in {ralph.cwd}, started ")
    assert re.fullmatch(r"ended [-0-9: ]{16}: completed: the check passes; 3 iterations, .*", state[1])
    assert state[2] == f"check `{CHECK}`: passed"
    assert state[-1] == f"record, last prompt, log and the check's output: {loop_folder(ralph)}"
    assert len(state) == 7
    assert "continue with" not in told.stdout


def test_a_check_that_passes_already_spends_nothing_and_exits_0(ralph, ralph_here, iterations) -> None:
    server = iterations()
    ran = ralph("loop", "go", "--until", "true")
    assert ran.code == 0
    assert (server.request_count, server.lookups) == (0, ())
    assert "the check passes already, so nothing was started (--at-least-once" in loop_lines(ran)[-1]
    again = ralph_here("loop", "--continue")
    assert (again.code, again.stderr.count("\n")) == (2, 1), "it is done, and says so"
    assert ralph("loop", "go", "--until", "true", "--at-least-once").code == 0
    assert server.request_count == 1


def test_the_stop_file_that_the_prompt_names_ends_it_and_a_stale_one_does_not_exits_0(
    ralph, iterations
) -> None:
    (ralph.cwd / ".ralph").mkdir()
    (ralph.cwd / ".ralph" / "stop").write_text("of yesterday")
    (ralph.cwd / "PROMPT.md").write_text("one task")
    server = iterations(
        [bash("ls .ralph; echo 'another task' > PROMPT.md")], [bash("echo nothing is left > .ralph/stop")]
    )
    ran = ralph("loop", "-f", "PROMPT.md", "--max-iterations", "5")
    assert ran.code == 0
    assert loop_lines(ran)[-1].startswith("completed: the stop file is there; 2 iterations, 4 turns, ")
    prompts = [first_prompt(request) for request in server.requests[::2]]
    assert all("create the file .ralph/stop with one line that says why" in prompt for prompt in prompts)
    assert [prompt.rpartition("---\n\n")[2].strip() for prompt in prompts] == ["one task", "another task"]
    assert "stop" not in str(server.requests[1].json()["messages"][-1])
    assert loop_lines(ran)[1].startswith("iteration 1 of 5: completed, 2 turns, ")
    assert ", 0 commits, 1 file changed: PROMPT.md, " in loop_lines(ran)[1], "outside git the files count"
    assert ", 0 commits, nothing changed, " in loop_lines(ran)[3], "the stop file is no work"


def test_the_iteration_limit_with_a_check_exits_3_and_can_be_raised(ralph, iterations) -> None:
    server = iterations()
    stop = ralph.cwd / ".ralph" / "stop"
    stop.parent.mkdir()
    stop.touch()
    ran = ralph("loop", "go", "--max-iterations", "1", "--until", "false")
    assert (ran.code, server.request_count) == (3, 1)
    assert stop.exists(), "with --until alone it has no meaning"
    assert loop_lines(ran)[-2] == "continue with: ralph loop --continue --max-iterations 2"
    assert loop_lines(ran)[-1].startswith(
        "limit_reached (exit 3): 1 iteration is done, the check failed (exit 1); "
    )
    again = ralph("loop", "--continue", "--max-iterations", "2")
    assert (again.code, server.request_count) == (3, 2)
    assert [record["number"] for record in loop_record(ralph)["iterations"]] == [1, 2]


def test_the_log_of_a_loop_holds_every_event_and_line_in_order_and_quiet_shortens_nothing(
    ralph, iterations
) -> None:
    iterations([bash("echo 1 > done; echo the output")], [bash("echo 2 > done")])
    ran = ralph("loop", "go", "--max-iterations", "2", "-q")
    assert ran.code == 0
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
