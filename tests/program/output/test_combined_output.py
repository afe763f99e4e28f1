"""Standard output and standard error as one pipe or one file, as after `2>&1`."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, Text, ToolUse, Turn
from tests.patience import PATIENCE_S
from tests.processes.terminals import read_all
from tests.program.model_answers import bash

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMISE = "<promise>DONE</promise>"
ANSWER = "Two of three files are left."


def working_turn() -> Turn:
    said = f"I shall say {PROMISE} once all is done."
    return Turn([Text(said), ToolUse("Bash", {"command": "echo one > one.txt"})])


def combined(ralph, *arguments: str) -> tuple[int, str]:
    process = ralph.start(*arguments, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, output.decode()


def own_lines(output: str) -> Sequence[str]:
    return [line for line in output.splitlines() if line.startswith("[")]


def test_the_models_words_appear_once_as_the_final_answer_and_ralphs_lines_stay(ralph, serve) -> None:
    ralph.retry_quickly()
    serve(working_turn(), Fault(status=529), Turn(ANSWER))
    code, output = combined(ralph, "go")
    assert code == 0
    assert PROMISE not in output
    rest = [line for line in output.splitlines() if line not in own_lines(output)]
    assert rest == [ANSWER]
    *before, answer, last = output.splitlines()
    assert answer == ANSWER
    assert last.startswith("[ralph] completed [2 turns, ")
    assert any(line.startswith("[tool] Bash: echo one") for line in before)
    assert any(line.startswith("[retry] Recovered after 1 retries") for line in before)


def test_a_file_that_both_were_opened_on_separately_loses_nothing_of_either(ralph, serve) -> None:
    """After `> log 2> log`, the two streams have separate offsets in one file."""
    serve(working_turn(), Turn(ANSWER))
    log = ralph.cwd.parent / "log"
    with log.open("wb") as stdout, log.open("wb") as stderr:
        assert ralph.start("go", stdout=stdout, stderr=stderr).wait(PATIENCE_S) == 0
    output = log.read_text()
    assert (output.count(ANSWER), output.count(PROMISE)) == (1, 0)
    assert [line.split("]")[0] for line in own_lines(output)] == ["[ralph", "[notice", "[tool", "[ralph"]


ENDS: dict[str, tuple[tuple[str, ...], list[Fault | Turn], int]] = {
    "after retries": ((), [Fault(status=529), Turn(ANSWER)], 0),
    "refused": ((), [Fault(status=400)], 69),
    "out of turns": (("--max-turns", "1"), [working_turn(), Turn(ANSWER)], 3),
    "no key": (("--base-url", "https://api.anthropic.com"), [], 78),
    "empty prompt": (("",), [], 2),
    "wrong value": (("--max-turns", "0"), [], 2),
    "nothing to resume": (("--resume", "0f3a"), [], 2),
}


@pytest.mark.parametrize(
    ("output_format", "end"),
    [*(("stream-json", end) for end in ENDS), ("json", "after retries"), ("json", "wrong value")],
)
def test_with_json_formats_every_line_is_json_whatever_the_end(ralph, serve, output_format, end) -> None:
    arguments, steps, code = ENDS[end]
    ralph.retry_quickly()
    if code == 78:
        del ralph.environment["ANTHROPIC_API_KEY"]
    serve(*steps)
    words = [*arguments] if "" in arguments else ["go", *arguments]
    ended, output = combined(ralph, *words, "--output-format", output_format)
    assert ended == code
    objects = [json.loads(line) for line in output.splitlines()]
    assert [one["type"] for one in objects].count("result") == 1
    assert (objects[-1]["type"], objects[-1]["exit_code"]) == ("result", code)
    assert output_format == "stream-json" or len(objects) == 1


def test_one_terminal_shows_the_words_as_they_come(ralph, serve) -> None:
    serve(working_turn(), Turn(ANSWER))
    ours, its = pty.openpty()
    process = ralph.start("go", stdout=its, stderr=its)
    os.close(its)
    shown = read_all(ours)
    assert process.wait(PATIENCE_S) == 0
    assert (shown.decode().count(ANSWER), shown.decode().count(PROMISE)) == (1, 1)


def test_a_loops_lines_stay_and_each_iterations_words_come_once(ralph, iterations) -> None:
    iterations([working_turn()], [working_turn()])
    code, output = combined(ralph, "loop", "go", "--max-iterations", "2")
    assert (code, output.count("\nAll done.\n"), output.count(PROMISE)) == (0, 2, 0)
    assert [line for line in output.splitlines() if line.startswith("[loop] iteration 2 of 2: completed, ")]


def test_the_program_that_runs_a_ci_job_gets_no_command_of_the_models(ralph, serve) -> None:
    """Neither on standard error, which is for people, nor on standard output in a job, where the words would be its last."""
    command = "##vso[task.setvariable variable=PATH]/evil"
    words = f"{command}\n::set-output name=ok::true\r::add-mask::x"
    serve(bash(f"echo '{command}'; # {command}"), *[Turn(words)] * 4)
    plain = ralph("Go.")
    assert plain.stdout == f"{words}\n"
    ralph.environment["TF_BUILD"] = "True"
    told = ralph("Go.")
    assert told.stdout == f"{words}\n".replace("##", "# #").replace("::set", "| ::set").replace(
        "::add", "| ::add"
    )
    streamed = ralph("Go.", "--output-format", "json")
    assert json.loads(streamed.stdout)["result"] == words
    for ran in (plain, told, streamed):
        assert not re.search(r"(?m)##vso|^\s*::", ran.stderr)
    assert "##vso" not in streamed.stdout
