"""The rows of a fleet's store as they might be in the morning, by hand: two sets, three machines, a lost worker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.fleet.jobs import Job, JobState, SetLimits, content_of, outcome_of
from ralph.fleet.schema import AttemptRow, JobRow, SetRow
from ralph.pages.content import Excerpts
from ralph.pages.fleet_page import FleetStory
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.pages.fleet_page import FleetContent

BEGAN_S = 1_795_476_600.0  # 2026-11-23 21:30 UTC
NOW_S = BEGAN_S + 6 * 3600
MINUTE_S = 60.0


def job_row(
    name: str, state: JobState = JobState.DONE, exit_code: int | None = None, **fields: Any
) -> JobRow:
    """A job of the set `upgrade`, or of the set before the slash."""
    set_name, _, job_id = (name if "/" in name else f"upgrade/{name}").rpartition("/")
    after = fields.pop("after", ())
    repository = fields.pop("repository", "git@host.example:shop/ledger.git")
    prompt = fields.pop("prompt", "Move the module to the new API.\n\nRun `make test` at the end.")
    job = Job(id=job_id or "id", repository=repository, prompt=prompt, after=after)
    if state is JobState.DONE and exit_code is None:
        exit_code = 0
    began_s = None if state in {JobState.WAITING, JobState.QUEUED, JobState.BLOCKED} else BEGAN_S
    return JobRow(
        **{
            "set_name": set_name,
            "id": job_id,
            "position": 0,
            "content": content_of(job),
            "repository": repository,
            "after": json.dumps(after),
            "state": state,
            "tries": 1,
            "planned": fields.get("commit"),
            "is_cancelled": state is JobState.CANCELLED,
            "exit_code": exit_code,
            "outcome": None if exit_code is None else outcome_of(exit_code).value,
            "created_at": BEGAN_S,
            "started_at": began_s,
            "ended_at": BEGAN_S + 30 * MINUTE_S if state.is_final else None,
            **fields,
        }
    )


def attempt_row(
    job: str,
    claim: int,
    executor: str,
    minutes: tuple[float, float | None],
    exit_code: int | None,
    **fields: Any,
) -> AttemptRow:
    """A claim by an executor, whose machine is the part before the first `-`, with the minutes of its begin and end."""
    set_name, _, job_id = job.rpartition("/")
    began, ended = minutes
    nothing = dict.fromkeys(("reason", "turns", "cost_usd"))
    return AttemptRow(
        set_name=set_name or "upgrade",
        job=job_id,
        generation=claim,
        attempt=claim,
        executor=executor,
        machine=executor.partition("-")[0],
        started_at=BEGAN_S + began * MINUTE_S,
        ended_at=None if ended is None else BEGAN_S + ended * MINUTE_S,
        exit_code=exit_code,
        **{**nothing, **fields},
    )


def set_row(name: str = "upgrade", **limits: Any) -> SetRow:
    return SetRow(name=name, limits=SetLimits(**limits), created_at=BEGAN_S, counts={}, cost_usd=0.0)


COMMIT = "4f0c3b5d9a7e61f2830b1c4d5e6f708192a3b4c5"
SETS = [set_row(max_budget_usd=20.0, concurrency=4), set_row("nightly", max_budget_usd=5.0)]
JOBS = [
    job_row("api", generation=1, turns=31, cost_usd=2.25, commit=COMMIT, result="All calls use the new API."),
    job_row("billing", generation=2, turns=58, cost_usd=4.5, commit=COMMIT, result="Done after a restart."),
    job_row(
        *("search", JobState.DONE, 1),
        generation=1,
        turns=12,
        cost_usd=1.0,
        reason="the model reported a failure: the index needs a licence",
        result="I could not build the index.\nIt needs a licence key.",
    ),
    job_row(
        *("web", JobState.DONE, 74),
        generation=1,
        turns=20,
        cost_usd=1.5,
        planned=COMMIT,
        reason="the branch ralph/web was changed by somebody else meanwhile",
    ),
    job_row(
        "docs",
        JobState.BLOCKED,
        1,
        after=("search",),
        reason="search, which must come before, ended with exit 1",
    ),
    job_row("mobile", JobState.CANCELLED, 143, generation=1, reason="cancelled", turns=2, cost_usd=0.25),
    job_row("export", JobState.RUNNING, generation=1, turns=4, cost_usd=0.5, reserved_usd=1.5),
    job_row("mail", JobState.QUEUED, generation=1, reason="HTTP 529 overloaded", turns=1, cost_usd=0.125),
    job_row("tests", JobState.WAITING, after=("api", "export")),
    job_row("nightly/audit", generation=1, turns=9, cost_usd=0.75, prompt="Audit the dependencies."),
]
ATTEMPTS = [
    attempt_row("api", 1, "east-101-a", (0, 30), 0, turns=31, cost_usd=2.25),
    attempt_row("billing", 1, "west-202-b", (0, 44), None, reason="its worker was lost"),
    attempt_row("billing", 2, "east-102-c", (44, 90), 0, turns=58, cost_usd=4.5),
    attempt_row(
        "search", 1, "east-101-a", (31, 60), 1, reason="the index needs a licence", turns=12, cost_usd=1.0
    ),
    attempt_row("web", 1, "north-303-d", (5, 50), 74, turns=20, cost_usd=1.5),
    attempt_row("mobile", 1, "north-303-d", (52, 55), 143, reason="cancelled", turns=2, cost_usd=0.25),
    attempt_row("export", 1, "east-101-a", (350, None), None),
    attempt_row(
        "mail", 1, "north-303-d", (340, 345), 75, reason="HTTP 529 overloaded", turns=1, cost_usd=0.125
    ),
    attempt_row("nightly/audit", 1, "north-303-d", (60, 75), 0, turns=9, cost_usd=0.75),
]


def night_of(
    sets: Any = None, jobs: Any = None, attempts: Any = None, secrets: Sequence[str] = ()
) -> FleetContent:
    jobs, attempts = JOBS if jobs is None else jobs, ATTEMPTS if attempts is None else attempts
    excerpts = Excerpts(Redactor(secrets))
    return FleetStory(SETS if sets is None else sets, jobs, attempts, NOW_S, excerpts).content()
