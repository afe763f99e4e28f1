"""The content of a fleet's report: order, sums, attempts, commands, and what is left out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ralph.fleet.decisions import JobState
from ralph.pages.content import AttemptKind
from ralph.pages.excerpts import size_in_html
from ralph.pages.fleet_story import MOST_DETAILS
from ralph.pages.page import fleet_html_of, headline_of_fleet, totals_of_sets
from tests.pages.fleet_rows import (
    ATTEMPTS,
    BEGAN_S,
    COMMIT,
    NOW_S,
    attempt_row,
    job_row,
    night_of,
    set_row,
)
from tests.rows import every_row


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
    assert [one.exit_code for one in content.exits] == [70, 74, 77, 78, 69, 2, 4, 1, 3, 124, 75, 143]
    (one,) = content.sets
    assert one.exit_code == 70
    assert [(count.state, count.number) for count in one.states] == [
        *(("failed", 12), ("blocked", 1), ("cancelled", 1), ("cancelling", 1), ("running", 1)),
        *(("queued", 1), ("waiting", 1), ("done", 1)),
    ]


def test_sums_are_those_of_all_jobs_and_the_budget_is_known_only_if_each_set_has_one() -> None:
    content = night_of()
    totals = totals_of_sets(content)
    assert totals.headline == "2 failed, 1 blocked, 1 cancelled, 3 open of 10 jobs"
    assert totals.verdict == "bad"
    assert (totals.jobs, totals.done, totals.turns) == (10, 3, 137)
    assert totals.cost_usd == pytest.approx(10.875)
    assert totals.reserved_usd == 1.5
    assert totals.budget_usd == 25.0
    assert (totals.began_s, totals.ended_s) == (BEGAN_S, NOW_S)
    assert (content.attempts, content.lost) == (len(ATTEMPTS), 1)
    assert headline_of_fleet(content).endswith("of 10 jobs; the worst: exit 74, Disk or git failed")
    without = night_of([set_row(max_budget_usd=20.0), set_row("nightly")])
    assert totals_of_sets(without).budget_usd is None
    good = totals_of_sets(night_of([set_row()], [job_row("a")], []))
    assert (good.headline, good.verdict) == ("All done: 1 job", "good")


def test_an_attempt_that_lost_its_worker_ends_where_another_worker_takes_over() -> None:
    content = night_of()
    billing = next(job for job in content.jobs if job.id == "billing")
    assert billing.machines == "west, east"
    assert billing.details is not None
    first, second = billing.details.attempts
    assert (first.kind, second.kind) == (AttemptKind.LOST, AttemptKind.DONE)
    assert (first.has_taken_over, second.has_taken_over) == (False, True)


@every_row(
    ("state", "job_code", "end_minute", "code", "attempts", "kind"),
    [
        (JobState.DONE, 0, 5, 0, 1, AttemptKind.DONE),
        (JobState.DONE, 75, 5, 75, 1, AttemptKind.FAILED),
        (JobState.QUEUED, None, 5, 75, 1, AttemptKind.LATER),
        (JobState.QUEUED, None, 5, 1, 1, AttemptKind.FAILED),
        (JobState.DONE, 0, 5, 143, 2, AttemptKind.LATER),
        (JobState.CANCELLED, 143, 5, 143, 1, AttemptKind.CANCELLED),
        (JobState.RUNNING, None, None, None, 1, AttemptKind.RUNNING),
        (JobState.RUNNING, None, None, None, 2, AttemptKind.LOST),
        (JobState.DONE, 75, None, None, 1, AttemptKind.LOST),
        (JobState.RUNNING, None, 5, None, 1, AttemptKind.LOST),
    ],
)
def test_the_end_of_an_attempt(state, job_code, end_minute, code, attempts, kind) -> None:
    rows = [attempt_row("a", 1, "m-1", (0, end_minute), code)]
    rows += [attempt_row("a", 2, "m-2", (10, 20), 0)] if attempts == 2 else []
    content = night_of([set_row()], [job_row("a", state, job_code)], rows)
    assert content.jobs[0].details is not None
    assert content.jobs[0].details.attempts[0].kind is kind


def test_commands_resume_the_job_and_quote_what_a_shell_would_read() -> None:
    content = night_of()
    commands = {job.id: job.details.commands for job in content.jobs if job.details is not None}
    assert commands["search"] == ("ralph fleet retry upgrade/search", "ralph fleet logs upgrade/search")
    assert commands["docs"] == ("ralph fleet retry upgrade/search",)
    assert commands["export"] == ("ralph fleet logs -f upgrade/export",)
    assert commands["api"][0] == "git fetch git@host.example:shop/ledger.git ralph/api"
    assert not any("git fetch" in one for one in commands["web"])
    unpushed = {job.id: job.details.unpushed for job in content.jobs if job.details is not None}
    assert (unpushed["web"], unpushed["api"]) == (COMMIT, "")
    assert content.sets[0].commands == (
        "ralph fleet retry --failed --set upgrade",
        "ralph fleet work upgrade",
    )

    def fetched(repository: str) -> list[str]:
        row = job_row("a", generation=1, commit="c0ffee", repository=repository)
        details = night_of([set_row()], [row], []).jobs[0].details
        assert details is not None
        return [one for one in details.commands if one.startswith("git")]

    assert fetched("/tmp/$(touch x)") == ["git fetch '/tmp/$(touch x)' ralph/a"]
    assert fetched("--upload-pack=x") == []
    assert fetched("/tmp/\x1b]0;x") == []


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


def test_ten_thousand_jobs_have_a_row_each_and_the_failed_ones_details() -> None:
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
    assert sum(job.details is not None for job in content.jobs) == MOST_DETAILS
    assert all(job.state == "failed" for job in content.jobs[:400])
    assert (
        "the details of 9700 jobs (the first of them is failed): ralph fleet show SET/ID" in content.left_out
    )
    assert len(content.jobs) == 10_000
    assert page.count(b'<tr><td><span class="badge') == 10_000


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
