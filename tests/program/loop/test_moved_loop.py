"""A loop whose record and checkout were copied to another place, as after the death of a machine, must continue there."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from ralph.mock_api import Fault, Step, Turn
from tests.patience import PATIENCE_S
from tests.program.conftest import Ralph, in_turn, loop_record
from tests.program.loop.test_loop_killed import kill
from tests.program.model_answers import bash

if TYPE_CHECKING:
    from pathlib import Path

HANGS = Step(Turn("Late."), Fault(stall_before_headers_s=60))


def copied(ralph: Ralph, place: Path) -> Ralph:
    """The user on another machine, with a copy of the state and a clone of what is committed. The first place
    stays as it is.
    """
    place.mkdir()
    home, work = place / "home", place / "elsewhere"
    shutil.copytree(ralph.environment["HOME"], home, symlinks=True)
    return Ralph(work, {**ralph.environment, "HOME": str(home)})


def test_a_killed_loop_continues_in_a_copy_and_counts_no_iteration_twice_exits_0(
    ralph, checkout, iterations, tmp_path
) -> None:
    server = iterations(
        [bash("echo 1 >> log"), Turn("One.")],
        [bash("echo 2 >> log"), in_turn(HANGS, Turn("Two."))],
    )
    check = "test $(wc -l < log) = 2 && test $(git rev-list --count HEAD) = 3"
    process = ralph.start("loop", "go", "--until", check, "--commit", "--max-iterations", "2")
    assert server.wait_for_requests(4, PATIENCE_S)
    kill(ralph, process)
    left = loop_record(ralph)
    assert (len(left["iterations"]), left["current"]["number"]) == (1, 2)
    before = checkout.git("status", "--porcelain"), checkout.git("rev-parse", "HEAD")

    other = copied(ralph, tmp_path / "there")
    identity = ("-c", "user.name=Tester", "-c", "user.email=tester@example.com")
    checkout.git("clone", "-q", *identity, str(ralph.cwd), str(other.cwd))
    shutil.copy(ralph.cwd / "log", other.cwd / "log")  # not committed yet: the other program carries it
    refused = other("loop", "--continue", code=2)
    assert "there is no loop in" in refused.stderr
    other("loop", "--continue", "--moved", code=0)

    record = loop_record(other)
    assert record["plan"]["directory"] == str(other.cwd)
    assert [one["number"] for one in record["iterations"]] == [1, 2]
    assert record["iterations"][0] == left["iterations"][0]
    assert record["iterations"][1]["session_id"] == left["current"]["session_id"]
    assert (other.cwd / "log").read_text() == "1\n2\n"
    assert checkout.git("-C", str(other.cwd), "rev-list", "--count", "HEAD") == "3"
    assert server.request_count == 5
    assert f"now {other.cwd}; it was {ralph.cwd}." in str(server.requests[-1].json()["messages"][-1])
    assert (checkout.git("status", "--porcelain"), checkout.git("rev-parse", "HEAD")) == before
    assert loop_record(ralph) == left, "the first place was not touched"
    assert other("loop", "--continue", "--moved").code == 2, "it is completed"
