"""The content of a fleet's report: order, sums, attempts, commands, and what is left out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ralph.fleet.jobs import JobState
from ralph.pages.content import size_in_html
from ralph.pages.fleet_page import fleet_html_of, headline_of_fleet, totals_of_sets
from tests.pages.fleet_rows import (
    BEGAN_S,
    NOW_S,
    attempt_row,
    job_row,
    night_of,
    set_row,
)


def test_the_worst_jobs_come_first_in_the_order_of_the_exit_codes() -> None:
    ended = [
        job_row(f"e{code}", JobState.DONE, code) for code in (0, 143, 75, 124, 3, 1, 4, 2, 69, 78, 77, 74, 70)
    ]
    others = [
        job_row("waits", JobState.WAITING),
        job_row("queued", JobState.QUEUED),
        job_row("runs", JobState.RUNNING),
        job_row("stops", JobState.RUNNING, is_cancelled=True),
        job_row("gone", JobState.CANCELLED, 143),
        job_row("blocked", JobState.BLOCKED, 70),
    ]
    content = night_of([set_row()], [*ended, *others], [])
    failed = [f"e{code}" for code in (70, 74, 77, 78, 69, 2, 4, 1, 3, 124, 75, 143)]
    assert [job.id for job in content.jobs] == [
        *failed,
        *("blocked", "gone", "stops", "runs", "queued", "waits", "e0"),
    ]
    verdicts = [job.verdict for job in content.jobs]
    assert verdicts == ["bad"] * 14 + ["open"] * 4 + ["good"]
    assert [one.exit_code for one in content.exits] == [70, 74, 77, 78, 69, 2, 4, 1, 3, 124, 75, 143]
    (one,) = content.sets
    assert one.exit_code == 70
    assert [*one.states] == [
        *(("failed", 12), ("blocked", 1), ("cancelled", 1), ("cancelling", 1), ("running", 1)),
        *(("queued", 1), ("waiting", 1), ("done", 1)),
    ]


def test_sums_are_those_of_all_jobs_and_the_budget_is_known_only_if_each_set_has_one() -> None:
    content = night_of()
    totals = totals_of_sets(content)
    assert totals.headline == "2 failed, 1 blocked, 1 cancelled, 3 open of 10 jobs"
    assert (totals.verdict, (totals.jobs, totals.done, totals.turns)) == ("bad", (10, 3, 137))
    assert totals.cost_usd == pytest.approx(10.875)
    assert totals.reserved_usd == 1.5
    assert totals.budget_usd == 25.0
    assert (totals.began_s, totals.ended_s) == (BEGAN_S, NOW_S)
    assert headline_of_fleet(content).endswith("of 10 jobs; the worst: exit 74, Disk or git failed")
    without = night_of([set_row(max_budget_usd=20.0), set_row("nightly")])
    assert totals_of_sets(without).budget_usd is None
    good = totals_of_sets(night_of([set_row()], [job_row("a")], []))
    assert (good.headline, good.verdict) == ("All done: 1 job", "good")


def test_a_job_names_its_machines_and_a_set_the_commands_that_continue() -> None:
    content = night_of()
    billing = next(job for job in content.jobs if job.id == "billing")
    assert (billing.attempts, billing.machines) == (2, "west, east")
    assert content.sets[0].commands == (
        "ralph fleet retry --failed --set upgrade",
        "ralph fleet work upgrade",
    )
    odd = night_of([set_row("a $(b)")], [job_row("a $(b)/x", JobState.DONE, 1)], [])
    assert odd.sets[0].commands == ("ralph fleet retry --failed --set 'a $(b)'",)
    assert night_of([set_row("--x")], [job_row("--x/x", JobState.DONE, 1)], []).sets[0].commands == ()


def test_known_credentials_are_not_on_the_page() -> None:
    row = job_row(
        *("a", JobState.DONE, 1),
        reason="no: sk-secret-1234",
        result="sk-secret-1234",
        prompt="sk-secret-1234",
    )
    page = fleet_html_of(night_of([set_row()], [row], [], secrets=["sk-secret-1234"]))
    assert b"sk-secret" not in page
    assert b"[redacted" in page.lower()


def test_ten_thousand_jobs_have_a_row_each_the_failed_ones_first() -> None:
    text = "<\u202e&\"'>" * 400
    failed = [
        job_row(f"bad{at}", JobState.DONE, 1, reason=text, result=text, prompt=text) for at in range(400)
    ]
    row = job_row("job", result=text)
    done = [replace(row, id=f"job{at}") for at in range(9_600)]
    attempts = [
        attempt_row(row.id, 1, f"m{at % 50}-{at}", (at % 300, at % 300 + 2), 0)
        for at, row in enumerate([*failed, *done])
    ]
    content = night_of([set_row()], [*done, *failed], attempts)
    page = fleet_html_of(content)
    assert len(page) < 10_000_000
    assert all(job.state == "failed" for job in content.jobs[:400])
    assert (len(content.jobs), page.count(b'<tr><td><span class="badge')) == (10_000, 10_000)


def test_rows_that_have_no_room_are_counted() -> None:
    text = "'" * 160
    row = job_row("j", JobState.DONE, 1, reason=text)
    jobs = [replace(row, id=f"j{at}") for at in range(5_000)]
    content = night_of([set_row()], jobs, [])
    left = 5_000 - len(content.jobs)
    assert 0 < left < 5_000
    assert f"{left} more jobs, all of them failed or better: ralph fleet ls SET" in content.left_out
    assert sum(size_in_html(job.reason) for job in content.jobs) < 3_600_000
    assert content.sets[0].jobs == 5_000
