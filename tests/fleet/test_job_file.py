"""Jobs are read from a file, and every wrong line is named with its place and its reason."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from ralph.cli.fleet import check_job_options
from ralph.fleet.job_file import JobsFile, read_jobs
from ralph.fleet.jobs import Job, Rate, SetLimits
from ralph.prompt.prompt_input import MOST_PROMPT_BYTES
from ralph.values.outcome import UsageError
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

GOOD: dict[str, Any] = {"id": "a", "repository": "https://git.example/a.git", "prompt": "Do it."}
KEY = "sk-canary-0123456789abcdef"


def read(path: Path, **given: Any) -> JobsFile:
    checks = {"environment": {}, "check_options": check_job_options, **given}
    return read_jobs(str(path), None, **checks)


def problem(path: Path, content: str | bytes, **given: Any) -> str:
    """The complaint about a file of this content, without the name of the file."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        read(path, **given)
    return str(caught.value).removeprefix(f"{path}:")


def test_lines_with_a_byte_order_mark_and_empty_lines_are_jobs(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    other = {
        "id": "b",
        "repository": "/srv/b",
        "prompt": "A line\u2028and another",
        "after": ["a"],
        "max_budget_usd": 2,
    }
    path.write_bytes(f"\ufeff{json.dumps(GOOD)}\r\n\n  \n{json.dumps(other, ensure_ascii=False)}".encode())
    found = read(path)
    assert found.name == "sweep"
    assert read(path.rename(tmp_path / "a sweep.jsonl")).name == "jobs", "it is no name"
    assert found.limits == SetLimits()
    first, second = found.jobs
    assert first == Job(**GOOD)
    assert second == Job(
        id="b", repository="/srv/b", prompt="A line\u2028and another", after=("a",), max_budget_usd=2
    )


def test_a_toml_file_has_limits(tmp_path: Path) -> None:
    path = tmp_path / "night.toml"
    path.write_text(
        """
[set]
concurrency = 4
rate = "50/min"
max_budget_usd = 20
[[jobs]]
id = "one"
prompt = "Do it."
repository = "../here/repo"
env = ["NPM_TOKEN"]
[[jobs]]
id = "two"
repository = "../here/repo"
prompt_file = "two.md"
until = "make test"
options = ["--commit", "--effort", "low"]
"""
    )
    (tmp_path / "two.md").write_text("Its own.\n")
    found = read(path)
    assert found.limits == SetLimits(concurrency=4, rate=Rate(50, 60.0), max_budget_usd=20)
    one, two = found.jobs
    assert (one.prompt, two.prompt) == ("Do it.", "Its own.\n")
    assert one.repository == two.repository == str(tmp_path.parent / "here" / "repo")
    assert one.env == ("NPM_TOKEN",)


def changed(**values: object) -> dict[str, object]:
    return {**GOOD, **values}


def lacking(name: str) -> dict[str, object]:
    return {key: value for key, value in GOOD.items() if key != name}


# A job, and what the error says behind the file's name and the line.
REFUSED: list[tuple[object, str]] = [
    (changed(max_turns="ten"), "$.max_turns: expected int | null, got str"),
    (changed(max_turns=True), "$.max_turns: expected int | null, got bool"),
    (changed(env=["A", 7]), "$.env[1]: expected str, got int"),
    (changed(modell="x"), "object contains unknown field modell"),
    (changed(sandbox="on"), "$.sandbox: invalid enum value 'on'"),
    (lacking("id"), "object missing required field id"),
    (lacking("repository"), "object missing required field repository"),
    (lacking("prompt"), "$.prompt: give either prompt or"),
    (changed(prompt_file="x"), "$.prompt: give either prompt or"),
    (7, "expected object, got int"),
    (changed(id="-a"), "$.id: must have 1 to 64"),
    (changed(id="a" * 65), "$.id: must have 1 to 64"),
    (changed(id="a..b"), "$.id: contains .."),
    (changed(id="a.lock"), "$.id: has a part that"),
    (changed(id="a\n"), "$.id: must have 1 to 64"),
    (changed(repository=" "), "$.repository: is empty"),
    (changed(repository="--upload-pack=x"), "$.repository: begins with -"),
    (changed(repository="ext::sh -c x"), "$.repository: names a transport"),
    (changed(repository="ftp://x/y"), "$.repository: must begin with one of"),
    (changed(repository="https:///y"), "$.repository: names no host"),
    (changed(repository="ssh://-oProxyCommand=x/y"), "$.repository: names a host that begins with -"),
    (changed(repository="-x@host:y"), "$.repository: begins with -"),
    (changed(repository="u@-host:y"), "$.repository: names a host that begins with -"),
    (changed(repository="~/x"), "$.repository: begins with ~"),
    (changed(repository="https://u:p@git.example/a"), "$.repository: holds a credential"),
    (changed(repository="https://" + "t" * 21 + "@git.example/a"), "$.repository: holds a credential"),
    (changed(repository="u:p@git.example/a"), "$.repository: holds a credential"),
    (changed(repository="https://git.example/a?private_token=x"), "$.repository: has a query"),
    (changed(ref="a b"), "$.ref: contains ' '"),
    (changed(ref="@"), "$.ref: is @, which means HEAD"),
    (changed(until=" "), "$.until: is empty"),
    (changed(until="a\0b"), "$.until: contains NUL"),
    (changed(prompt=" \n"), "$.prompt: is empty"),
    (changed(prompt="x" * (MOST_PROMPT_BYTES + 1)), "$.prompt: has more than"),
    (changed(until="x" * 70_000), "$.until: has more than"),
    (changed(max_iterations=3), "$.max_iterations: needs until"),
    (changed(max_turns=0), "$.max_turns: must be a whole number from 1"),
    (changed(max_turns=10**30), "$.max_turns: must be a whole number from 1"),
    (changed(max_budget_usd=0), "$.max_budget_usd: must be a number of dollars"),
    (changed(priority=10**7), "$.priority: must be a whole number from -1,000,000"),
    (changed(max_time="soon"), "$.max_time: must be a time such as"),
    (changed(sandbox="none"), "$.sandbox: invalid enum value 'none'"),
    (changed(base_url="https://u:p@x"), "$.base_url: must not contain a user"),
    (changed(model="\x1b[2J"), "$.model: must be a text of printable"),
    (
        changed(env=["TOKEN=abc"]),
        "$.env: must contain names of variables, without values; entry 1 is not one",
    ),
    (changed(env=["PGPASSWORD"]), "$.env: names PGPASSWORD, which belongs to the fleet"),
    (changed(env=["RALPH_FLEET_DB"]), "$.env: names RALPH_FLEET_DB"),
    (changed(after=["b"]), "$.after: names 'b', which is not a job of this set"),
    (changed(after=["a"]), "$.after: forms a cycle: a -> a"),
    (changed(options=["--no-such"]), "$.options: cannot be used: No such option: --no-such"),
    (changed(options=["--effort", "heroic"]), "$.options: cannot be used: Invalid value for '--effort'"),
    (changed(options=["--max-tokens", "0"]), "$.options: cannot be used: --max-tokens must be"),
    (changed(options=["--effort"]), "$.options: cannot be used: Option '--effort' requires"),
    (changed(options=["a task"]), "$.options: cannot be used: PROMPT is the job's field prompt"),
    (changed(options=["--"]), "$.options: cannot be used: -- ends the options"),
    (changed(options=["--help"]), "$.options: cannot be used: No such option: --help"),
    (changed(options=["--model=x"]), "$.options: cannot be used: --model is the job's field model"),
    (changed(options=["-qc"]), "$.options: cannot be used: --continue cannot be set for a job"),
    (changed(options=["--until", "x"]), "$.options: cannot be used: --until is an option of `ralph loop`"),
    (changed(until="x", options=["--push"]), "$.options: cannot be used: --push cannot be set for a job"),
    (changed(until="x", options=["--until-timeout=x"]), "$.options: cannot be used: --until-timeout must be"),
    *(
        (
            changed(options=[f"{option}=0a1b2c3d-0000-4000-8000-000000000000"]),
            f"$.options: cannot be used: {option} cannot be set for a job",
        )
        for option in ("--resume", "--session-id", "--session-dir", "--result-file", "--cd")
    ),
    (changed(options=["--iteration=3"]), "$.options: cannot be used: --iteration cannot be set for a job"),
    (
        changed(options=["--output-format=json"]),
        "$.options: cannot be used: --output-format cannot be set for a job",
    ),
    (
        changed(options=["--max-budget-usd=3"]),
        "$.options: cannot be used: --max-budget-usd is the job's field",
    ),
    (changed(options=["--prompt-file=x"]), "$.options: cannot be used: --prompt-file is the job's field"),
    (changed(prompt=f"Use {KEY}"), "$.prompt: contains the value of MY_TOKEN, and jobs are stored"),
    (changed(options=["--append-system-prompt", KEY]), "$.options: contains the value of MY_TOKEN"),
    (
        changed(prompt=base64.b64encode(KEY.encode()).decode()),
        "$.prompt: contains the value of MY_TOKEN",
    ),
]


@every_row(("job", "says"), REFUSED)
def test_a_wrong_job_is_refused_with_its_line_and_field(job: object, says: str, tmp_path: Path) -> None:
    environment = {"MY_TOKEN": KEY, "OTHER_TOKEN": "another-0123456789", "USER": "me"}
    found = problem(tmp_path / "x.jsonl", f"\n{json.dumps(job)}\n", environment=environment)
    assert found.startswith(f"2: {says}")
    assert KEY not in found
    assert "OTHER_TOKEN" not in found


# The whole content of a file, and what the error says behind the file's name.
FILES: list[tuple[str, str | bytes, str]] = [
    ("x.jsonl", "", " has no jobs"),
    ("x.jsonl", '{"id": "a",}', "1: is not JSON: trailing comma in object"),
    ("x.jsonl", '{"id": "a", "prompt": "\\ud800"}', "1: is not JSON"),
    ("x.jsonl", '{"id": NaN}', "1: is not JSON"),
    ("x.jsonl", "[" * 100_000, "1: is nested too deep"),
    ("x.jsonl", b'{"id": "\xff"}', " is not UTF-8 text: byte 9"),
    ("x.jsonl", "\ufeff{}".encode("utf-16"), " is not UTF-8 text"),
    ("x.toml", "[[jobs]]\nid = \n", " is not TOML: Invalid value (at line 2"),
    ("x.toml", "jobs = 3\n", " $.jobs: expected array, got int"),
    (
        "x.toml",
        "[sets]\n[[jobs]]\nid='a'\nprompt='x'\nrepository='/x'\n",
        " object contains unknown field sets",
    ),
    (
        "x.toml",
        "[set]\nrate='50'\n[[jobs]]\nid='a'\nprompt='x'\nrepository='/x'\n",
        " $.set.rate: must be a rate",
    ),
    (
        "x.toml",
        "[set]\nper_host=0\n[[jobs]]\nid='a'\nprompt='x'\nrepository='/x'\n",
        " $.set.per_host: must be",
    ),
    (
        "x.toml",
        "[set]\nslots=1\n[[jobs]]\nid='a'\nprompt='x'\nrepository='/x'\n",
        " $.set: object contains unknown field slots",
    ),
    (
        "x.toml",
        "[[jobs]]\nid='a'\nprompt='x'\nrepository='/x'\n\n[[jobs]]\nid=7\n",
        " job 2: $.id: expected str, got int",
    ),
]


@every_row(("name", "content", "says"), FILES)
def test_a_wrong_file_is_refused_with_its_place(
    name: str, content: str | bytes, says: str, tmp_path: Path
) -> None:
    assert problem(tmp_path / name, content).startswith(says)


def lines(*jobs: Mapping[str, object]) -> str:
    return "".join(f"{json.dumps(changed(**job))}\n" for job in jobs)


# Jobs, and what the error says behind the file's name.
SETS: list[tuple[str, str]] = [
    (lines({"id": "a"}, {"id": "b"}, {"id": "a"}), "3: $.id: a is the id of job 1 too"),
    (
        lines(
            {"id": "a", "after": ["c"]},
            {"id": "b", "after": ["a"]},
            {"id": "c", "after": ["b"]},
            {"id": "d", "after": ["c"]},
        ),
        "1: $.after: forms a cycle: a -> c -> b -> a",
    ),
]


@every_row(("content", "says"), SETS)
def test_jobs_that_contradict_each_other_are_refused(content: str, says: str, tmp_path: Path) -> None:
    assert problem(tmp_path / "x.jsonl", content) == says


def test_a_chain_of_any_length_is_no_circle_and_an_earlier_job_may_be_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    # More jobs than Python nests calls.
    path.write_text(lines(*({"id": f"j{n}", "after": [f"j{n + 1}"]} for n in range(1200))))
    assert len(read(path, earlier=lambda _name: {"j1200"}).jobs) == 1200


@every_row(
    ("name", "make", "says"),
    [
        ("none.md", lambda _path: None, "cannot be read: none.md: No such file"),
        ("latin.md", lambda path: path.write_bytes(b"\xe9"), "cannot be used: latin.md is not UTF-8 text"),
        ("", lambda _path: None, "cannot be used:  is not a file name"),
        (
            "big.md",
            lambda path: path.write_bytes(b"x" * (MOST_PROMPT_BYTES + 1)),
            "cannot be read: big.md: it has more",
        ),
    ],
)
def test_a_prompt_file_that_cannot_be_used_is_told_with_the_line(
    name: str, make: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    make(tmp_path / name)
    found = problem(tmp_path / "x.jsonl", json.dumps({**lacking("prompt"), "prompt_file": name}))
    assert found.startswith(f"1: $.prompt_file: {says}")


def test_ordinary_repositories_and_options_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    good = [
        "git@host:a.git",
        "https://alice@host/a",
        "ssh://git@host:22/a",
        "file:///srv/a",
        "http://127.0.0.1:1/a",
    ]
    path.write_text(
        lines(*({"id": f"j{n}", "repository": one} for n, one in enumerate(good)))
        + lines({"id": "x", "options": ["-q", "--tools", "Read", "Bash", "--name", "A title"]})
        + lines(
            {"id": "y", "until": "make", "options": ["--commit", "--tools", "Read", "--until-timeout=5m"]}
        )
    )
    assert [job.repository for job in read(path).jobs][: len(good)] == good
