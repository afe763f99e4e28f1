"""`ralph loop ls` and `ralph loop show`: the loops of a directory, after they have ended."""

from __future__ import annotations

import json
import shutil

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.program.conftest import Finished, loop_folder
from tests.program.model_answers import bash, write
from tests.rows import every_row


def test_the_loops_of_a_directory_are_listed_and_each_is_shown_with_its_log(
    ralph, ralph_here, iterations
) -> None:
    iterations([write("one")], [bash("exit 3")])
    (ralph.cwd / "TASK.md").write_text("go on")
    task = f"\nwork{' hard' * 30}\x1b[2J on sk-ant-test-0123456789abcdef\nmore"
    assert ralph("loop", task, "--max-iterations", "1").code == 0
    first = loop_folder(ralph)
    options = ("--until", "test -e never", "--max-iterations", "2", "-q")
    assert ralph("loop", "-f", "TASK.md", *options).code == 3

    listed = ralph_here("loop", "ls")
    assert (listed.code, listed.stderr) == (0, "")
    header, second, oldest = listed.stdout.splitlines()
    assert header.split() == ["ID", "BEGUN", "OUTCOME", "ITERATIONS", "COST", "TASK"]
    assert [*second.split()[:1], *second.split()[3:5]] == ["2", "limit_reached", "2"]
    assert second.endswith(" -f TASK.md")
    assert oldest.split()[3:5] == ["completed", "1"]
    assert oldest.endswith(" hard on [redacted]")  # whole, because no terminal limits it
    objects = json.loads(ralph_here("loop", "ls", "--format", "json", "--all").stdout)
    assert [(one["id"], one["exit_code"], one["iterations"]) for one in objects] == [(2, 3, 2), (1, 0, 1)]
    assert {one["directory"] for one in objects} == {str(ralph.cwd)}
    assert str(ralph.cwd)[-27:] in ralph_here("loop", "ls", "-a").stdout

    newest = ralph_here("loop", "show").stdout
    assert newest == ralph_here("loop", "show", "0002").stdout
    lines = newest.splitlines()
    assert lines[0] == "loop 2: -f TASK.md"
    assert any(line.startswith("iteration 2 of 2: completed, ") for line in lines)
    assert "  All done." in lines
    assert "check `test -e never`: failed (exit 1)" in lines
    assert "(ralph loop show 2 --log)" in lines[-1]
    log = ralph_here("loop", "show", "1", "--log").stdout
    assert log == (first / "log.txt").read_text()
    assert "[tool] Write: one" in log

    (first / "loop.json").write_text("{")
    assert ralph_here("loop", "ls").stdout.splitlines()[2].split() == ["1", "unreadable"]
    assert ralph_here("loop", "show", "1").code == 74
    shutil.rmtree(loop_folder(ralph).parent)
    assert ralph_here("loop", "ls").stdout == f"no loop is recorded in {ralph.cwd}\n"


def test_every_place_counts_the_iterations_that_ended_and_names_the_other_beside_them(
    ralph, ralph_here, serve, tmp_path
) -> None:
    serve(Step(Turn("Done.")), Step(fault=Fault(status=401)))
    assert ralph("loop", "go on").code == 77
    assert "; 1 iteration and 1 not finished, 1 turn, " in ralph_here("loop", "--status").stdout
    assert ralph_here("loop", "ls").stdout.splitlines()[1].split()[3:5] == ["auth", "1"]
    assert json.loads(ralph_here("loop", "ls", "--format", "json").stdout)[0]["iterations"] == 1
    assert json.loads(ralph_here("loop", "--status", "--json").stdout)["totals"]["iterations"] == 1
    page = tmp_path / "page.html"
    assert ralph_here("report", "-o", str(page)).code == 0
    assert "<dt>Iterations</dt><dd><b>1</b> <small>and 1 not finished, 1 turn</small>" in page.read_text()


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
        (["logs"], "did you mean `ralph loop show --log`?"),
        (["-q", "ls"], "`ralph loop ls` takes its options after `ls`"),
        (["ls", "--al"], "see `ralph loop ls --help`"),
        (["--watch", "go"], "--watch goes with --status"),
    ],
)
def test_a_slip_is_one_line_and_exit_2(ralph_here, words, says) -> None:
    assert says in refused(ralph_here("loop", *words, as_typed=True))


@pytest.mark.parametrize("command", ["ls", "show"])
def test_each_command_has_a_help_page(ralph_here, command) -> None:
    ran = ralph_here("loop", command, "--help")
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"Usage: ralph loop {command} [OPTIONS]")
