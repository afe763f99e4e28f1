"""The exports of a set are tried by the tools that they are for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.fleet.export import export
from ralph.fleet.job_content import session_id
from ralph.fleet.jobs import SetLimits
from ralph.mock_api import Fault, MockApi, Scenario, Turn
from tests.fleet.hostile import HOSTILE, job
from tests.outside_programs import program_or_skip
from tests.patience import within_s
from tests.program.model_answers import write

if TYPE_CHECKING:
    from ralph.mock_api import RecordedRequest

pytestmark = pytest.mark.outside
ROOT = Path(__file__).parents[2]


def git(place: Path, *words: str) -> str:
    who = ("-c", "user.name=Begin", "-c", "user.email=begin@example.com")
    return subprocess.run(["git", *who, *words], cwd=place, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A bare repository with one commit."""
    bare, work = tmp_path / "bare.git", tmp_path / "work"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(bare))
    git(tmp_path, "init", "-q", "-b", "main", str(work))
    git(work, "commit", "-q", "--allow-empty", "-m", "Begin")
    git(work, "push", "-q", str(bare), "main")
    return bare


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which `ralph` is that of this checkout."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ralph").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ralph "$@"\n')
    (programs / "ralph").chmod(0o755)
    return {
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "RALPH_JOBS_DIR": str(tmp_path / "jobs"),
        "RALPH_WAIT_S": "0",
        "ANTHROPIC_API_KEY": "sk-ant-test-0123456789abcdef",
    }


class Model:
    """Writes one file for each job. Its first answer to the job `b` is an outage."""

    def __init__(self) -> None:
        self.outages = 1
        self.prompts: dict[str, str] = {}

    def __call__(self, request: RecordedRequest, _index: int) -> Turn | Fault:
        messages = request.json()["messages"]
        [prompt] = [
            block["text"]
            for block in messages[0]["content"]
            if block["type"] == "text" and block["text"].startswith("Job ")
        ]
        name = prompt[4]
        self.prompts[name] = prompt
        if name == "b" and self.outages:
            self.outages -= 1
            return Fault(status=529)
        is_done = any(block["type"] == "tool_result" for block in messages[-1]["content"])
        return Turn("Done.") if is_done else write(f"{name}.txt", f"by {name}\n")


def test_gnu_parallel_does_the_jobs_repeats_an_outage_and_pushes_their_branches(
    repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    program_or_skip("parallel")
    options = ("--retry", "off")
    jobs = [
        job("c", str(repository), after=("b",)),
        *(job(one, str(repository), options=options) for one in "ab"),
    ]
    (tmp_path / "a set.sh").write_text(export(jobs, SetLimits(concurrency=2), "parallel", "night"))
    model = Model()

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "a set.sh"],
            cwd=tmp_path,
            env=own,
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s(120),
        )

    with MockApi(Scenario(), script=model) as server:
        own = {**environment, "ANTHROPIC_BASE_URL": server.base_url}
        ran = run()
        assert ran.returncode == 0, ran.stdout + ran.stderr
        asked = len(server.requests)
        again = run()
        assert (again.returncode, len(server.requests)) == (0, asked), "what ended is left alone"
    assert {name: prompt.strip() for name, prompt in model.prompts.items()} == {
        name: f"Job {name}. {HOSTILE}".strip() for name in "abc"
    }
    for name in "abc":
        assert git(repository, "show", f"ralph/{name}:{name}.txt") == f"by {name}\n"
        assert git(
            repository, "log", "-1", "--format=%(trailers:key=Ralph-Job,valueonly)", f"ralph/{name}"
        ).split() == [f"night/{name}"]
    log = [line.split("\t") for line in (tmp_path / "jobs" / "night" / "joblog").read_text().splitlines()]
    ended = [(line[-1].split()[-1].strip("'"), int(line[6])) for line in log if line[0] != "Seq"]
    assert sorted(ended) == [("a", 0), ("b", 0), ("b", 75), ("c", 0)]
    assert ended[-1] == ("c", 0), "it waits for b"
    [journal] = (tmp_path / "jobs" / "night" / "b" / "state" / "sessions").glob("*/*.jsonl")
    assert journal.stem == session_id("night", "b"), "the second attempt resumed the session of the first"
    assert not [*tmp_path.rglob("pwned")]


def test_a_branch_with_commits_of_somebody_else_is_left_alone(
    repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    program_or_skip("parallel")
    (tmp_path / "set.sh").write_text(export([job("a", str(repository))], SetLimits(), "parallel", "night"))
    begin = git(repository, "rev-parse", "main").strip()

    def answer(_request: RecordedRequest, index: int) -> Turn:
        git(repository, "update-ref", "refs/heads/ralph/a", begin)
        return Turn("Done.") if index else write("a.txt", "x")

    with MockApi(Scenario(), script=answer) as server:
        own = {**environment, "ANTHROPIC_BASE_URL": server.base_url}
        ran = subprocess.run(
            ["sh", "set.sh"],
            cwd=tmp_path,
            env=own,
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s(60),
        )
    assert ran.returncode == 74, ran.stdout + ran.stderr
    assert "commits of somebody else" in ran.stdout + ran.stderr
    assert git(repository, "rev-parse", "ralph/a").strip() == begin
