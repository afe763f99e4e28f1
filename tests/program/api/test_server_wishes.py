"""Tests what servers ask for in their headers, as a user meets it: which target ralph waits for, how long, and what
it says about the wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.program.conftest import KEY
from tests.program.faulty import DONE, HELLO, stream
from tests.program.several import at, keys_of, of, refusal, run, settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.program.conftest import Ralph

SECOND = "sk-ant-test-second-9876543210"
LIMITED = "429 Too Many Requests"


def two_keys(ralph: Ralph, base_url: str, **retry: Any) -> Path:
    ralph.environment["SECOND_KEY"] = SECOND
    keys = at("main", base_url, api_key_env=["ANTHROPIC_API_KEY", "SECOND_KEY"])
    return settings(ralph, keys, **retry)


@pytest.mark.parametrize("strategy", ["fallback", "round_robin"])
def test_a_long_wish_of_one_key_ends_nothing_while_another_is_free_soon_exits_0(
    ralph, answer_with, strategy
) -> None:
    server = answer_with(
        refusal(LIMITED, "rate_limit_error", "retry-after: 600\r\n"),
        refusal(LIMITED, "rate_limit_error", "retry-after: 1\r\n"),
        stream(HELLO),
    )
    path = two_keys(ralph, server.base_url, policy="custom", base_delay_s=0.01, strategy=strategy)
    ran = run(ralph, path)
    assert (ran.code, len(server.requests)) == (0, 3)
    [retry] = of(ran, "api_retry")
    assert retry["retry_delay_ms"] == 1000
    assert keys_of(server.requests)[:2] == [KEY, SECOND]


def test_fallback_waits_for_the_first_that_is_free_and_says_what_it_waits_for_exits_0(ralph, serve) -> None:
    """The second target asked for a wait of 0 s, so no server asked for the wait of 1 s."""
    first = serve(Fault(status=429, headers={"retry-after": "60"}), DONE)
    second = serve(Fault(status=429, headers={"retry-after": "0"}), DONE)
    path = settings(ralph, at("main", first.base_url), at("spare", second.base_url), policy="standard")
    ran = run(ralph, path)
    assert (ran.code, len(first.requests), len(second.requests)) == (0, 1, 2)
    assert [one["retry_delay_ms"] for one in of(ran, "api_retry")] == [1000]
    assert "waiting 1s" in ran.stderr
    assert "Using retry-after" not in ran.stderr


def test_what_the_server_wants_nobody_to_retry_is_an_outage_with_its_time_exits_75(ralph, serve) -> None:
    server = serve(Fault(status=529, headers={"x-should-retry": "false", "retry-after": "90"}))
    ran = ralph("hi", "--output-format", "json")
    assert (ran.code, ran.result["terminal_reason"], server.request_count) == (75, "api_unavailable", 1)
    assert ran.result["retry_after_s"] == 90
    assert "come back after" in ran.result["hints"][0]
    assert "ralph --resume" in ran.result["hints"][-1]


def test_one_that_may_answer_later_tells_the_end_though_another_is_refused_exits_75(ralph, serve) -> None:
    later = serve(Fault(status=529, headers={"x-should-retry": "false", "retry-after": "90"}))
    refused = serve(Fault(status=401))
    ran = run(ralph, settings(ralph, at("main", later.base_url), at("spare", refused.base_url)))
    assert (ran.code, ran.result["retry_after_s"]) == (75, 90)


@pytest.mark.parametrize(
    ("status", "remaining", "is_obeyed"),
    [(529, "7", False), (529, "0", True)],
)
def test_a_reset_of_a_limit_is_obeyed_only_where_that_limit_is_exhausted(
    ralph, serve, status, remaining, is_obeyed
) -> None:
    left = {} if remaining is None else {"x-ratelimit-remaining": remaining}
    serve(Step(fault=Fault(status=status, headers={"x-ratelimit-reset": "3000", **left})), Turn("Hello."))
    ralph.user_file.write_text("[retry]\npolicy = 'custom'\nbase_delay_s = 0.01\nmax_delay_s = 60\n")
    ran = ralph("hi", "--output-format", "json")
    assert ran.code == (75 if is_obeyed else 0)
    assert ran.result.get("retry_after_s") == (3000 if is_obeyed else None)
