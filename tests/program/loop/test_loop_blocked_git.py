"""A loop never hangs because git does: files for which git would wait are named, and a stop gives git three seconds."""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from tests.patience import wait_until
from tests.processes.scripts import before_git
from tests.program.conftest import loop_lines, processes_of
from tests.program.model_answers import bash

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")


def a_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["dir/.gitignore", ".git/index", ".git/objects/info/alternates"])
def test_a_pipe_for_which_git_would_wait_ends_the_loop_and_is_named(
    ralph, checkout, iterations, name
) -> None:
    """The iteration has made it, so the loop's own look at the work meets it."""
    iterations([bash(f"mkdir -p $(dirname {name}); rm -f {name}; mkfifo {name}")])
    ran = ralph("loop", "go", "--commit", code=74)
    assert f"waits for {checkout.top / name}, which is not a file" in ran.last_line
    assert processes_of(ralph) == {}


def test_a_pipe_that_a_configuration_names_ends_the_loop_before_it_begins(ralph, checkout, tmp_path) -> None:
    pipe, included = tmp_path / "pipe", checkout.top / ".git/more"
    included.write_text(f"[core]\n\tautocrlf = false\n[include]\n\tpath = {pipe}\n")
    with (checkout.top / ".git/config").open("a") as config:
        config.write("[include]\n\tpath = more\n")
    a_pipe(pipe)
    ran = ralph("loop", "go")
    assert (ran.code, f"waits for {pipe}, which is not a file" in ran.last_line) == (78, True)


def test_a_socket_in_the_place_of_the_index_is_named(ralph, checkout, monkeypatch) -> None:
    (checkout.top / ".git/index").unlink()
    with socket.socket(socket.AF_UNIX) as made:
        monkeypatch.chdir(checkout.top / ".git")  # the whole path may be too long for a socket
        made.bind("index")
        ran = ralph("loop", "go")
    assert ran.code in (74, 78)
    assert ".git/index" in ran.stderr


def test_a_remote_that_never_answers_ends_a_loop_at_its_time_limit(ralph, checkout, iterations) -> None:
    iterations()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        checkout.git("remote", "set-url", "origin", f"http://127.0.0.1:{silent.getsockname()[1]}/x.git")
        ran = ralph("loop", "go", "--commit", "--push", "--max-time", "2s")
    assert (ran.code, "the time limit (--max-time) is used up" in ran.last_line) == (124, True), ran.stderr
    assert processes_of(ralph) == {}


@pytest.mark.parametrize("options", [(), ("--commit",), ("--commit", "--push")], ids=str)
def test_a_stop_gives_a_git_that_does_not_answer_three_seconds(
    ralph, checkout, iterations, tmp_path, options
) -> None:
    """As on a dead mount. Without a limit of its own, the look after the signal would take five minutes."""
    hangs = f"[ -e {tmp_path}/blocked ] && echo $$ >> {tmp_path}/waiting && exec sleep 1000000"
    before_git(ralph.environment, tmp_path / "programs", f'case " $* " in *" status "*) {hangs};; esac')
    iterations([bash(f"echo new > new; touch {tmp_path}/blocked")])
    process = ralph.start("loop", "go", *options)
    wait_until((tmp_path / "waiting").exists)
    ran = ralph.stopped_by(process, signal.SIGTERM, code=143)
    if options:
        assert "git status took longer than 3 s and was stopped" in "\n".join(loop_lines(ran))
    assert processes_of(ralph) == {}
    assert (checkout.top / "new").read_text() == "new\n"
