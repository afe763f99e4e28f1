"""Iterations that are real `ralph run` processes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys

import pytest

from ralph.values.outcome import Outcome
from tests.processes.children import is_gone
from tests.program.model_answers import DONE, bash, results, told_texts

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")

# In namespaces of their own, commands do not know their pids as others see them.
SEES_ALL = ("--sandbox", "off")


def test_the_model_gets_the_prompt_and_the_loop_what_came_of_it(iterating, serve) -> None:
    server = serve(bash("pwd"), DONE)
    (iterating.root / "launch" / "system.md").write_text("Be brief.")
    subprocess.run(["git", "init", "-q", str(iterating.work)], check=True)
    prompt = "Add a test.\n\n\U0001f600 \udc80"

    result = iterating.run("-q", "--append-system-prompt-file", "system.md", prompt=prompt)

    assert (result.exit_code, result.outcome) == (0, Outcome.COMPLETED)
    assert (result.turns, result.last_words, result.reason) == (2, "All done.", "")
    assert result.cost_usd is not None
    assert result.cost_usd > 0
    assert result.duration_s > 0
    assert result.stopped_by is None
    assert told_texts(server, 0)[-1] == "Add a test.\n\n\U0001f600 ?"
    assert results(server) == [(str(iterating.work), False)]
    assert "Be brief." in str(server.requests[0].json()["system"])  # from where the loop was started
    file = iterating.root / "folder" / "prompt.md"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=iterating.work, capture_output=True, check=True
    )
    assert status.stdout == b""
    assert list((iterating.root / "tmp").glob("ralph-loop-*")) == []


@linux_only
def test_a_signal_ends_the_command_and_the_lock_is_not_the_commands(iterating, serve) -> None:
    server = serve(bash("ls -l /proc/self/fd"), bash(f"echo $$ >{iterating.root}/launch/pid; sleep 1000000"))
    lock = os.open(iterating.root / "lock", os.O_RDWR | os.O_CREAT)
    iterating.once_there("pid", lambda _line: iterating.waiter.inbox.note_signal(signal.SIGTERM))
    result = iterating.run(*SEES_ALL, "--add-dir", str(iterating.root / "launch"), lock=lock)
    os.close(lock)

    assert (result.exit_code, result.outcome, result.stopped_by) == (143, Outcome.INTERRUPTED, 15)
    assert result.turns == 2, "the one that was stopped included"
    assert result.reason == "stopped by SIGTERM"
    assert is_gone(int(iterating.noted("pid")))
    [(listing, _)] = results(server)
    assert "/dev/null" in listing
    assert str(iterating.root / "lock") not in listing


def test_a_place_that_cannot_be_written_to_is_an_os_error(iterating) -> None:
    (iterating.root / "folder").write_text("")
    with pytest.raises(FileExistsError, match="folder"):
        iterating.run()
    iterating.root.joinpath("launch").rmdir()
    (iterating.root / "folder").unlink()
    with pytest.raises(FileNotFoundError):
        iterating.run()


def test_a_package_called_ralph_in_the_checkout_is_not_run(iterating, serve) -> None:
    serve(DONE)
    (iterating.root / "launch" / "ralph").mkdir()
    (iterating.root / "launch" / "ralph" / "__main__.py").write_text("raise SystemExit(9)")
    assert iterating.run().exit_code == 0
