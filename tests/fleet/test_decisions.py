"""Decides what follows from the end of a job's process, and which exit code is the worst."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from ralph.fleet.jobs import (
    LONGEST_DELAY_S,
    Final,
    NextAttempt,
    ProcessEnd,
    after_end,
    delay_after,
    grant_usd,
    worst_exit_code,
)
from tests.rows import every_row

WORST_FIRST = (70, 74, 77, 78, 69, 2, 4, 1, 3, 124, 75, 143, 0)


@every_row("worse, better", pairwise(WORST_FIRST))
def test_a_worse_exit_code_wins(worse: int, better: int) -> None:
    assert worst_exit_code([better, worse, better]) == worse


def test_no_job_is_well_and_an_unknown_code_is_a_bug() -> None:
    assert worst_exit_code([]) == 0
    assert worst_exit_code([130, 143, 0]) in {130, 143}
    assert worst_exit_code([74, 99]) == 99


@every_row(
    "tries, asked_s, delay_s",
    [
        (1, None, 60),
        (2, None, 120),
        (4, None, 480),
        (7, None, LONGEST_DELAY_S),
        (10_000, None, LONGEST_DELAY_S),
        (3, 7.5, 7.5),
        (1, 0, 0),
        (1, 9000, 9000),
        (2, -1.0, 120),
    ],
)
def test_the_next_attempt_waits_as_long_as_the_server_asked_else_twice_as_long_each_time(
    tries: int, asked_s: float | None, delay_s: float
) -> None:
    assert delay_after(tries, asked_s) == delay_s


@every_row(
    "end, tries, follows",
    [
        ({"exit_code": 0}, 1, Final(0, "")),
        ({"exit_code": 74, "reason": "disk"}, 1, Final(74, "disk")),
        ({"exit_code": 134, "reason": "core"}, 1, Final(134, "core")),
        ({"exit_code": 143, "reason": "stopped"}, 1, NextAttempt(60.0, "stopped")),
        ({"exit_code": 75, "reason": "overloaded"}, 1, NextAttempt(60.0, "overloaded")),
        ({"exit_code": 75, "retry_after_s": 3.0}, 1, NextAttempt(3.0, "the API was not available")),
        ({"exit_code": 75, "retry_after_s": 1e10}, 1, NextAttempt(691_200.0, "the API was not available")),
        ({"exit_code": 137, "reason": "killed", "was_killed": True}, 2, NextAttempt(120.0, "killed")),
        ({"exit_code": 75, "reason": "overloaded"}, 3, Final(75, "gave up after 3 attempts: overloaded")),
        (
            {"exit_code": 137, "reason": "killed", "was_killed": True},
            3,
            Final(75, "gave up after 3 attempts: killed"),
        ),
    ],
)
def test_only_an_outage_or_a_kill_leads_to_another_attempt(
    end: dict[str, Any], tries: int, follows: Final | NextAttempt
) -> None:
    assert after_end(ProcessEnd(**end), tries=tries, most_tries=3) == follows


@every_row(
    "has_own_access, has_worked, tries, follows",
    [
        (False, False, 9, NextAttempt(0.0, "HTTP 401", is_try=False)),
        (False, True, 2, NextAttempt(120.0, "HTTP 401")),
        (False, True, 3, Final(77, "gave up after 3 attempts: HTTP 401")),
        (True, False, 1, Final(77, "HTTP 401")),
        (True, True, 1, Final(77, "HTTP 401")),
    ],
)
def test_a_refused_key_is_the_fault_of_the_machine_unless_another_job_has_ended_well_with_it(
    has_own_access: bool, has_worked: bool, tries: int, follows: Final | NextAttempt
) -> None:
    end = ProcessEnd(exit_code=77, reason="HTTP 401")
    found = after_end(end, tries=tries, most_tries=3, has_own_access=has_own_access, has_worked=has_worked)
    assert found == follows


@every_row(
    "left, grant",
    [(100.0, 25.0), (4.0, 1.0), (3.0, 1.0), (0.4, 0.4), (0.0, 0.0), (-1.0, 0.0), (0.00005, 0.0)],
)
def test_a_grant_is_a_part_of_what_is_left_and_never_more(left: float, grant: float) -> None:
    assert grant_usd(left) == grant, "what sums leave by rounding is nothing"


def test_a_run_that_needs_more_for_its_next_request_gets_it_if_it_is_there() -> None:
    assert (grant_usd(4.0, 3.0), grant_usd(2.0, 3.0)) == (3.0, 2.0)
