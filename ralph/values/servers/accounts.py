"""How servers say that an account is exhausted: that it has no credit, or no quota for now.

Waiting a few seconds cannot help then, whatever the status of the answer is. The status alone does not tell: several
vendors use 429 for a rate limit and for an empty account, others 400 or 403. `ACCOUNTS` lists what each vendor sends, with
the source. Some accounts are filled again by themselves, and their server may say when.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

_HOUR_S = 3600.0


class Account(Struct, frozen=True):
    """The codes and words of a vendor for an exhausted account."""

    vendor: str
    source: str
    """The vendor's page, or a public report (repository and number)."""
    codes: tuple[str, ...] = ()
    """The values of the field `code` or `type` of the error. One of them is enough."""
    text: str = ""
    """A pattern of the message, without regard to case. Empty if only the codes tell."""
    is_refilled: bool = False
    """Whether the account is filled again by itself. Then a time that the server names is the end of the wait."""
    window_s: float | None = None
    """The time after which it is filled again, if the message names none. None if that is unknown."""
    utc_offset_h: int = 0
    """The time zone of dates without one, in hours east of UTC."""


# The first row that fits counts. So rows of quotas that are filled again come before those of empty accounts: z.ai says
# "Usage limit reached for the past 5 hours. Insufficient balance for extra usage".
ACCOUNTS = (
    Account(
        "Anthropic, limit set by the user",
        "platform.claude.com/docs/en/api/errors",
        text=r"you have reached your (specified )?(workspace )?api usage limits",
        is_refilled=True,
    ),
    Account(
        "Anthropic, subscriptions",
        "anthropics/claude-code#45046, #2087",
        text=r"out of extra usage|draw from your extra usage|claude (ai )?usage limit reached",
        is_refilled=True,
    ),
    # Its limit on tokens a minute has the words and the code of OpenAI's empty account.
    Account(
        "DashScope, tokens a minute",
        "anomalyco/opencode#23722",
        text=r"you exceeded your current quota.*aliyun\.com.*#token-limit",
        is_refilled=True,
        window_s=60.0,
    ),
    Account(
        "MiniMax",
        "platform.minimax.io/docs/api-reference/errorcode, MiniMax-AI/MiniMax-M2.7#36",
        text=r"usage limit exceeded|token plan usage limit reached",
        is_refilled=True,
        window_s=5 * _HOUR_S,
        utc_offset_h=8,
    ),
    Account(
        "z.ai",
        "docs.z.ai/api-reference/api-code, hugalafutro/model-hotel#955",
        ("1308", "1310", *map(str, range(1316, 1322))),
        r"usage limit reached for|weekly/monthly limit exhausted",
        is_refilled=True,
        utc_offset_h=8,
    ),
    Account(
        "Kimi Code",
        "openclaw/openclaw#142656, Kilo-Org/kilocode#11403",
        text=r"you've reached your .*usage limit",
        is_refilled=True,
    ),
    Account(
        "OpenRouter, free models",
        "Gitlawb/openclaude#936",
        text=r"free-models-per-day",
        is_refilled=True,
    ),
    Account(
        "Codex",
        "router-for-me/CLIProxyAPI#1666",
        ("usage_limit_reached",),
        is_refilled=True,
    ),
    Account(
        "LiteLLM",
        "docs.litellm.ai/docs/proxy/users, BerriAI/litellm#4208, #14144",
        ("budget_exceeded",),
        r"budget has been exceeded|exceededbudget:",
        is_refilled=True,
    ),
    Account(
        "Anthropic",
        "platform.claude.com/docs/en/api/errors",
        ("enforced_spend_limit_reached", "contract_spend_limit_reached"),
        r"credit balance is too low",
    ),
    Account(
        "OpenAI",
        "help.openai.com/en/articles/6614457",
        (
            *("insufficient_quota", "credit_balance_exhausted", "organization_usage_limit_exceeded"),
            *("organization_spend_limit_exceeded", "project_spend_limit_exceeded"),
        ),
    ),
    Account(
        "xAI",
        "continuedev/continue#10373, Wei-Shaw/sub2api#4069",
        text=r"used all available credits or reached its monthly spending limit|you have run out of credits",
    ),
    Account(
        "z.ai",
        "docs.z.ai/api-reference/api-code",
        ("1113", "1309"),
        r"no resource package|余额不足",
    ),
    Account("Moonshot", "MoonshotAI/kimi-code#1857", ("exceeded_current_quota_error",)),
    Account(
        "DashScope",
        "help.aliyun.com/en/model-studio/error-code",
        ("Arrearage",),
        r"make sure your account is in good standing",
    ),
    Account(
        "one-api, NewAPI",
        "songquanpeng/one-api#1270, MAX-API-Next/MAX-API#20",
        ("insufficient_user_quota", "pre_consume_token_quota_failed"),
        r"(user|token) quota is not enough",
    ),
    Account(
        "Novita",
        "novita.ai/docs/api-reference/basic-error-code",
        ("NOT_ENOUGH_BALANCE", "BILLING_BALANCE_NOT_ENOUGH"),
    ),
    Account(
        "MiniMax, DeepSeek, sub2api and others",
        "platform.minimax.io/docs/api-reference/errorcode, Wei-Shaw/sub2api#890",
        ("INSUFFICIENT_BALANCE",),
        r"insufficient (account )?balance|insufficient credits?\b",
    ),
)

CODES = frozenset(code for account in ACCOUNTS for code in account.codes)
_UNITS_S = {"h": _HOUR_S, "d": 24 * _HOUR_S, "w": 7 * 24 * _HOUR_S}


def exhausted_account(codes: Iterable[str | None], text: str) -> Account | None:
    """The first row that fits an error with these codes and this message. None if the error is about something else."""
    named = frozenset(codes)
    for account in ACCOUNTS:
        if not named.isdisjoint(account.codes):
            return account
        if account.text and re.search(account.text, text, re.IGNORECASE):
            return account
    return None


def window_s(account: Account, text: str) -> float | None:
    """The longest time, in seconds, until the account is filled again, if the message names only the length of a window, such
    as `5-hour`, or none at all. None if this is unknown.
    """
    found = re.search(r"(?<![a-z])(?:(\d{1,3})[ -]?)?(hour|da[yi]|week)", text, re.IGNORECASE | re.ASCII)
    if found is None:
        return account.window_s
    return int(found[1] or 1) * _UNITS_S[found[2][0].lower()]
