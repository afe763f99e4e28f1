"""Every header in which a server may name a time, and every invalid value that it may contain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from ralph.api.error_body import LONGEST_REQUESTED_S, requested_wait_s
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
        (f"Sat, 21 Nov {'9' * 30} 12:00:30 GMT", None),
        ("-1", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("9" * 35, LONGEST_REQUESTED_S),
        ("1_0", None),
        ("\u0667", None),
        ("7, 7", 7),
        ("7, 9", None),
        ("Sat, 21 Nov 2026 12:00:30 GMT, Sat, 21 Nov 2026 12:00:30 GMT", 30),
        ("20s", 20),
        ("6m0s", 360),
        ("1h2m3.5s", 3723.5),
        ("250ms", 0.25),
        ("2026-11-21T12:00:30Z", 30),
        (str(int(NOW.timestamp()) + 30), 30),
        (str((int(NOW.timestamp()) + 30) * 1000), 30),
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
    assert requested_wait_s({**resets, "retry-after": "nonsense"}, NOW, 429) == 9


def test_a_reset_may_be_a_unix_time() -> None:
    assert requested_wait_s({"x-ratelimit-reset": str(int(NOW.timestamp()) + 40)}, NOW, 429) == 40
    assert requested_wait_s({"x-ratelimit-reset-ms": str((int(NOW.timestamp()) + 40) * 1000)}, NOW, 429) == 40


@every_row(
    ("name", "value", "requested_s"),
    [
        ("ratelimit-reset", "45", 45),
        ("x-ratelimit-reset-requests", "6m0s", 360),
        ("x-ratelimit-reset-tokens", "120ms", 0.12),
        ("anthropic-ratelimit-tokens-reset", str(int(NOW.timestamp()) + 40), 40),
        ("anthropic-ratelimit-unified-5h-reset", str(int(NOW.timestamp()) + 40), 40),
        ("x-ratelimit-limit-requests", "60", None),
        ("x-other-reset", "60", None),
    ],
)
def test_a_reset_has_the_name_and_the_form_of_its_vendor(
    name: str, value: str, requested_s: float | None
) -> None:
    assert requested_wait_s({name: value}, NOW, 429) == requested_s
    assert requested_wait_s({name: value}, NOW, 529) is None


@every_row(("status", "requested_s"), [("rejected", 40), ("allowed", None), ("allowed_warning", None)])
def test_a_limit_of_a_subscription_counts_only_when_it_is_the_one_that_refused(
    status: str, requested_s: float | None
) -> None:
    headers = {
        "anthropic-ratelimit-unified-7d-status": status,
        "anthropic-ratelimit-unified-7d-reset": str(int(NOW.timestamp()) + 40),
    }
    assert requested_wait_s(headers, NOW, 429) == requested_s


@every_row(
    ("value", "requested_s"),
    [
        ('"default";r=0;t=45', 45),
        ('"burst";r=9;t=1, "daily";r=0;t=3600', 3600),
        ('"default";r=50;t=30', None),
        ('"default";r=0', None),
        ("limit=10", None),
    ],
)
def test_the_limits_of_one_field_count_where_nothing_remains(value: str, requested_s: float | None) -> None:
    for status in (429, 503):
        assert requested_wait_s({"ratelimit": value}, NOW, status) == requested_s


def test_the_limit_of_tokens_does_not_stand_for_that_of_requests() -> None:
    headers = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "20s",
        "x-ratelimit-remaining-tokens": "9000",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert requested_wait_s(headers, NOW, 429) == 20


def in_a_body(error: object) -> float | None:
    return requested_wait_s({}, NOW, 429, body={"type": "error", "error": error})


@every_row(
    ("error", "requested_s"),
    [
        ({"retry_after": 60}, 60),
        ({"retryAfter": "60"}, 60),
        ({"retry_after_ms": 1500}, 1.5),
        ({"retry_after_seconds": 2.5}, 2.5),
        ({"resets_at": int(NOW.timestamp()) + 40}, 40),
        ({"resets_in_seconds": 40}, 40),
        ({"details": [{"@type": "x"}, {"@type": "google.rpc.RetryInfo", "retryDelay": "34s"}]}, 34),
        ({"metadata": {"headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}}}, 30),
        ({"metadata": {"headers": {"Retry-After": "30"}}}, 30),
        ({"retry_after": True}, None),
        ({"retry_after": -1}, None),
        ({"retry_after": {"seconds": 3}}, None),
        ({"details": {"error": {"details": {"retry_after": 3}}}}, None),
        ([], None),
    ],
)
def test_a_field_of_the_error_names_a_time(error: object, requested_s: float | None) -> None:
    assert in_a_body(error) == requested_s


def test_a_header_counts_more_than_a_field_and_a_message() -> None:
    body = {"retry_after": 60}
    assert requested_wait_s({"retry-after": "2"}, NOW, 429, body=body, message="retry in 9s") == 2
    assert requested_wait_s({}, NOW, 429, body=body, message="retry in 90s") == 90


@every_row(
    ("message", "requested_s"),
    [
        ("resets at 2026-11-21T12:00:30Z (2056)", 30),
        ("resets at 2026-11-21T21:00:00+08:00", 3600),
        ("Your limit will reset at 2026-11-21 13:00:00", 3600),
        ("You will regain access on 2026-11-22 at 00:00 UTC.", 43200),
        ("You will regain access on 2026-11-22.", 43200),
        ("Please retry in 58.5s.", 58.5),
        ("Please try again in 6m0s. Visit", 360),
        ("try again in 5 days 22 hours 11 minutes.", 511860),
        ("Please retry after 25 seconds.", 25),
        ("Individual quota reached. Resets in 141h28m14s.", 509294),
        (f"Claude AI usage limit reached|{int(NOW.timestamp()) + 40}", 40),
        ("Please try again later.", None),
        ("retry in 5 apples", None),
        ("it resets at noon", None),
    ],
)
def test_the_words_of_a_message_name_a_time(message: str, requested_s: float | None) -> None:
    assert requested_wait_s({}, NOW, 429, message=message) == requested_s


def test_a_limit_of_the_api_counts_only_when_it_is_exhausted() -> None:
    headers = {
        "anthropic-ratelimit-requests-remaining": "3",
        "anthropic-ratelimit-requests-reset": "2026-11-21T13:00:00Z",
        "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-input-tokens-reset": "2026-11-21T12:00:20Z",
    }
    assert requested_wait_s(headers, NOW, 429) == 20


FIELDS = st.sampled_from(
    ["error", "details", "metadata", "headers", "retry_after", "retryDelay", "resets_at", "x-ratelimit-reset"]
)
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


def test_a_date_that_came_twice_is_that_date() -> None:
    date = "Sat, 21 Nov 2026 12:00:00 GMT"
    assert (
        requested_wait_s({**IN_30_S["date"], "date": f"{date}, {date}"}, NOW - timedelta(hours=1), 429) == 30
    )


@every_row("date", ["", "now", "Sat, 99 Nov 2026 12:00:00 GMT", "1763726400"])
def test_without_a_date_that_can_be_read_our_own_clock_measures(date: str) -> None:
    assert requested_wait_s({**IN_30_S["date"], "date": date}, NOW - timedelta(seconds=10), 429) == 40


def test_a_servers_clock_does_not_touch_a_number_of_seconds() -> None:
    assert requested_wait_s({"retry-after": "7", "date": "Thu, 01 Jan 1970 00:00:00 GMT"}, NOW, 429) == 7


@given(
    st.recursive(
        st.none() | st.text() | st.floats() | st.integers(), lambda one: st.dictionaries(FIELDS, one)
    )
)
def test_no_body_makes_it_raise_or_give_a_senseless_wait(body: object) -> None:
    requested_s = requested_wait_s({}, NOW, 429, body=body, message=str(body))
    assert requested_s is None or 0 <= requested_s <= LONGEST_REQUESTED_S


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
