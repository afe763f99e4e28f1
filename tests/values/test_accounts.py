"""Which errors are about an exhausted account, by the table of vendors."""

from __future__ import annotations

import re

from ralph.values.refusals import ACCOUNT_CODES, ACCOUNTS, exhausted_account, window_s
from tests.rows import every_row

# One message of each row that is told by its text.
MESSAGES = [
    "You have reached your specified workspace API usage limits. You will regain access on 2026-12-01.",
    "Claude AI usage limit reached|1762952400",
    "You exceeded your current quota. See: https://help.aliyun.com/zh/model-studio/error-code#token-limit",
    "usage limit exceeded, 5-hour usage limit reached for Token Plan Plus (0/0 used)",
    "Usage limit reached for the past 5 hours. Insufficient balance for extra usage.",
    "You've reached your 5-hour usage limit. Upgrade at kimi.com",
    "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 free model requests per day",
    "ExceededBudget: User x over budget",
    "Your credit balance is too low to access the Anthropic API.",
    "Your team x has either used all available credits or reached its monthly spending limit.",
    "Insufficient balance or no resource package. Please recharge.",
    "Access denied, please make sure your account is in good standing.",
    "token quota is not enough, token remain quota: 1, need quota: 2",
    "Insufficient credits. Add more at the console",
]


def test_every_row_is_told_by_its_own_message_and_by_no_earlier_row() -> None:
    told = [exhausted_account((None,), message) for message in MESSAGES]
    assert told == [account for account in ACCOUNTS if account.text]


@every_row("code", sorted(ACCOUNT_CODES))
def test_a_code_alone_tells_the_row(code: str) -> None:
    for codes in ((code, None), (None, code)):
        account = exhausted_account(codes, "")
        assert account is not None
        assert code in account.codes


@every_row(
    "message",
    [
        "This request would exceed your account's rate limit. Please try again later.",
        "Rate limit reached for requests",
        "Extra usage is required for long context requests.",
        "You exceeded your current quota, please check your plan and billing details.",  # also Google's, each minute
        "Resource has been exhausted (e.g. check quota).",
        "prompt is too long: 208310 tokens > 200000 maximum",
        "We're receiving too many requests at the moment.",
        "",
    ],
)
def test_a_limit_that_passes_soon_is_no_exhausted_account(message: str) -> None:
    assert exhausted_account(("rate_limit_error", "1302"), message) is None


@every_row(
    ("message", "seconds"),
    [
        ("5-hour usage limit reached", 5 * 3600),
        ("Usage limit reached for 5 hour.", 5 * 3600),
        ("for the past 7 days", 7 * 86400),
        ("weekly (7-day) usage limit", 7 * 86400),
        ("free-models-per-day", 86400),
        ("your daily usage limit", 86400),
        ("resets on Wednesday", None),
        ("usage limit for this billing cycle", None),
        ("9999 hours", 999 * 3600),
    ],
)
def test_the_window_is_read_from_the_message(message: str, seconds: float | None) -> None:
    kimi = next(account for account in ACCOUNTS if account.vendor == "Kimi Code")
    assert window_s(kimi, message) == seconds


def test_every_row_names_its_source_and_only_accounts_that_are_filled_again_have_a_window() -> None:
    for account in ACCOUNTS:
        assert re.search(r"#\d|\.\w+/", account.source), account
        assert account.codes or account.text
        assert account.is_refilled or account.window_s is None
