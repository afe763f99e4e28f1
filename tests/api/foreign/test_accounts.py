"""Exhausted accounts in the words of their vendors, and the times that servers name."""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import pytest

from ralph.api.error_body import http_error
from ralph.values.errors import outcome_of
from ralph.values.outcome import Outcome
from tests.api.foreign.wire import DONE, QUICKLY, Row, answering, note, play, refusal, run, sse, stream
from tests.api.harness import http_answer
from tests.program.conftest import ralph_in
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

STANDARD = ""
AT_NOON = "Fri, 15 May 2026 12:00:00 GMT"


def error(message: str, **fields: Any) -> dict[str, Any]:
    """An error object in the form of Anthropic, which most gateways send too."""
    return {"type": "error", "error": {"type": "rate_limit_error", "message": message, **fields}}


def in_stream(body: dict[str, Any]) -> bytes:
    return sse({"type": "ping"}, {"type": "error", **body})


def in_whole_body(body: dict[str, Any]) -> bytes:
    return http_answer(json.dumps(body).encode(), "application/json")


# --- Accounts that only a person can fill: one request, 77

ZAI_EMPTY = error("Insufficient balance or no resource package. Please recharge.", code="1113")
EMPTY = [
    ("z.ai, in the stream", "docs.z.ai", in_stream(ZAI_EMPTY)),
    (
        "MiniMax, 200 with base_resp",
        "platform.minimax.io/docs",
        in_whole_body({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}),
    ),
]
"""tests/values/test_accounts.py has each text and each code."""


def ended(answer: bytes, settings: str, directory: Path) -> tuple[int, dict[str, Any]]:
    """The exit code and the result of a run that gets this answer once and asks no more."""
    with answering([answer]) as (server, requests):
        ran = run(ralph_in(directory), server, settings=settings)
    assert len(requests) == 1, ran.stderr
    return ran.code, ran.result


@pytest.mark.parametrize(("name", "source", "answer"), EMPTY, ids=[row[0] for row in EMPTY])
def test_an_empty_account_ends_the_run_at_once(name, source, answer, tmp_path) -> None:
    code, result = ended(answer, QUICKLY, tmp_path)
    assert (code, result.get("retry_after_s")) == (77, None)
    assert "no credit or quota" in str(result["hints"])


def test_an_empty_account_ends_a_loop(tmp_path) -> None:
    ralph = ralph_in(tmp_path)
    with answering([refusal(429, ZAI_EMPTY)]) as (server, requests):
        ralph.user_file.write_text(QUICKLY)
        ralph.environment["ANTHROPIC_BASE_URL"] = server.base_url
        ran = ralph("loop", "do it", "--max-iterations", "3")
    assert (ran.code, len(requests)) == (77, 1), ran.stderr


# --- Times that a server names: one request, 75 with the time

FIVE_HOURS = "usage limit exceeded, 5-hour usage limit reached"
DATED = f"{FIVE_HOURS}, resets at 2026-05-15T15:00:00Z (2056)"
# name, source, status, headers, body, seconds
RESET_TIMES: list[tuple[str, str, int, dict[str, str], dict[str, Any], float]] = [
    ("MiniMax, a dated reset", "MiniMax-M2.7#36", 429, {}, error(DATED), 3 * 3600),
    ("MiniMax, behind a gateway", "own", 429, {"retry-after": "5"}, error(DATED), 3 * 3600),
    (
        "MiniMax, only the window",
        "MiniMax-M2.7#36",
        429,
        {},
        error(f"{FIVE_HOURS} for Token Plan Starter (2056)"),
        5 * 3600,
    ),
    (
        "z.ai, in the time of Beijing",
        "model-hotel#955",
        429,
        {},
        error("Usage limit reached for 5 hour. Your limit will reset at 2026-05-15 22:00:00", code="1308"),
        2 * 3600,
    ),
    (
        "Kimi Code, 403",
        "openclaw#142656",
        403,
        {},
        error("You've reached your weekly (7-day) usage limit.", type="access_terminated_error"),
        7 * 86400,
    ),
    (
        "Anthropic, a limit of the user",
        "platform.claude.com/docs",
        400,
        {},
        error(
            "You have reached your specified API usage limits. You will regain access on 2026-05-16 at 00:00 UTC."
        ),
        12 * 3600,
    ),
    (
        "Anthropic, a subscription without retry-after",
        "opencodex#3809",
        429,
        {
            "anthropic-ratelimit-unified-5h-status": "rejected",
            "anthropic-ratelimit-unified-5h-reset": "1778850000",
            "anthropic-ratelimit-unified-7d-status": "allowed",
            "anthropic-ratelimit-unified-7d-reset": "1779000000",
        },
        error("This request would exceed your account's rate limit."),
        1778850000 - 1778846400,
    ),
    (
        "Codex",
        "CLIProxyAPI#1666",
        429,
        {},
        {"error": {"type": "usage_limit_reached", "message": "m", "resets_in_seconds": 529498}},
        529498,
    ),
    (
        "OpenRouter, free models",
        "openclaude#936",
        429,
        {},
        {
            "error": {
                "message": "Rate limit exceeded: free-models-per-day.",
                "code": 429,
                "metadata": {"headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1778850000000"}},
            }
        },
        1778850000 - 1778846400,
    ),
]


@every_row(("name", "source", "status", "headers", "body", "wait_s"), RESET_TIMES)
def test_the_time_of_an_account_is_read_wherever_its_vendor_writes_it(
    name, source, status, headers, body, wait_s
) -> None:
    noon = parsedate_to_datetime(AT_NOON)
    told = http_error(status, headers, json.dumps(body).encode(), noon, str)
    assert (told.retry_after, outcome_of(told)) == (wait_s, Outcome.API_UNAVAILABLE)


def test_a_time_beyond_all_waits_ends_the_run_at_once_with_it(tmp_path) -> None:
    answer = refusal(429, error(DATED), date=AT_NOON, retry_after="5")
    code, result = ended(answer, STANDARD, tmp_path)
    assert (code, result["retry_after_s"]) == (75, 3 * 3600)
    assert "try again after" in str(result["hints"])


# --- Times that are waited for


def test_a_time_that_is_soon_is_waited_for(tmp_path) -> None:
    """Google: python-genai#2114. tests/api/test_retry_after.py has each form."""
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.25s"}
    answer = refusal(429, {"error": {"code": 429, "message": "You exceeded your quota.", "details": [info]}})
    row = Row("", "", (answer, stream(note()), DONE), errors=("HTTP ",), settings=STANDARD, notes="1\n")
    (retry,) = [one for one in play(row, tmp_path).ran.objects if one.get("subtype") == "api_retry"]
    assert retry["retry_delay_ms"] == 250
