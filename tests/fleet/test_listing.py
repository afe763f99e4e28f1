"""The text that `ls`, `show`, `wait` and `logs` print for people, and the objects that they print for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ralph.fleet.jobs import Job, JobState, Rate, SetLimits, content_of, worst_exit_code
from ralph.fleet.listing import (
    Workers,
    counts_text,
    end_lines,
    job_lines,
    job_object,
    limits_text,
    progress_line,
    set_lines,
    set_object,
    story_lines,
    wait_object,
)
from ralph.fleet.schema import AttemptRow, JobRow, SetRow

NOW = 1_800_000_000.0
HOSTILE = "\x1b]0;title\x07\x1b[2Jgone\nralph: all is well \u202eesrever"


def row(name: str = "a", state: JobState = JobState.QUEUED, **values: Any) -> JobRow:
    job = Job(id=name, repository="https://git.example.org/x.git", prompt=values.pop("prompt", "Do it."))
    usual: dict[str, Any] = {"set_name": "s", "id": name, "position": 0, "content": content_of(job)}
    usual |= {"repository": job.repository, "after": "[]", "state": state, "created_at": NOW - 600}
    return JobRow(**(usual | values))


def ended(name: str, code: int, reason: str = "") -> JobRow:
    times = {"started_at": NOW - 500, "ended_at": NOW - 260}
    return row(name, JobState.DONE, exit_code=code, reason=reason, tries=1, turns=3, cost_usd=0.5, **times)


def set_row(**counts: int) -> SetRow:
    states = {JobState(name): count for name, count in counts.items()}
    limits = SetLimits(concurrency=8, per_host=2, rate=Rate(50, 60.0), max_budget_usd=20.0, max_attempts=1)
    return SetRow(name="s", limits=limits, created_at=NOW, counts=states, cost_usd=1.25)


def test_a_line_per_job_says_state_tries_turns_cost_time_and_reason() -> None:
    rows = [
        ended("a", 0),
        ended("b", 74, "the disk is full"),
        row("c", JobState.RUNNING, tries=2, started_at=NOW - 65, is_cancelled=True),
        row("d", not_before=NOW + 300, tries=1, started_at=NOW - 400, reason="overloaded"),
        row("e", JobState.WAITING),
    ]
    assert list(job_lines(rows, now=NOW)) == [
        "JOB  STATE       TRIES  TURNS     COST      TIME  REASON",
        "a    done            1      3  $0.5000     4m00s",
        "b    exit 74         1      3  $0.5000     4m00s  the disk is full",
        "c    cancelling      2                     1m05s",
        "d    queued          1                  in 5m00s  overloaded",
        "e    waiting",
    ]


def test_foreign_text_cannot_control_the_terminal() -> None:
    hostile = row(
        "a", JobState.DONE, prompt=HOSTILE, reason=HOSTILE, result=HOSTILE, exit_code=1, ended_at=NOW
    )
    attempt = attempt_row(reason=HOSTILE, machine=HOSTILE)
    texts = [
        *job_lines([hostile], now=NOW),
        *story_lines(hostile, [attempt], NOW),
        *end_lines([set_row(done=1)], [hostile]),
    ]
    assert sum("all is well" in text for text in texts) >= 3
    assert all(text.isprintable() and "\u202e" not in text for text in texts)


def attempt_row(**values: Any) -> AttemptRow:
    usual: dict[str, Any] = {"set_name": "s", "job": "a", "generation": 1, "attempt": 1, "executor": "m-1-ff"}
    usual |= {"machine": "m", "started_at": NOW - 500, "ended_at": NOW - 440, "exit_code": 75}
    usual |= {"reason": "overloaded", "turns": 1, "cost_usd": 0.1}
    return AttemptRow(**(usual | values))


def test_the_story_of_a_job_has_its_branch_its_attempts_and_its_last_answer() -> None:
    job = row(
        "a",
        JobState.RUNNING,
        prompt="\n  Port it.\nAll of it.",
        generation=3,
        holder="m-1-ff",
        started_at=NOW - 500,
        result="one\ntwo",
    )
    attempts = [
        attempt_row(),
        attempt_row(generation=2, attempt=2, exit_code=None, reason="its worker was lost"),
        attempt_row(generation=3, attempt=2, exit_code=None, reason=None, ended_at=None),
    ]
    lines = list(story_lines(job, attempts, NOW))
    assert lines[0] == "s/a: running"
    text = "\n".join(lines)
    assert "  branch      ralph/a, nothing pushed yet" in text
    assert "  prompt      Port it." in text
    ends = [line.rpartition("  ")[2] for line in lines[lines.index("  attempts:") + 1 :][:3]]
    assert ends == ["exit 75 (overloaded)", "its worker was lost", "running"]
    assert lines[-2:] == ["    one", "    two"]


def test_a_job_of_another_version_is_shown_as_far_as_it_is_known() -> None:
    strange = row("a", content=b'{"format":99}')
    assert any("format 99" in line for line in story_lines(strange, [], NOW))
    assert job_object(strange)["branch"] is None


def test_a_set_says_its_counts_its_limits_and_who_works() -> None:
    assert list(set_lines(set_row(running=2, done=1), Workers(3, 2))) == [
        "s: 3 jobs: 2 running, 1 done; $1.25 of $20",
        "  limits: 8 at once, 2 at once for each host, 50/min, 1 attempt",
        "  3 slots on 2 machines at work",
    ]
    assert list(set_lines(set_row(queued=1), Workers(0, 0)))[-1] == "  no worker: ralph fleet work"
    assert len(list(set_lines(set_row(done=1), Workers(0, 0)))) == 2
    assert progress_line([set_row(running=2, done=1)]) == "2 running, 1 done; $1.25"
    assert limits_text(set_row().limits, has_budget=True).endswith(", 1 attempt, $20")
    some = replace(set_row(running=2, done=5), failed=2)
    assert counts_text(some) == "7 jobs: 2 running, 3 done, 2 failed"
    assert progress_line([some, replace(set_row(done=1), failed=1)]) == "2 running, 3 done, 3 failed; $2.50"


def test_the_end_of_a_wait_names_what_failed() -> None:
    lines = list(
        end_lines(
            [replace(set_row(done=32), failed=31)],
            [*(ended(f"j{n}", 4, "no progress") for n in range(31)), ended("z", 0)],
        )
    )
    assert lines[:2] == ["s: 32 jobs: 1 done, 31 failed; $1.25", "  s/j0: exit 4 (no progress)"]
    assert (len(lines), lines[-1]) == (22, "  and 11 more")


def test_the_fields_of_the_objects_stay() -> None:
    """Programs read them: a field may be added, and none may change its name or its meaning."""
    assert job_object(ended("a", 74, "full")) == {
        "set": "s",
        "id": "a",
        "state": "done",
        "exit_code": 74,
        "outcome": None,
        "reason": "full",
        "attempt": 1,
        "tries": 1,
        "turns": 3,
        "cost_usd": 0.5,
        "repository": "https://git.example.org/x.git",
        "branch": "ralph/a",
        "commit": None,
        "base": None,
        "worker": None,
        "is_cancelled": False,
        "undelivered": None,
        "created_at": "2027-01-15T07:50:00.000+00:00",
        "started_at": "2027-01-15T07:51:40.000+00:00",
        "ended_at": "2027-01-15T07:55:40.000+00:00",
        "not_before": None,
        "result": None,
    }
    told = set_object(set_row(running=1), Workers(3, 2))
    assert (told["set"], told["jobs"], told["open"], told["slots"], told["machines"]) == ("s", 1, 1, 3, 2)
    assert (told["limits"]["rate"], told["states"]["running"]) == ({"starts": 50, "period_s": 60.0}, 1)
    waited = wait_object([set_row(done=2)], [ended("a", 3), ended("b", 74)], 124)
    assert (waited["exit_code"], len(waited["jobs"])) == (124, 2)


def test_the_page_of_the_fleet_has_every_state_every_field_and_the_order_of_the_codes() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs/fleet.md").read_text().split())
    fields = {*job_object(row()), *set_object(set_row(), Workers(0, 0)), *wait_object([], [], 0)}
    words = fields | {state.value for state in JobState} | {"cancelling", "exit N"}
    assert {word for word in words if f"`{word}`" not in page and f'"{word}"' not in page} == set()
    worst_first = sorted((0, 143, 70, 74, 77, 78, 69, 2, 4, 1, 3, 124, 75), key=place_of)
    assert ", ".join(map(str, worst_first)).replace("143", "128+n") in page


def place_of(code: int) -> int:
    """How many codes are worse."""
    codes = (0, 143, 70, 74, 77, 78, 69, 2, 4, 1, 3, 124, 75)
    return sum(worst_exit_code([code, other]) == other != code for other in codes)
