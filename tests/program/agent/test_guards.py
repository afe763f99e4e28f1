"""A model that repeats itself, as a user meets it (D6): its calls are refused, and then the run ends. A run that
makes progress continues. tests/agent/test_loop_guards.py tests which calls are equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.program.model_answers import DONE, bash, calls, results

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.mock_api import Playable, RecordedRequest, Turn


def for_ever(*round_: Turn) -> Callable[[RecordedRequest, int], Playable]:
    return lambda _request, index: round_[index % len(round_)]


def ran_lines(ralph) -> list[str]:
    path = ralph.cwd / "ran"
    return path.read_text().splitlines() if path.exists() else []


def test_d6_a_call_that_is_made_again_and_again_runs_three_times_and_each_refusal_says_what_is_left_exits_4(
    ralph, serve
) -> None:
    command = "echo once >> ran; echo the same"
    server = serve(script=for_ever(bash(command)))
    ran = ralph("go", "--output-format", "stream-json")
    assert ran.code == 4
    assert len(ran_lines(ralph)) == 3
    assert len(server.requests) == 9, "three that ran, six that were refused"
    assert ran.result["guard"] == {"name": "repetition", "tool": "Bash", "input": {"command": command}}
    assert [event["refusals"] for event in ran.of("guard")] == [*range(1, 7)]
    assert ran.result["terminal_reason"] == "no_progress"
    assert ran.result["final_report"]["reason"] == "no_progress"
    assert ran.result["result"].startswith("No final answer: the run made no progress after 9 turns")
    assert "the model went in circles (repetition)" in ran.last_line
    refusals = [results(server, nth) for nth in range(4, 9)]
    for number, [(said, is_error)] in enumerate(refusals, start=1):
        assert is_error
        assert said.startswith(
            "Refused: this Bash call was made 3 times in a row and the results did not change."
        )
        assert f"This is refusal {number} of 6" in said
    guards = [line for line in ran.stderr.splitlines() if line.startswith("[guard]")]
    assert guards == [
        f"[guard] Not run (repetition, {n} of 6 refusals): Bash: {command}" for n in range(1, 7)
    ]
    assert "[tool] Bash failed" not in ran.stderr, "one line for one refusal"


def test_d6_edits_that_change_nothing_are_ended_exits_4(ralph, serve) -> None:
    (ralph.cwd / "a.py").write_text("x = 1\n")
    edits = [("Write", {"file_path": path, "content": "x = 1\n"}) for path in ("a.py", "./a.py")]
    serve(calls(("Read", {"file_path": "a.py"})), *[calls(edits[n % 2]) for n in range(9)])
    ran = ralph("go", "--output-format", "json")
    assert (ran.code, ran.result["guard"]["name"]) == (4, "no_change")
    assert (ralph.cwd / "a.py").read_text() == "x = 1\n"


def test_d6_a_model_that_takes_the_hint_continues_exits_0(ralph, serve) -> None:
    (ralph.cwd / "a").write_text("the same\n")
    stuck = [calls(("Read", {"file_path": "a"}))] * 8
    server = serve(*stuck, calls(("Glob", {"pattern": "*"})), *stuck[:3], DONE)
    ran = ralph("go", "--output-format", "json")
    assert ran.code == 0
    assert "guard" not in ran.result
    assert not any(is_error for _, is_error in results(server)), "what is let through starts the count anew"
