"""A set is written for another scheduler, or refused if the scheduler would lose one of its guards."""

from __future__ import annotations

import os
import re
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

from ralph.fleet.export import AGAIN, FORMATS, GITHUB, KUBERNETES, ONE_JOB, PARALLEL, SLURM, export
from ralph.fleet.jobs import Rate, SetLimits, content_of
from ralph.places.gather import why_protected
from ralph.values.outcome import UsageError
from tests.fleet.hostile import job
from tests.processes.scripts import script
from tests.rows import every_row

FREE = SetLimits()
TWO_HOSTS = [job("a"), job("b"), job("c", "git@other.example:c")]


# The jobs, the limits, the format, and what is refused.
REFUSED = [
    (
        [job("a")],
        SetLimits(max_budget_usd=3),
        "parallel",
        "cannot keep max_budget_usd (max_budget_usd: give each",
    ),
    (
        [job("a")],
        SetLimits(rate=Rate(1, 1.0)),
        "slurm",
        "slurm cannot keep rate (rate: set concurrency)",
    ),
    (
        TWO_HOSTS,
        SetLimits(per_host=1),
        "parallel",
        "cannot keep per_host (per_host: a concurrency of 1 keeps it)",
    ),
    (
        [job("a"), job("b", after=("a",))],
        FREE,
        "slurm",
        "slurm cannot express the `after` of the job b; parallel can",
    ),
    (
        [job("a", "/srv/a")],
        FREE,
        "kubernetes",
        "the repository of the job a is a path, and a pod has no such path",
    ),
    ([job("a", "file:///srv/a")], FREE, "github-matrix", "is a path, and a runner has no such path"),
    ([job("a", prompt="x" * 90_000)], FREE, "github-matrix", "the job a is too large for github-matrix"),
    ([job("a", prompt="x" * 600_000)], FREE, "kubernetes", "the job a is too large for kubernetes"),
    ([job("a", prompt="x" * 3_000_000)], FREE, "slurm", "the script is too large for slurm"),
    (
        [job(f"j{n}", prompt="x" * 50_000) for n in range(9)],
        FREE,
        "github-matrix",
        "the workflow is too large",
    ),
    ([job(f"j{n}") for n in range(257)], FREE, "github-matrix", "can hold 256 jobs, and the set has 257"),
    (
        [job("a", env=("GITHUB_X",))],
        FREE,
        "github-matrix",
        "github-matrix cannot pass on a variable GITHUB_X",
    ),
    ([job("a", env=("RALPH_X",))], FREE, "kubernetes", "kubernetes cannot pass on a variable RALPH_X"),
]


@every_row(("jobs", "limits", "name", "says"), REFUSED)
def test_a_guard_that_a_scheduler_cannot_keep_is_refused(jobs, limits, name, says) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        export(jobs, limits, name, "night")


@every_row(
    ("limits", "jobs"),
    [
        (SetLimits(per_host=2), TWO_HOSTS),
        (SetLimits(per_host=1, concurrency=1), TWO_HOSTS),
    ],
)
def test_a_limit_that_other_limits_keep_is_not_refused(limits, jobs) -> None:
    for name in FORMATS:
        assert export(jobs, limits, name, "night")


# The format, the limits, and the line that keeps them.
KEPT = [
    ("parallel", SetLimits(concurrency=3, rate=Rate(50, 60.0)), "options='--jobs 3 --delay 1.2'"),
    ("parallel", SetLimits(rate=Rate(13, 60.0)), "options='--delay 4.616'"),
    ("parallel", SetLimits(rate=Rate(13, 60.0)), "delay_s=4.616"),
    ("parallel", SetLimits(max_attempts=7), "RALPH_ATTEMPTS=7"),
    ("slurm", SetLimits(concurrency=3), "#SBATCH --array=0-1%3"),
    ("slurm", FREE, "#SBATCH --array=0-1"),
    ("slurm", FREE, "#SBATCH --time=105"),
    ("kubernetes", SetLimits(concurrency=1), "  parallelism: 1"),
    ("kubernetes", FREE, "  completions: 2"),
    ("kubernetes", SetLimits(max_attempts=7), "  backoffLimitPerIndex: 6"),
    ("kubernetes", FREE, "      activeDeadlineSeconds: 6300"),
    ("github-matrix", SetLimits(concurrency=3), "      max-parallel: 3"),
    ("github-matrix", FREE, "      fail-fast: false"),
    ("github-matrix", SetLimits(max_attempts=7), "          RALPH_ATTEMPTS: 7"),
]


@every_row(("name", "limits", "line"), KEPT)
def test_a_limit_is_a_line_of_the_file(name: str, limits: SetLimits, line: str) -> None:
    jobs = [job("a", max_time="20m"), job("b", max_time="1h30m")]
    assert line in export(jobs, limits, name, "night").splitlines()


def test_a_job_without_a_time_limit_gets_none_from_the_scheduler() -> None:
    jobs = [job("a", max_time="20m"), job("b")]
    assert "--time" not in export(jobs, FREE, "slurm", "night").partition("set_name=")[0]
    assert "activeDeadlineSeconds" not in export(jobs, FREE, "kubernetes", "night")
    found = re.findall(r'"minutes": (\d+)', export(jobs, FREE, "github-matrix", "night"))
    assert found == ["55", "360"], "20, and 4 waits of 5, and 15; and the most that GitHub allows"


def test_a_job_with_a_higher_priority_comes_first() -> None:
    jobs = [job("late", priority=-1), job("a"), job("b"), job("soon", priority=9)]
    assert "ids='soon a b late'\n" in export(jobs, FREE, "parallel", "night")


def test_only_the_jobs_that_need_a_variable_get_its_secret_from_github() -> None:
    written = export([job("a", env=("X_TOKEN",)), job("b")], FREE, "github-matrix", "night")
    assert (
        "          'X_TOKEN': ${{ contains(matrix.needs, ',X_TOKEN,') && secrets.X_TOKEN || '' }}" in written
    )
    assert re.findall(r'"needs": "([^"]*)"', written) == [",X_TOKEN,", ",,"]


def test_a_job_gets_the_key_of_the_vendor_that_its_model_names() -> None:
    jobs = [job("a", model="gpt-6-sol", env=("X_TOKEN",)), job("b", model="opus")]
    jobs.append(job("c", model="gpt-6-sol", base_url="http://gateway.test"))
    written = export(jobs, FREE, "github-matrix", "night")
    assert re.findall(r'"needs": "([^"]*)"', written) == [",X_TOKEN,OPENAI_API_KEY,", ",,", ",,"]
    assert "secrets.OPENAI_API_KEY || ''" in written
    assert 'key: "OPENAI_API_KEY"' in export(jobs, FREE, "kubernetes", "night")


def test_nothing_of_a_prompt_is_in_a_file_as_text() -> None:
    for name in FORMATS:
        written = export([job("a"), job("b")], FREE, name, "night")
        assert "pwned" not in written
        assert written.isascii()
        assert b64encode(content_of(job("b"))).decode() in written.replace("\n", "")


def test_no_expression_of_github_is_in_the_script() -> None:
    assert "${{" not in ONE_JOB + AGAIN + GITHUB


@pytest.mark.parametrize("name", FORMATS)
def test_no_text_of_a_script_calls_git(name: str) -> None:
    """Comments and the texts of messages may name it."""
    written = export([job("a"), job("b")], FREE, name, "night")
    lines = [line.partition(" # ")[0] for line in written.splitlines() if not line.lstrip().startswith("#")]
    assert [line for line in lines if re.search(r"\bgit\b(?!hub)", line, re.IGNORECASE)] == []
    assert len(re.findall(r"ralph fleet job --set", written)) == 1


def test_the_scripts_are_posix_shell(tmp_path: Path) -> None:
    for text in (ONE_JOB, AGAIN, PARALLEL, SLURM, KUBERNETES, GITHUB):
        (tmp_path / "x.sh").write_text(text)
        for shell in ("dash", "bash"):
            subprocess.run([shell, "-n", "x.sh"], cwd=tmp_path, check=True)


def test_a_large_set_is_divided_over_config_maps() -> None:
    written = export([job(f"j{n}", prompt="x" * 200_000) for n in range(5)], FREE, "kubernetes", "A_Night.x")
    names = re.findall(r"^kind: ConfigMap\nmetadata:\n  name: (.*)$", written, re.MULTILINE)
    assert names == ["ralph-a-night-x-0", "ralph-a-night-x-1", "ralph-a-night-x-2"]
    sources = ", ".join(f"{{configMap: {{name: {name}}}}}" for name in names)
    assert f"            sources: [{sources}]\n" in written
    assert len(re.findall(r'^  "\d": ', written, re.MULTILINE)) == 5


@every_row(
    ("ended", "restarts", "code", "is_requeued"),
    [
        (75, None, 75, True),
        (75, 1, 75, True),
        (75, 2, 1, False),
        (75, 7, 1, False),  # the nodes of the job failed too
        (0, 2, 0, False),
        (4, None, 4, False),
    ],
)
def test_no_attempt_on_slurm_but_the_last_ends_with_75(
    tmp_path_factory, ended: int, restarts: int | None, code: int, is_requeued: bool
) -> None:
    place = tmp_path_factory.mktemp("place")
    exported = place / "night.sh"
    exported.write_text(export([job("a")], SetLimits(max_attempts=3), "slurm", "night"))
    for name, does in {"ralph": f"exit {ended}", "scontrol": f"echo $* >>{place}/said", "sleep": ""}.items():
        script(place / name, does)
    environment = {
        "PATH": f"{place}:{os.environ['PATH']}",
        "RALPH_JOBS_DIR": str(place / "jobs"),
        "SLURM_ARRAY_JOB_ID": "5",
        "SLURM_ARRAY_TASK_ID": "0",
        **({} if restarts is None else {"SLURM_RESTART_COUNT": str(restarts)}),
    }
    ran = subprocess.run(["/bin/sh", exported], env=environment, capture_output=True, check=False)
    assert ran.returncode == code
    said = place / "said"
    assert (said.read_text() if said.exists() else "") == ("requeue 5_0\n" if is_requeued else "")


@pytest.mark.parametrize("scheduler", ["parallel", "slurm"])
def test_commands_may_write_a_job_in_its_usual_place(tmp_path: Path, scheduler: str) -> None:
    """The sandbox closes what lies beside ralph's state and looks like a copy of it."""
    (tmp_path / ".local/state/ralph").mkdir(parents=True)
    script = export([job("a")], SetLimits(), scheduler, "night").splitlines()
    [line] = [one for one in script if "RALPH_JOBS_DIR:-" in one]
    environment = {"HOME": str(tmp_path)}
    words = ["/bin/sh", "-c", f'{line}; printf %s "$RALPH_JOBS_DIR"']
    place = subprocess.run(words, env=environment, capture_output=True, check=True, text=True).stdout
    checkout = Path(place, "night/a/checkout")
    checkout.mkdir(parents=True)
    assert why_protected(str(checkout / "new"), [checkout], environment) is None
