"""Tests what each exit code of an iteration does to `ralph loop`, with iterations that really end with it."""

from __future__ import annotations

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.program.conftest import first_prompt, in_turn, loop_lines, loop_record
from tests.program.model_answers import bash, report, write

AWAY = Step(fault=Fault(status=529))

# The code, the loop's options, the server's answer, what the last line says. All but the first two cost nothing.
STOPS = {
    "no credit": (77, (), Fault(status=401), "iteration 1 ended with exit 77: "),
    "rejected": (69, (), Fault(status=400, message="no such thing"), "no such thing"),
    "no key": (78, ("--base-url", "https://api.anthropic.com"), None, "iteration 1 ended with exit 78: "),
    "options that run refuses late": (
        2,
        ("--until", "rmdir extra; false", "--add-dir", "extra"),
        None,
        "ralph run refused its options",
    ),
}


@pytest.mark.parametrize(("code", "options", "fault", "says"), STOPS.values(), ids=STOPS.keys())
def test_what_another_iteration_would_meet_again_stops_the_loop_with_its_code_and_reason(
    ralph, serve, tmp_path, code, options, fault, says
) -> None:
    (ralph.cwd / "extra").mkdir()
    server = serve(*([] if fault is None else [Step(fault=fault, repeat="forever")]))
    if code == 78:
        del ralph.environment["ANTHROPIC_API_KEY"]
    ralph.environment["GITHUB_STEP_SUMMARY"] = str(tmp_path / "summary.md")
    ran = ralph("loop", "go", *options)
    assert (ran.code, server.request_count) == (code, 0 if fault is None else 1)
    assert says in loop_lines(ran)[-1]
    assert f"(exit {code}): iteration 1 ended with exit {code}" in loop_lines(ran)[-1]
    advice = "Check the key: ANTHROPIC_API_KEY. Then " if code == 77 else ""
    assert loop_lines(ran)[-2] == f"{advice}continue with: ralph loop --continue"
    record = loop_record(ralph)
    assert (record["iterations"], record["ended"]["exit_code"]) == ([], code)
    assert ralph("loop", "--status").stdout.splitlines()[-1] == loop_lines(ran)[-2]
    assert (tmp_path / "summary.md").read_text().startswith(f"### ralph loop: {record['ended']['outcome']}\n")


CANNOT_RUN = {
    "127": ("no_such_cmd --all", ("exit 127: no such command", "no_such_cmd: command not found")),
    "126": ("./notes.txt", ("exit 126: no program that can be run", "./notes.txt: Permission denied")),
    "silent": ("exit 127", ("exit 127: no such command", "command); 0 iterations")),
}


@pytest.mark.parametrize(("check", "says"), CANNOT_RUN.values(), ids=CANNOT_RUN.keys())
def test_a_check_that_cannot_be_run_is_exit_78_before_anything_is_spent(ralph, serve, check, says) -> None:
    (ralph.cwd / "notes.txt").write_text("no program\n")
    server = serve()
    ran = ralph("loop", "go", "--until", check, "--max-iterations", "2")
    assert (ran.code, server.request_count, loop_record(ralph)["iterations"]) == (78, 0, [])
    code, shell = says
    assert f"config (exit 78): the check cannot be run ({code})" in loop_lines(ran)[-1]
    assert shell in loop_lines(ran)[-1]
    assert "--continue" not in ran.stderr


def test_a_check_that_could_be_run_once_may_exit_127_later_and_has_failed(ralph, iterations) -> None:
    (ralph.cwd / "check.sh").write_text("exit 1\n")
    (ralph.cwd / "check.sh").chmod(0o755)
    iterations([bash("rm check.sh")], [bash("touch check.sh")])
    ran = ralph("loop", "go", "--until", "./check.sh", "--max-iterations", "1")
    assert ran.code == 3
    assert loop_record(ralph)["iterations"][0]["check"] == "failed (exit 127: no such command)"
    ran = ralph("loop", "--continue", "--max-iterations", "2")
    assert ran.code == 3  # 126 now: the file is not a program
    assert "failed (exit 126: no program that can be run)" in loop_lines(ran)[-1]


def test_an_outage_is_waited_for_by_the_schedule_resumes_the_session_and_does_not_count(
    ralph, iterations
) -> None:
    ralph.retry_quickly()
    with ralph.user_file.open("a") as file:
        file.write("max_retries = 1\n[loop]\noutage_waits_s = [0.2, 0.4]\n")
    server = iterations([bash("echo once >> done"), in_turn(*[AWAY] * 4, Turn("Back again."))])
    ran = ralph("loop", "go", "--max-iterations", "1", "--output-format", "stream-json")
    assert ran.code == 0
    waits = [line for line in loop_lines(ran) if "the API is unavailable" in line]
    assert "waiting 0.2s (outage 1, by the schedule loop.outage_waits_s)" in waits[0]
    assert "waiting 0.4s (outage 2 in a row" in waits[1]
    assert len(waits) == 2
    sessions = {entry["session_id"] for entry in ran.objects if "session_id" in entry}
    [record] = loop_record(ralph)["iterations"]
    assert sessions == {record["session_id"]}
    assert (record["number"], record["turns"], record["outcome"]) == (1, 2, "completed")
    assert (ralph.cwd / "done").read_text() == "once\n"
    last, first = (request.json()["messages"] for request in (server.requests[-1], server.requests[0]))
    assert [one["role"] for one in last[:3]] == ["user", "assistant", "user"]
    assert last[0]["content"][0]["text"] == first[0]["content"][0]["text"]


def test_a_directory_that_the_check_removes_ends_it_with_74_and_is_named(ralph, serve) -> None:
    (ralph.cwd / "below").mkdir()
    server = serve()
    ran = ralph("loop", "go", "--cd", "below", "--until", 'rm -r "$PWD"; false', "--sandbox", "off")
    assert (ran.code, server.request_count) == (74, 0)
    assert "below" in loop_lines(ran)[-1]
    assert "Traceback" not in ran.stderr


def test_after_a_limit_of_turns_or_time_a_fresh_iteration_is_told_where_the_last_stopped(
    ralph, iterations
) -> None:
    (ralph.cwd / "ralph.toml").write_text("[limits]\nmax_time_s = 1.5\n")
    server = iterations(
        [write("one.txt"), write("two.txt"), write("three.txt")],
        [bash("touch late.txt; sleep 60")],
        [bash("touch .ralph/stop")],
    )
    ran = ralph("loop", "go", "--max-turns", "3")
    assert ran.code == 0
    records = loop_record(ralph)["iterations"]
    assert [record["exit_code"] for record in records] == [3, 124, 0]
    assert len({record["session_id"] for record in records}) == 3
    prompts = {
        first_prompt(request).partition("]")[0][-1]: first_prompt(request) for request in server.requests
    }
    assert "stopped" not in prompts["1"]
    assert "The last iteration was stopped before it was finished: limit_reached (" in prompts["2"]
    assert "It changed: one.txt" in prompts["2"]
    assert "The last iteration was stopped before it was finished: timed_out (" in prompts["3"]
    assert "It changed: late.txt." in prompts["3"]


def test_three_iterations_that_change_nothing_are_nudged_once_and_then_it_exits_4(ralph, iterations) -> None:
    """An iteration that repeated itself or refused made no progress, whatever it changed. Its text does not
    count.
    """
    server = iterations(
        [write("seen.txt"), Turn("No.", stop_reason="refusal")],
        [Turn("COMPLETE. All checks pass, exit 0, .ralph/stop is there.")],
    )
    ran = ralph("loop", "go", "--until", "false")
    assert ran.code == 4
    assert "no_progress (exit 4): 4 iterations in a row made no progress; 4 iterations" in loop_lines(ran)[-1]
    records = loop_record(ralph)["iterations"]
    assert [record["exit_code"] for record in records] == [4, 0, 0, 0]
    prompts = {first_prompt(request) for request in server.requests}
    [nudged] = [prompt for prompt in prompts if "take another approach" in prompt]
    assert nudged.startswith("[ralph loop 4]")


def test_a_loop_that_failed_is_not_made_a_success_by_a_limit_that_it_has_reached_exits_2(
    ralph, iterations
) -> None:
    server = iterations([Turn("Nothing to do.")])
    assert ralph("loop", "go", "--max-iterations", "9").code == 4
    done = server.request_count
    refused = ralph("loop", "--continue", "--max-iterations", "4")
    assert (refused.code, server.request_count) == (2, done)
    assert "4 iterations are done already: --max-iterations must be more than that" in refused.last_line
    assert loop_record(ralph)["ended"]["outcome"] == "no_progress"


def test_an_iteration_that_reports_failure_counts_and_the_next_is_told(ralph, iterations) -> None:
    """A summary that cannot be written is reported and changes nothing else."""
    ralph.environment["GITHUB_STEP_SUMMARY"] = str(ralph.cwd / "gone" / "summary.md")
    server = iterations([report("failure", "The compiler is missing.")], [report()])
    ran = ralph("loop", "go", "--require-report", "--max-iterations", "2")
    assert ran.code == 0
    assert [record["exit_code"] for record in loop_record(ralph)["iterations"]] == [1, 0]
    assert "iteration 1 of 2: task_failed (exit 1), 1 turn, " in "\n".join(loop_lines(ran))
    told = first_prompt(server.requests[1])
    assert "The last iteration reported failure. Its last words:\n\n> The compiler is missing." in told
    assert loop_lines(ran)[-2].endswith("gone/summary.md: No such file or directory")
    assert loop_lines(ran)[-1].startswith("completed: 2 iterations are done; ")


def test_a_continued_loop_asks_another_server_only_if_the_user_names_it(ralph, serve) -> None:
    before = serve(*[Turn("Done.")] * 2)
    assert ralph("loop", "go", "--until", "test -e never", "--max-iterations", "1").code == 3
    other = serve(*[Turn("Done.")] * 2)  # the variable names it now
    ran = ralph("loop", "--continue", "--max-iterations", "2")
    assert (ran.code, before.request_count, other.request_count) == (78, 1, 0)
    assert ran.last_line == (
        f"[loop] config (exit 78): the loop asked {before.base_url} until now, and would ask {other.base_url}: set "
        f"ANTHROPIC_BASE_URL={before.base_url} as when it began, or confirm the new server with --continue --base-url "
        f"{other.base_url}"
    )
    ralph.environment["ANTHROPIC_BASE_URL"] = before.base_url
    again = ralph("loop", "--continue", "--max-iterations", "2")
    assert (again.code, before.request_count, other.request_count) == (3, 2, 0)
    assert loop_lines(again)[0] == "check before iteration 2: failed (exit 1)"
    assert ralph("loop", "--continue", "--max-iterations", "3", "--base-url", other.base_url).code == 3
    assert loop_record(ralph)["plan"]["server"] == ["anthropic", other.base_url]
    # It is recorded now. The fourth iteration without progress is the last one.
    assert ralph("loop", "--continue", "--max-iterations", "5").code == 4
    assert (before.request_count, other.request_count) == (2, 2)
