"""loop.sh against a stand-in for ralph: it goes by exit codes, and takes its child along when it is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

LOOP = Path(__file__).parent.parent / "loop.sh"


@pytest.fixture
def loop(tmp_path: Path):
    """Starts loop.sh with a `ralph` that runs these shell lines; `calls` holds one line for each run."""
    (tmp_path / "PROMPT_build.md").write_text("do it")

    def start(script: str, *arguments: str) -> subprocess.Popen[str]:
        ralph = tmp_path / "ralph"
        ralph.write_text(f'#!/bin/sh\necho "$*" >> calls\n{script}\n')
        ralph.chmod(0o755)
        return subprocess.Popen(
            ["bash", str(LOOP), *arguments],
            cwd=tmp_path,
            env={**os.environ, "RALPH": str(ralph)},
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(("wish", "runs"), [("2", 2), ("08", 8), ("0003", 3)])
def test_it_runs_as_often_as_asked_with_the_prompt_file(loop, tmp_path, wish, runs) -> None:
    process = loop("exit 0", "build", wish)
    assert process.wait(timeout=20) == 0
    assert calls(tmp_path) == ["run --retry patient --prompt-file PROMPT_build.md"] * runs
    process.stderr.close()


@pytest.mark.parametrize("code", [2, 69, 70, 74, 77, 78, 130, 143])
def test_a_code_that_another_run_cannot_mend_stops_it_with_that_code(loop, tmp_path, code) -> None:
    process = loop(f"exit {code}", "5")
    _, said = process.communicate(timeout=20)
    assert (process.returncode, len(calls(tmp_path))) == (code, 1)
    assert f"exit code {code}" in said


@pytest.mark.parametrize("code", [3, 4, 124])
def test_after_a_limit_or_no_progress_a_fresh_context_goes_on(loop, tmp_path, code) -> None:
    process = loop(f"exit {code}", "2")
    process.communicate(timeout=20)
    assert (process.returncode, len(calls(tmp_path))) == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "says"), [(["x"], "usage"), (["1", "2"], "usage"), (["plan"], "PROMPT_plan.md")]
)
def test_misuse_is_exit_2(loop, arguments, says) -> None:
    process = loop("exit 0", *arguments)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 2
    assert says in said


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_to_the_loop_alone_takes_its_child_along(loop, tmp_path, number, code) -> None:
    process = loop("trap 'echo stopped >> calls; exit 143' TERM; while :; do sleep 0.05; done")
    deadline = time.monotonic() + 10
    while not calls(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == code
    assert calls(tmp_path)[-1] == "stopped"
