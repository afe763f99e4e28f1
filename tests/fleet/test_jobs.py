"""The rules for jobs, their stored form, and the key that a job needs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ralph.fleet.job_process import fingerprint, why_not_here
from ralph.fleet.jobs import (
    Job,
    Rate,
    SetLimits,
    UnknownFormatError,
    content_of,
    job_from,
    rate_from,
    session_id,
    why_no_ref_name,
)
from ralph.fleet.worker import DRAIN_S
from ralph.values.screen_text import time_limit
from tests.rows import every_row

NAMES = [
    *("a", "a/b", "a.b", "a-", "@a", "a@", "a@b", "{a", "ä", "a'b", 'a"b', "a$b", "a;b", "refs/heads/a"),
    *(
        "",
        "-a",
        "/a",
        "a/",
        "a//b",
        ".a",
        "a/.b",
        "a.",
        "a..b",
        "a.lock",
        "a.lock/b",
        "a@{b",
        "a b",
        "a\tb",
    ),
    *("a~b", "a^b", "a:b", "a?b", "a*b", "a[b", "a\\b", "a\x7fb", "a\nb", "a./b", "a]b", "a.locks"),
]


@every_row("name", NAMES)
def test_a_name_is_refused_where_git_refuses_it(name: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        ["git", "check-ref-format", "--branch", name], cwd=tmp_path, capture_output=True, check=False
    )
    assert (why_no_ref_name(name) is None) == (ran.returncode == 0)


def test_rates_are_read_in_three_units() -> None:
    assert [rate_from(text) for text in ("5/s", "50/min", " 200/h ")] == [
        *(Rate(5, 1.0), Rate(50, 60.0), Rate(200, 3600.0)),
    ]


@every_row("text", ["", "50", "0/s", "-1/s", "5/day", "5/m", "1.5/s", "\u0665/s", "5 / s", "1" * 10 + "/s"])
def test_another_text_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be a rate such as 5/s, 50/min or 200/h, not "):
        rate_from(text)


def test_the_help_names_the_defaults() -> None:
    """The help is shown without the fleet's modules, so it repeats them; `tests/test_docs.py` compares the man page with it."""
    page = (Path(__file__).parents[2] / "docs/ralph.1").read_text()
    assert f"Try each job at most this many times. Default: {SetLimits().max_attempts}.\n" in page
    assert f"checkpoint. Default: {time_limit(DRAIN_S)}.\n" in page


# --- The stored form, which is the same everywhere

JOB = Job(id="a", repository="/srv/a", prompt='Ünï "x"\n\u2028', max_budget_usd=2.5, env=("X",), after=("b",))


def test_a_job_is_read_as_it_was_stored() -> None:
    """The bytes are promised: another ralph compares them."""
    assert content_of(JOB) == (
        '{"after":["b"],"env":["X"],"format":1,"id":"a","max_budget_usd":2.5,'
        '"prompt":"Ünï \\"x\\"\\n\u2028","repository":"/srv/a"}'.encode()
    )
    assert job_from(content_of(JOB)) == JOB


@every_row(
    ("content", "says"),
    [
        (b'{"format":2,"id":"a"}', "has format 2, and this ralph reads format 1"),
        (b'{"format":true,"id":"a"}', "has format True"),
        (b'{"id":"a"}', "has format None"),
        (b"[]", "is not a JSON object"),
        (b"\xff", "is not a JSON object"),
        (b'{"format":1,"id":"a","repository":"/x","prompt":"x","new":1}', "does not fit format 1"),
        (b'{"format":1,"id":"../a","repository":"/x","prompt":"x"}', "cannot be done: id must have"),
        (
            b'{"format":1,"id":"a","repository":"ext::x","prompt":"x"}',
            "cannot be done: repository names a transport",
        ),
    ],
)
def test_another_format_is_refused_and_not_guessed(content: bytes, says: str) -> None:
    with pytest.raises(UnknownFormatError, match=says):
        job_from(content)


def test_a_session_belongs_to_one_job_of_one_set() -> None:
    """The id is promised: a worker of another version continues the session."""
    assert session_id("night", "a") == "12775cda-f071-56b8-bb9c-4c32c25ace2a"
    assert len({session_id("night", "a"), session_id("night", "b"), session_id("day", "a")}) == 3


# --- The key

KEYS = {"ANTHROPIC_API_KEY": "sk-ant-0123456789", "OPENAI_API_KEY": "sk-proj-0123456789"}


@every_row(
    ("model", "variable"),
    [
        (None, "ANTHROPIC_API_KEY"),
        ("opus", "ANTHROPIC_API_KEY"),
        ("gpt-6-sol", "OPENAI_API_KEY"),
    ],
)
def test_a_job_begins_where_the_key_of_its_models_vendor_is_and_that_key_counts(
    tmp_path: Path, model: str | None, variable: str
) -> None:
    job = Job(id="j", repository="r", prompt="p", model=model)
    home = {"HOME": str(tmp_path)}
    assert why_not_here(job, {**home, variable: KEYS[variable]}, tmp_path) is None
    others = {name: key for name, key in KEYS.items() if name != variable}
    assert f"set {variable}" in (why_not_here(job, {**home, **others}, tmp_path) or "")
    assert fingerprint(KEYS, None, model) == fingerprint({variable: KEYS[variable]}, None, model)
    assert fingerprint(KEYS, None, model) != fingerprint({**KEYS, variable: "another"}, None, model)
