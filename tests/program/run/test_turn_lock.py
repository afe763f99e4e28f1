"""A program that drives ralph can copy its files and its journal at a moment when the two agree (RALPH_TURN_LOCK)."""

from __future__ import annotations

import fcntl
import sys
from typing import TYPE_CHECKING

from ralph.mock_api import Turn
from tests.processes.descriptors import open_descriptors, wait_until_closed
from tests.program.conftest import loop_lines
from tests.program.model_answers import bash

if TYPE_CHECKING:
    from pathlib import Path


# Tells whether somebody holds the lock, and whether a command sees its name.
LOOK = """
import fcntl, os, sys
with open(sys.argv[2]) as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        state = "free"
    except BlockingIOError:
        state = "held"
print(sys.argv[1], state, "named" if "RALPH_TURN_LOCK" in os.environ else "hidden", file=open("seen", "a"))
"""


def is_free(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_loop_and_its_iterations_hold_the_lock_while_they_change_files(ralph, serve, tmp_path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    ralph.environment["RALPH_TURN_LOCK"] = str(lock)
    (ralph.cwd / "look.py").write_text(LOOK)
    look = f"{sys.executable} look.py {{}} {lock}"
    free_at_request: list[bool] = []

    def play(_request, index):
        free_at_request.append(is_free(lock))
        return [bash(look.format("command")), Turn("Done.")][index]

    serve(script=play)
    ran = ralph("loop", "x", "--until", f"{look.format('check')}; grep -q command seen")
    assert ran.code == 0, loop_lines(ran)
    seen = (ralph.cwd / "seen").read_text().splitlines()
    assert seen == ["check held hidden", "command held hidden", "check held hidden"]
    assert free_at_request == [True, True]
    assert is_free(lock)
    assert "RALPH_TURN_LOCK" not in ran.stderr, "no notice calls it a credential"


def test_a_lock_that_cannot_be_held_is_exit_78(ralph, ralph_here, tmp_path) -> None:
    ralph.environment["RALPH_TURN_LOCK"] = str(tmp_path / "missing")
    for words in (("x",), ("loop", "x", "--until", "false")):
        refused = ralph_here(*words, code=78)
        assert f"cannot lock {tmp_path / 'missing'} (RALPH_TURN_LOCK): No such file" in refused.stderr
    assert not list(tmp_path.rglob("*.jsonl"))
    assert not list(tmp_path.rglob("loop.json"))


def test_a_run_that_is_refused_late_has_closed_its_lock_and_all_else_exits_78(
    ralph, ralph_here, serve, tmp_path
) -> None:
    serve(Turn("ok"))
    assert ralph("hi").code == 0
    lock = tmp_path / "lock"
    lock.touch()
    ralph.environment["RALPH_TURN_LOCK"] = str(lock)
    before = open_descriptors()
    ran = ralph_here("-c", "more", "--model", "nobody-knows-it", "--max-budget-usd", "1", code=78)
    assert "the price of nobody-knows-it is not known" in ran.stderr
    wait_until_closed(before)
