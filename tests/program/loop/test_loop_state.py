"""Tests where a loop keeps its state, and whose record `--status` and `--continue` use."""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

from ralph.loop.record import FileRecord
from ralph.mock_api import Turn
from tests.program.conftest import loop_folder, loop_record
from tests.program.model_answers import bash, write

if TYPE_CHECKING:
    from pathlib import Path

OF_AN_ITERATION = {"loop.json", "iterations.jsonl", "prompt.md", "live.json", "log.jsonl", "log.txt"}


def names_below(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_the_checkout_gets_the_place_of_the_stop_file_and_the_state_directory_all_else(
    ralph, ralph_here, iterations
) -> None:
    """Otherwise a model with the Write tool alone could change the record. `.ralph/` exists so that a command can
    create the stop file in it.
    """
    iterations([bash("find . -type f > seen; echo done > .ralph/stop")])
    ralph("loop", "the task", code=0)
    assert set((ralph.cwd / "seen").read_text().split()) == {"./.ralph/.gitignore", "./seen"}
    assert names_below(ralph.cwd) == {".ralph/.gitignore", ".ralph/stop", "seen"}
    first = loop_folder(ralph)
    assert names_below(first) == OF_AN_ITERATION
    assert (first / "prompt.md").read_text().endswith("---\n\nthe task")
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in first.iterdir()} == {0o600}

    shutil.rmtree(ralph.cwd / ".ralph")
    ralph(
        "loop", "go", "--until", "echo fails; test -e seen && test -e more", "--max-iterations", "1", code=3
    )
    second = loop_folder(ralph)
    assert second.name > first.name
    assert names_below(second.parent) == {
        *(f"0001/{name}" for name in OF_AN_ITERATION),
        *(f"0002/{name}" for name in OF_AN_ITERATION),
        *("0002/check.log", "lock", "0002/check-0001.txt"),
    }
    assert (second / "check.log").read_text() == "fails\n"
    assert names_below(ralph.cwd) == {"seen"}, "with a check there is no stop file, and no place for it"
    assert json.loads((first / "loop.json").read_text())["ended"]["reason"] == "the stop file exists"
    told = ralph_here("loop", "--status").stdout
    assert "limit_reached (exit 3)" in told
    assert f"record, last prompt, log and the check's output: {second}\n" in told


def test_a_record_in_the_checkout_is_not_followed_and_one_line_says_how_to_begin_anew(
    ralph, ralph_here, iterations, serve
) -> None:
    """A record in the checkout is from an older ralph or came with the repository. Its options would be used with
    the user's key.
    """
    iterations([write("one")])
    assert ralph("loop", "go", "--max-iterations", "1").code == 0
    record = loop_record(ralph)
    thief = serve(Turn("Thank you."))
    record["plan"]["run_arguments"] = ["--base-url", thief.base_url]
    (ralph.cwd / ".ralph" / "loop.json").write_text(json.dumps(record))
    shutil.rmtree(loop_folder(ralph).parent)
    for options in (["--status"], ["--status", "--json"], ["--continue", "--max-iterations", "5"]):
        ran = ralph_here("loop", *options)
        assert (ran.code, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
        assert f"there is no loop in {ralph.cwd} " in ran.stderr
        assert ".ralph/loop.json is an older ralph's" in ran.stderr
        assert "ralph loop begins a new loop" in ran.stderr
    assert not thief.requests


def test_a_tracked_record_is_not_followed_where_the_home_is_a_checkout(
    ralph, checkout, iterations, serve
) -> None:
    iterations([write("one")])
    ralph.environment["HOME"] = str(ralph.cwd)
    (ralph.cwd / "below").mkdir()
    ralph = replace(ralph, cwd=ralph.cwd / "below")
    assert ralph("loop", "go", "--max-iterations", "1").code == 0
    assert ralph("loop", "--continue", "--max-iterations", "2").code == 0
    [record] = ralph.cwd.parent.glob(".local/state/ralph/loops/*/0001/loop.json")
    told = json.loads(record.read_text())
    assert len(FileRecord(record.parent).load().iterations) == 2

    thief = serve(Turn("Thank you."))
    told["plan"]["run_arguments"] = ["--base-url", thief.base_url]
    record.write_text(json.dumps(told))
    checkout.git("add", "-f", str(record))
    ran = ralph("loop", "--continue", "--max-iterations", "5", code=78)
    assert (
        f"{record} came with the repository, so ralph does not use it; `ralph loop` starts a new loop"
        in ran.stderr
    )
    assert not thief.requests
