"""A set is written for another scheduler, or refused if the scheduler would lose one of its guards."""

from __future__ import annotations

import os
import re
import subprocess
from base64 import b64encode
from typing import TYPE_CHECKING

import pytest

from ralph.fleet.export import FORMATS, definition, export
from ralph.fleet.export_script import AGAIN, GITHUB, KUBERNETES, ONE_JOB, PARALLEL, SLURM
from ralph.fleet.job_content import session_id
from ralph.fleet.job_rules import words_of
from ralph.fleet.jobs import Rate, SetLimits
from ralph.git.settings import ALWAYS
from ralph.values.outcome import UsageError
from tests.fleet.hostile import job
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

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
        "slurm cannot keep rate (rate: set concurrency); --without-limit",
    ),
    ([job("a")], SetLimits(rate=Rate(1, 1.0)), "kubernetes", "cannot keep rate"),
    ([job("a")], SetLimits(rate=Rate(1, 1.0)), "github-matrix", "cannot keep rate"),
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
    ([job("a"), job("b", after=("a",))], FREE, "kubernetes", "cannot express the `after`"),
    ([job("a"), job("b", after=("a",))], FREE, "github-matrix", "cannot express the `after`"),
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
    ([job("a")], FREE, "nomad", "'nomad' is no format: github-matrix, kubernetes, slurm, parallel"),
    ([], FREE, "slurm", "there are no jobs"),
]


@every_row(("jobs", "limits", "name", "says"), REFUSED)
def test_a_guard_that_a_scheduler_cannot_keep_is_refused(jobs, limits, name, says) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        export(jobs, limits, name, "night")


def test_a_limit_can_be_given_up_by_its_name() -> None:
    limits = SetLimits(max_budget_usd=3, rate=Rate(1, 1.0), max_attempts=2)
    with pytest.raises(UsageError, match="slurm cannot keep rate "):
        export([job("a")], limits, "slurm", "night", {"max_budget_usd"})
    written = export([job("a")], limits, "slurm", "night", {"max_budget_usd", "rate", "max_attempts"})
    assert "RALPH_ATTEMPTS=2\n" in written
    with pytest.raises(UsageError, match="'budget' is no limit of a set: concurrency"):
        export([job("a")], FREE, "slurm", "night", {"budget"})


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


def test_nothing_of_a_prompt_stands_in_a_file_as_text() -> None:
    for name in FORMATS:
        written = export([job("a"), job("b")], FREE, name, "night")
        assert "pwned" not in written
        assert written.isascii()
        assert b64encode(definition(job("b"), "night").encode()).decode() in written.replace("\n", "")


def test_no_expression_of_github_stands_in_the_script() -> None:
    assert "${{" not in ONE_JOB + AGAIN + GITHUB


def test_a_definition_gives_the_shell_what_the_job_says(tmp_path: Path) -> None:
    """`dash` and `bash` read it alike."""
    one = job(
        "a", ref="v1", env=("A", "B"), model="it's", until="make 'x'\n", options=("--name", "$(touch pwned)")
    )
    (tmp_path / "job.sh").write_text(definition(one, "night"))
    script = '. ./job.sh; job_prompt >prompt; job_words printf "%s\\0" first >words; '
    script += 'printf "%s\\0" "$id" "$ref" "$branch" "$session" "$kind" "$needed" >values'
    for shell in ("dash", "bash"):
        subprocess.run([shell, "-c", script], cwd=tmp_path, check=True)
        assert (tmp_path / "prompt").read_bytes().decode() == one.prompt
        words = (tmp_path / "words").read_bytes().decode().split("\0")[:-1]
        said = ["--until=make 'x'\n", "--model=it's", "--pass-env=A,B", "--name", "$(touch pwned)"]
        assert words == ["first", *said]
        assert words_of(one) == said
        values = (tmp_path / "values").read_bytes().decode().split("\0")[:-1]
        assert values == ["a", "v1", "ralph/a", session_id("night", "a"), "loop", "A B"]
    assert not (tmp_path / "pwned").exists()


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


# The cost of the session so far, as `ralph sessions ls` says it, and the words of the second attempt.
LEFT = [
    ("1.25", ["--resume=SESSION", "--max-budget-usd=2.750000"]),
    ("4.0", None),
    ("null", None),
]


@every_row(("cost", "words"), LEFT)
def test_a_further_attempt_gets_what_is_left_of_the_budget(
    cost: str, words: list[str] | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A ralph of three lines stands in, whose first run ends with 75."""
    place = tmp_path_factory.mktemp("budget")
    ralph = place / "ralph"
    ralph.write_text(
        f"""#!/bin/sh
if [ "$1" = sessions ]; then printf '[{{"title": "x, \\"cost_usd\\": 0", "cost_usd": {cost}, "path": "/"}}]'; exit; fi
printf '%s\\n' "$@" >>{place}/words
mkdir -p "$RALPH_STATE_DIR/sessions/x" && echo >"$RALPH_STATE_DIR/sessions/x/{session_id("night", "a")}.jsonl"
exit 75
"""
    )
    ralph.chmod(0o755)
    one = job("a", str(place / "repository"), max_budget_usd=4)
    (place / "job.sh").write_text(definition(one, "night"))
    (place / "run.sh").write_text(ONE_JOB + 'ralph_job "$1"\n')
    who = ("-c", "user.name=x", "-c", "user.email=x")
    for command in (("init", "-q", "."), (*who, "commit", "-q", "--allow-empty", "-m", "Begin")):
        (place / "repository").mkdir(exist_ok=True)
        subprocess.run(["git", *command], cwd=place / "repository", check=True)
    environment = {
        "PATH": f"{place}:{os.environ['PATH']}",
        "HOME": str(place),
        "RALPH_JOBS_DIR": str(place / "jobs"),
    }
    codes = [
        subprocess.run(["sh", "run.sh", place / "job.sh"], cwd=place, env=environment, check=False).returncode
        for _ in range(2)
    ]
    checkout = f"--cd={place}/jobs/night/a/checkout"
    prompt = f"--prompt-file={place}/jobs/night/a/prompt.md"
    first = ["run", checkout, f"--session-id={session_id('night', 'a')}", prompt, "--max-budget-usd=4.000000"]
    second = [] if words is None else ["run", checkout, *words]
    said = (
        (place / "words")
        .read_text()
        .replace(f"resume={session_id('night', 'a')}", "resume=SESSION")
        .splitlines()
    )
    assert said == [*first, *second]
    assert codes == [75, 3 if words is None else 75]


def test_the_git_of_a_script_has_the_options_of_every_call_of_ralph() -> None:
    assert f"git {' '.join(ALWAYS)} " in ONE_JOB
    assert "core.hooksPath=/dev/null" in ALWAYS
