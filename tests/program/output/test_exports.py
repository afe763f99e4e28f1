"""The exports of a set are tried by the tools that they are for."""

from __future__ import annotations

import importlib
import os
import pwd
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.fleet.export import export
from ralph.fleet.jobs import SetLimits, session_id
from ralph.mock_api import Fault, MockApi, Scenario, Turn
from tests.fleet.hostile import HOSTILE, job
from tests.patience import LONG_S, wait_until, within_s
from tests.program.cli.test_action import linted, parsed
from tests.program.model_answers import write
from tests.services.outside_programs import KUBERNETES_VALIDATE, folder_or_skip, program_or_skip
from tests.services.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.mock_api import RecordedRequest

pytestmark = pytest.mark.outside
ROOT = Path(__file__).parents[3]
UNTIL = f"test -f c.txt # {secrets.token_hex(8)}"
"""The check of the job `c`, by which its process is found."""


def git(place: Path, *words: str) -> str:
    who = ("-c", "user.name=Begin", "-c", "user.email=begin@example.com")
    return subprocess.run(["git", *who, *words], cwd=place, check=True, capture_output=True, text=True).stdout


def ran_by(
    command: Sequence[str | Path], environment: Mapping[str, str], seconds: float, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s(seconds),
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A bare repository with the branches main and side."""
    bare, work = tmp_path / "bare.git", tmp_path / "work"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(bare))
    git(tmp_path, "init", "-q", "-b", "main", str(work))
    git(work, "commit", "-q", "--allow-empty", "-m", "Begin")
    git(work, "push", "-q", str(bare), "main")
    git(work, "commit", "-q", "--allow-empty", "-m", "Beside")
    git(work, "push", "-q", str(bare), "main:side")
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
    """Writes one file for each job. Its first answer to the job `b` is an outage, and each to the job `d`. At the first
    request of the job `c`, the process that works on it is killed.
    """

    def __init__(self) -> None:
        self.outages = 1
        self.kills = 1
        self.prompts: dict[str, str] = {}

    def __call__(self, request: RecordedRequest, _index: int) -> Turn | Fault:
        messages = request.json()["messages"]
        [prompt] = [
            block["text"][block["text"].index("Job ") :]
            for block in messages[0]["content"]
            if block["type"] == "text" and "Job " in block["text"]
        ]
        name = prompt[4]
        self.prompts[name] = prompt
        if name == "b" and self.outages:
            self.outages -= 1
            return Fault(status=529)
        if name == "d":
            return Fault(status=529)
        if name == "c" and self.kills:
            self.kills -= 1
            # ralph's processes tell no ordinary user where they work.
            for one in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    words = one.read_text().split("\0")
                    if "loop" in words and any(UNTIL in word for word in words):
                        os.kill(int(one.parent.name), signal.SIGKILL)
            return Fault(close_before_headers=True)
        is_done = any(block["type"] == "tool_result" for block in messages[-1]["content"])
        return Turn("Done.") if is_done else write(f"{name}.txt", f"by {name}\n")


def test_gnu_parallel_does_the_jobs_resumes_after_an_outage_and_a_kill_and_pushes_their_branches(
    repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    program_or_skip("parallel")
    options = ("--retry", "off")
    refs = {"a": "side", "b": git(repository, "rev-parse", "side").strip()}
    jobs = [
        job("c", str(repository), after=("b",), until=UNTIL),
        *(job(one, str(repository), options=options, max_budget_usd=5, ref=ref) for one, ref in refs.items()),
    ]
    (tmp_path / "a set.sh").write_text(export(jobs, SetLimits(concurrency=2), "parallel", "night"))
    model = Model()

    def run() -> subprocess.CompletedProcess[str]:
        return ran_by(["sh", "a set.sh"], own, 120, cwd=tmp_path)

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
        ).split() == [f"night/{name}", "1", "1"]
    assert git(repository, "rev-parse", "ralph/a^", "ralph/b^", "ralph/c^").split() == [
        *(2 * [git(repository, "rev-parse", "side").strip()]),
        git(repository, "rev-parse", "main").strip(),
    ]
    log = [line.split("\t") for line in (tmp_path / "jobs" / "night" / ".joblog").read_text().splitlines()]
    ended = [(line[-1].split()[-1].strip("'"), int(line[6])) for line in log if line[0] != "Seq"]
    assert sorted(ended) == [("a", 0), ("b", 0), ("b", 75), ("c", 0), ("c", 137)]
    assert ended[-2:] == [("c", 137), ("c", 0)], "it waits for b"
    [_one_loop] = (tmp_path / "jobs" / "night" / "c" / "state" / "loops").glob("*/*/loop.json")
    [journal] = (tmp_path / "jobs" / "night" / "b" / "state" / "sessions").glob("*/*.jsonl")
    assert journal.stem == session_id("night", "b"), "the second attempt resumed the session of the first"
    assert not [*tmp_path.rglob("pwned")]
    assert (tmp_path / "jobs" / "night").stat().st_mode & 0o777 == 0o700


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
        ran = ran_by(["sh", "set.sh"], own, 60, cwd=tmp_path)
    assert ran.returncode == 74, ran.stdout + ran.stderr
    assert "commits of somebody else" in ran.stdout + ran.stderr
    assert git(repository, "rev-parse", "ralph/a").strip() == begin


def reached_by_url(environment: dict[str, str], repository: Path) -> str:
    """A URL that git translates to the repository, for formats that refuse paths."""
    url = "https://git.example/a.git"
    (Path(environment["HOME"]) / ".gitconfig").write_text(f'[url "{repository}"]\n\tinsteadOf = {url}\n')
    return url


# --- Slurm


class Cluster:
    """One node of Slurm, with its own munge, in a folder of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        me, name = pwd.getpwuid(os.getuid()).pw_name, socket.gethostname()
        (folder / "key").write_bytes(secrets.token_bytes(1024))
        (folder / "key").chmod(0o600)
        ports = [free_port(), free_port()]
        self.settings = folder / "slurm.conf"
        self.settings.write_text(
            f"""ClusterName=ralph
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge
CredType=cred/munge
SlurmUser={me}
SlurmdUser={me}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
RequeueExit=75
NodeName={name} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
        )
        (folder / "state").mkdir()
        (folder / "spool").mkdir()
        self.environment = {**environment, "SLURM_CONF": str(self.settings)}
        files = [f"--{option}={folder}/munge{suffix}" for option, suffix in _FILES_OF_MUNGE.items()]
        commands = [
            [program_or_skip("munged"), "--foreground", "--force", f"--key-file={folder}/key", *files],
            [program_or_skip("slurmctld"), "-D", "-i"],
            [program_or_skip("slurmd"), "-D"],
        ]
        with (folder / "log").open("ab") as log:
            self.daemons = [
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
                for command in commands
            ]

    def call(self, program: str, *words: str, cwd: Path | None = None) -> str:
        ran = ran_by([program_or_skip(program), *words], self.environment, LONG_S, cwd=cwd)
        return ran.stdout.strip()

    def end(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait(within_s())


_FILES_OF_MUNGE = {"socket": "", "pid-file": ".pid", "log-file": ".log", "seed-file": ".seed"}


@pytest.fixture
def cluster(tmp_path: Path, environment: dict[str, str]) -> Iterator[Cluster]:
    program_or_skip("munged")
    # Slurm makes sockets there, whose paths may have 107 characters: `tmp_path` may be too long.
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as folder,
        MockApi(Scenario(), script=Model()) as server,
    ):
        cluster = Cluster(Path(folder), {**environment, "ANTHROPIC_BASE_URL": server.base_url})
        try:
            wait_until(lambda: "State=IDLE" in cluster.call("scontrol", "show", "node"))
            yield cluster
        finally:
            cluster.end()


def test_slurm_does_the_jobs_as_an_array_and_requeues_an_outage(
    repository: Path, cluster: Cluster, tmp_path: Path
) -> None:
    jobs = [job(name, str(repository), options=("--retry", "off"), max_time="20m") for name in "ab"]
    (tmp_path / "night.sh").write_text(export(jobs, SetLimits(concurrency=2), "slurm", "night"))
    number = cluster.call("sbatch", "--parsable", "night.sh", cwd=tmp_path)

    def job_b() -> str:
        return cluster.call("scontrol", "show", "job", f"{number}_1")

    wait_until(lambda: "Reason=BeginTime" in job_b() and "Restarts=1" in job_b(), seconds=60)
    # Slurm would wait for two minutes.
    cluster.call("scontrol", "update", f"JobId={number}_1", "StartTime=now")
    wait_until(lambda: number and not cluster.call("squeue", "-h"), seconds=60)
    assert "ExitCode=0:0" in job_b(), (tmp_path / f"ralph-night-{number}_1.txt").read_text()
    assert "TimeLimit=00:35:00" in job_b()
    for name in "ab":
        assert git(repository, "show", f"ralph/{name}:{name}.txt") == f"by {name}\n"
    [journal] = (tmp_path / "jobs" / "night" / "b" / "state" / "sessions").glob("*/*.jsonl")
    assert journal.stem == session_id("night", "b")


def test_slurm_repeats_no_last_attempt_although_the_cluster_requeues_its_code(
    repository: Path, cluster: Cluster, tmp_path: Path
) -> None:
    jobs = [job("d", str(repository), options=("--retry", "off"))]
    (tmp_path / "night.sh").write_text(export(jobs, SetLimits(max_attempts=1), "slurm", "night"))
    number = cluster.call("sbatch", "--parsable", "night.sh", cwd=tmp_path)
    wait_until(lambda: number and not cluster.call("squeue", "-h"), seconds=60)
    told = cluster.call("scontrol", "show", "job", f"{number}_0")
    assert "Restarts=0" in told
    assert "JobState=FAILED" in told
    assert "ExitCode=1:0" in told
    said = (tmp_path / f"ralph-night-{number}_0.txt").read_text()
    assert "ralph: the last of 1 attempts ended with 75" in said


# --- Kubernetes


def validated(file: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", str(file)]
    own = {**os.environ, "PYTHONPATH": str(folder_or_skip(KUBERNETES_VALIDATE))}
    ran = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def test_kubernetes_takes_the_job_and_its_script_does_one(
    repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    url = reached_by_url(environment, repository)
    jobs = [job("a", url, max_time="20m", env=("NO", "X_TOKEN")), job("c", url, max_time="1h")]
    written = export(jobs, SetLimits(concurrency=2), "kubernetes", "A_Night")
    (tmp_path / "night.yml").write_text(written)
    (tmp_path / "wrong.yml").write_text(written.replace("action: Count", "count: true"))
    code, said = validated(tmp_path / "night.yml")
    assert code == 0, said
    assert "job/ralph-a-night" in said
    assert validated(tmp_path / "wrong.yml")[0] != 0
    folder = str(folder_or_skip(KUBERNETES_VALIDATE))
    sys.path.append(folder)
    try:
        documents = list(importlib.import_module("yaml").safe_load_all(written))
    finally:
        sys.path.remove(folder)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "run.sh").write_text(documents[0]["data"]["run.sh"].replace("/jobs/", f"{mounted}/"))
    for name, carried in documents[0]["binaryData"].items():
        (mounted / name).write_bytes(b64decode(carried))
    names = [one["name"] for one in documents[1]["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert names[-4:] == ["ANTHROPIC_API_KEY", "RALPH_GIT_TOKEN", "NO", "X_TOKEN"]
    model = Model()
    with MockApi(Scenario(), script=model) as server:
        own = {
            **environment,
            "ANTHROPIC_BASE_URL": server.base_url,
            "NO": "a value",
            "X_TOKEN": "another one",
        }
        ran = ran_by(["dash", mounted / "run.sh"], own | {"JOB_COMPLETION_INDEX": "0"}, 60)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert model.prompts["a"].strip() == f"Job a. {HOSTILE}".strip()
    assert git(repository, "show", "ralph/a:a.txt") == "by a\n"


# --- GitHub


def test_github_takes_the_workflow_and_its_step_does_a_job(
    repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    url = reached_by_url(environment, repository)
    jobs = [job("no", url, env=("NO",)), job("b", url, options=("--retry", "off"))]
    (tmp_path / "night.yml").write_text(export(jobs, SetLimits(concurrency=2), "github-matrix", "night"))
    assert linted(tmp_path / "night.yml", tmp_path) == []
    [workflow] = parsed(tmp_path / "night.yml")["jobs"].values()
    assert [entry["id"] for entry in workflow["strategy"]["matrix"]["include"]] == ["no", "b"]
    step = [one for one in workflow["steps"] if "run" in one][-1]
    assert not [one["run"] for one in workflow["steps"] if "${{" in one.get("run", "")]
    (tmp_path / "step.sh").write_text(step["run"])
    model = Model()
    with MockApi(Scenario(), script=model) as server:
        own = {**environment, "ANTHROPIC_BASE_URL": server.base_url, "RUNNER_TEMP": str(tmp_path / "temp")}
        own |= {"JOB": workflow["strategy"]["matrix"]["include"][1]["job"], "RALPH_ATTEMPTS": "2"}
        ran = ran_by([*step["shell"].split()[:1], tmp_path / "step.sh"], own, 60)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "again in 0 s (attempt 2 of 2)" in ran.stderr
    assert model.prompts["b"].strip() == f"Job b. {HOSTILE}".strip()
    assert git(repository, "show", "ralph/b:b.txt") == "by b\n"
