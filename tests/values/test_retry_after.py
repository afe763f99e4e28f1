"""Every header in which a server may name a time, and every invalid value that it may contain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from ralph.values.retry_after import LONGEST_REQUESTED_S, requested_wait_s
from tests.rows import every_row

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


@every_row(
    ("value", "requested_s"),
    [
        ("0", 0),
        ("7", 7),
        ("1.5", 1.5),
        (" 3 ", 3),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 30),
        ("Sat, 21 Nov 2026 11:59:00 GMT", 0),
        ("Saturday, 21-Nov-26 12:00:30 GMT", 30),
        ("Saturday, 21-Nov-99 12:00:30 GMT", 0),
        ("Sat Nov 21 12:00:30 2026", 30),
        ("Sat, 21 Nov 2026 12:00:30 CET", None),
        ("Sat, 21 Nop 2026 12:00:30 GMT", None),
        ("Sat, 21 Nov 2026 12:00 GMT", None),
        (f"Sat, 21 Nov {'9' * 30} 12:00:30 GMT", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        ("9" * 35, LONGEST_REQUESTED_S),
        ("Sat, 99 Nov 2026 12:00:30 GMT", None),
    ],
)
def test_retry_after_is_read_as_integer_float_or_date(value: str, requested_s: float | None) -> None:
    assert requested_wait_s({"retry-after": value}, NOW, 429) == requested_s


def test_milliseconds_win_over_seconds() -> None:
    assert requested_wait_s({"retry-after-ms": "1500", "retry-after": "7"}, NOW, 429) == 1.5
    assert requested_wait_s({"retry-after-ms": "what", "retry-after": "7"}, NOW, 429) == 7


def test_resets_count_only_without_retry_after_and_the_largest_wins() -> None:
    resets = {"x-ratelimit-reset": "5", "x-ratelimit-reset-ms": "9000"}
    assert requested_wait_s(resets, NOW, 429) == 9
    assert requested_wait_s({**resets, "retry-after": "2"}, NOW, 429) == 2
    assert requested_wait_s({**resets, "retry-after": "nonsense"}, NOW, 429) is None


def test_a_reset_may_be_a_unix_time() -> None:
    assert requested_wait_s({"x-ratelimit-reset": str(int(NOW.timestamp()) + 40)}, NOW, 429) == 40
    assert requested_wait_s({"x-ratelimit-reset-ms": str((int(NOW.timestamp()) + 40) * 1000)}, NOW, 429) == 40


def test_a_limit_of_the_api_counts_only_when_it_is_exhausted() -> None:
    headers = {
        "anthropic-ratelimit-requests-remaining": "3",
        "anthropic-ratelimit-requests-reset": "2026-11-21T13:00:00Z",
        "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-input-tokens-reset": "2026-11-21T12:00:20Z",
    }
    assert requested_wait_s(headers, NOW, 429) == 20


IN_30_S = {
    "date": {"retry-after": "Sat, 21 Nov 2026 12:00:30 GMT"},
    "reset": {
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2026-11-21T12:00:30Z",
    },
    "unix": {"x-ratelimit-reset": str(int(NOW.timestamp()) + 30)},
}
HERE = [NOW + timedelta(seconds=skew_s) for skew_s in (-1e9, -3600, -0.4, 0, 0.4, 3600, 1e9)]


@every_row("here", HERE)
@every_row("form", IN_30_S)
def test_a_moment_is_measured_by_the_servers_clock_whatever_ours_says(form: str, here: datetime) -> None:
    headers = {**IN_30_S[form], "date": "Sat, 21 Nov 2026 12:00:00 GMT"}
    assert requested_wait_s(headers, here, 429) == 30


@every_row("date", ["", "now", "Sat, 99 Nov 2026 12:00:00 GMT", "1763726400"])
def test_without_a_date_that_can_be_read_our_own_clock_measures(date: str) -> None:
    assert requested_wait_s({**IN_30_S["date"], "date": date}, NOW - timedelta(seconds=10), 429) == 40


def test_a_servers_clock_does_not_touch_a_number_of_seconds() -> None:
    assert requested_wait_s({"retry-after": "7", "date": "Thu, 01 Jan 1970 00:00:00 GMT"}, NOW, 429) == 7


NAMES = st.sampled_from(
    ["retry-after", "retry-after-ms", "x-ratelimit-reset", "x-ratelimit-reset-ms", "date"]
    + [f"anthropic-ratelimit-tokens-{part}" for part in ("remaining", "reset")]
)


@given(
    st.dictionaries(NAMES, st.one_of(st.text(), st.floats().map(str), st.integers().map(str), st.just("0")))
)
def test_no_header_makes_it_raise_or_give_a_senseless_wait(headers: dict[str, str]) -> None:
    requested_s = requested_wait_s(headers, NOW, 429)
    assert requested_s is None or 0 <= requested_s <= LONGEST_REQUESTED_S


@every_row(
    ("status", "remaining", "requested_s"),
    [(429, None, 30), (429, "0", 30), (429, "5", 30), (529, None, None), (500, "5", None), (503, "0", 30)],
)
def test_a_reset_without_a_name_counts_only_where_that_limit_is_exhausted(
    status: int, remaining: str | None, requested_s: float | None
) -> None:
    left = {} if remaining is None else {"x-ratelimit-remaining": remaining}
    assert requested_wait_s({"x-ratelimit-reset": "30", **left}, NOW, status) == requested_s
    assert requested_wait_s({"x-ratelimit-reset-ms": "30000", **left}, NOW, status) == requested_s


@every_row(("status", "requested_s"), [(429, 20), (529, None)])
def test_a_limit_of_the_api_that_tells_no_remainder_counts_for_a_429_alone(
    status: int, requested_s: float | None
) -> None:
    headers = {"anthropic-ratelimit-tokens-reset": "2026-11-21T12:00:20Z"}
    assert requested_wait_s(headers, NOW, status) == requested_s
