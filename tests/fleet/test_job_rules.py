"""Names of refs are judged as git judges them, and rates are read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ralph.fleet.jobs import Rate, SetLimits, rate_from, why_no_ref_name
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
