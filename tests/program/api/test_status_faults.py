"""Error statuses, as a user meets them (A14, A17, A18, A20)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Fault, Step, ToolUse, Turn
from tests.program.faulty import HELLO, linux_only, peak_mb
from tests.program.several import at, settings

if TYPE_CHECKING:
    from ralph.mock_api import RecordedRequest


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


def test_a17_a_date_is_measured_by_the_servers_own_clock_exits_0(ralph, serve) -> None:
    def requested(skew_s: int) -> Fault:
        there = datetime.now(UTC) + timedelta(seconds=skew_s)
        headers = {
            "date": format_datetime(there, usegmt=True),
            "retry-after": format_datetime(there + timedelta(seconds=1), usegmt=True),
        }
        return Fault(status=429, headers=headers)

    serve(requested(-3600), requested(3600), HELLO)
    ran = ralph("hi")
    assert ran.code == 0
    assert ran.stderr.count("[retry] Using retry-after: 1s") == 2


@pytest.mark.parametrize("requested", ["nan", "9" * 35])
def test_a17_a_requested_wait_that_is_no_time_is_not_believed_exits_124(ralph, serve, requested) -> None:
    server = serve(Fault(status=429, headers={"retry-after": requested}), HELLO)
    # Whatever the wait is, it does not fit; and however slow the machine, there is time for the request.
    ralph.user_file.write_text("[retry]\npolicy = 'custom'\nbase_delay_s = 21\nmax_delay_s = 0\n")
    ran = ralph("hi", "--max-time", "20")
    assert (ran.code, len(server.requests)) == (124, 1)
    waits = "leaves no time to wait " + ("2777777h46m40s" if requested[0] == "9" else "21s")
    assert waits in ran.last_line


def test_a17_a_requested_wait_beyond_the_patient_budget_ends_at_once_and_names_the_time_exits_75(
    ralph, serve
) -> None:
    server = serve(Fault(status=429, headers={"retry-after": "40000"}))
    ran = ralph("hi", "--retry", "patient", "--output-format", "json")
    assert (ran.code, len(server.requests)) == (75, 1)
    assert ran.result["retry_after_s"] == 40000
    assert "the server asks for a wait of 11h6m40s" in ran.stderr


@pytest.mark.parametrize("status", [500, 529])
def test_a18_an_outage_that_lasts_is_recorded_in_the_result_exits_75(ralph, serve, status) -> None:
    ralph.retry_quickly()
    server = serve(Step(fault=Fault(status=status), repeat="forever"))
    ran = ralph("hi", "--output-format", "json")
    assert (ran.code, len(server.requests)) == (75, 5)
    assert (ran.result["retries"], ran.result["api_error_status"]) == (4, status)
    assert "[retry] Failed after 4 retries" in ran.stderr


def messages_of(request: RecordedRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = request.json()["messages"]
    return messages


def test_a20_d8_a_history_of_2_mb_that_is_refused_as_too_large_is_summed_up_exits_0(ralph, serve) -> None:
    (ralph.cwd / "large.txt").write_text(("x" * 120 + "\n") * 4000)
    reads = [
        Turn([ToolUse("Read", {"file_path": "large.txt", "offset": 4 * turn + n}) for n in range(4)])
        for turn in range(3)
    ]
    left = iter([*reads, Turn("All that was read is x."), Turn("Done.")])
    too_large = Fault(status=413)  # the API's limit is 32 MB
    server = serve(script=lambda request, _: too_large if request.body_bytes > 2_500_000 else next(left))
    # In a window that takes as many in one turn.
    window = str(settings(ralph, at("main", server.base_url, "local", context_window=100_000_000)))
    ran = ralph("count the lines, please", "--config", window, "--output-format", "stream-json")
    assert ran.code == 0
    refused = next(request for request in server.requests if request.body_bytes > 2_500_000)
    digest, fresh = server.requests[-2:]
    assert server.requests[-3] is refused, "asked once"
    assert digest.body_bytes < 2 * 1024 * 1024
    for request in (digest, fresh):
        assert "count the lines, please" in [block["text"] for block in messages_of(request)[0]["content"]]
    assert "All that was read is x." in json.dumps(messages_of(fresh))
    [boundary] = [event for event in ran.objects if event.get("subtype") == "compact_boundary"]
    assert boundary["compact_metadata"]["trigger"] == "auto"
    assert ran.result["retries"] == 0, "an overflow is none"
