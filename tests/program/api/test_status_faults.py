"""Error statuses, as a user meets them (A14, A17, A18, A20)."""

from __future__ import annotations

from ralph.mock_api import Fault, Step
from tests.program.faulty import HELLO, linux_only, peak_mb


@linux_only
def test_a14_an_error_body_of_1_gb_is_neither_read_nor_held_exits_0(ralph, serve) -> None:
    ralph.retry_quickly()
    server = serve(Fault(status=502, body="<h1>Bad gateway</h1>", huge_body_bytes=10**15), HELLO)
    code, mb = peak_mb(ralph, "hi")
    assert (code, len(server.requests)) == (0, 2)
    assert mb < 60


def test_a17_the_wait_is_what_the_server_requested_to_the_millisecond_exits_0(ralph, serve) -> None:
    server = serve(Fault(status=429, headers={"retry-after": "0.25"}), HELLO)
    ran = ralph("hi")
    assert ran.code == 0
    first, second = server.requests
    assert second.monotonic_s - first.monotonic_s >= 0.25
    assert "[retry] Using retry-after: 0.25s" in ran.stderr


def test_a17_a_requested_wait_beyond_the_patient_budget_ends_at_once_and_names_the_time_exits_75(
    ralph, serve
) -> None:
    server = serve(Fault(status=429, headers={"retry-after": "40000"}))
    ran = ralph("hi", "--retry", "patient", "--output-format", "json")
    assert (ran.code, len(server.requests)) == (75, 1)
    assert ran.result["retry_after_s"] == 40000
    assert "the server asks for a wait of 11h6m40s" in ran.stderr


def test_a18_an_outage_that_lasts_is_recorded_in_the_result_exits_75(ralph, serve) -> None:
    ralph.retry_quickly()
    server = serve(Step(fault=Fault(status=529), repeat="forever"))
    ran = ralph("hi", "--output-format", "json")
    assert (ran.code, len(server.requests)) == (75, 5)
    assert (ran.result["retries"], ran.result["api_error_status"]) == (4, 529)
    assert "[retry] Failed after 4 retries" in ran.stderr
