"""Invalid answers, as a user meets them (A12, A13, A15, A16, A21, A23)."""

from __future__ import annotations

import json

import pytest

from ralph.mock_api import Fault
from tests.api.harness import START, end, http_answer, sse, text_block, tool_block
from tests.program.conftest import KEY
from tests.program.faulty import APPEND, DONE, effects, run_with, stream

GARBLED = http_answer(sse(START) + f'data: {{"type": "oops {KEY}\n\n'.encode())


def test_a12_a_third_damaged_answer_of_a_turn_ends_the_run_and_is_shown_redacted_exits_69(
    ralph, answer_with
) -> None:
    server = answer_with(stream(APPEND), GARBLED)
    ran = ralph("hi")
    assert (ran.code, len(server.requests)) == (69, 4)
    assert "undecodable JSON in the stream" in ran.last_line
    assert "oops [redacted]" in ran.last_line
    assert KEY not in ran.stderr


def test_a12_the_retries_between_damaged_answers_count_together_exits_0_or_75(ralph, answer_with) -> None:
    ralph.retry_quickly()
    busy = http_answer(b"", status="529 Overloaded")
    server = answer_with(busy, GARBLED, *[busy] * 3, stream(DONE))
    assert (ralph("hi").code, len(server.requests)) == (0, 6)
    server = answer_with(busy, GARBLED, *[busy] * 4, stream(DONE))
    assert (ralph("hi").code, len(server.requests)) == (75, 6), "one budget of retries"
    server = answer_with(GARBLED, busy)
    assert (ralph("hi").code, len(server.requests)) == (75, 6)


COUNTS = [("9" * 4200, "stream-json"), ("-1", "json"), ('"many"', "text")]


@pytest.mark.parametrize(("number", "output"), COUNTS)
def test_a15_counts_that_no_answer_can_have_are_no_crash_exits_0(ralph, answer_with, number, output) -> None:
    start = {"type": "message_start", "message": {"id": "m1", "usage": {"input_tokens": 12321}}}
    body = sse(start, *text_block(0, "ok"), *end()).replace(b"12321", number.encode())
    answer_with(http_answer(body))
    ran = ralph("hi", "--output-format", output)
    assert (ran.code, "Traceback" in ran.stderr) == (0, False)


PORTAL = Fault(
    status=200,
    body="<html><title>Please log in</title><body>Hotel Wi-Fi</body></html>",
    content_type="text/html",
)


def test_a13_a_captive_portal_is_asked_thrice_and_shown_by_type_title_and_text_exits_69(ralph, serve) -> None:
    code, requests, stderr = run_with(ralph, serve, *[PORTAL] * 3)
    assert (code, requests) == (69, 3)
    for shown in ("Please log in", "text/html", "Hotel Wi-Fi"):
        assert shown in stderr


def test_a15_a_rejection_sent_with_200_is_not_asked_again_exits_77(ralph, serve) -> None:
    error = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
    code, requests, _ = run_with(ralph, serve, Fault(status=200, body=error))
    assert (code, requests) == (77, 1)


def test_a15_a_whole_message_with_an_empty_error_beside_it_is_an_answer_exits_0(ralph, serve) -> None:
    message = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "Hello."}],
        "stop_reason": "end_turn",
        "error": None,
    }
    code, requests, _ = run_with(ralph, serve, Fault(status=200, body=message))
    assert (code, requests) == (0, 1)


BROKEN_PROTOCOLS = {
    "call twice": (sse(START, *tool_block(0, "{}"), *tool_block(1, "{}"), *end()), "came twice"),
    "call out of order": (sse(START, *tool_block(0, "{}")[1:], *end()), "was not started"),
}


@pytest.mark.parametrize(("body", "says"), BROKEN_PROTOCOLS.values(), ids=BROKEN_PROTOCOLS.keys())
def test_a21_calls_that_come_twice_or_out_of_order_are_asked_for_again_exits_0_or_69(
    ralph, answer_with, body, says
) -> None:
    server = answer_with(http_answer(body), stream(DONE), http_answer(body))
    assert (ralph("hi").code, len(server.requests)) == (0, 2)
    ran = ralph("hi")
    assert (ran.code, len(server.requests)) == (69, 5)
    assert says in ran.last_line


def test_a23_a_damaged_tool_input_is_asked_again_and_never_run_exits_0(ralph, answer_with) -> None:
    command = json.dumps({"command": "echo line >> effects"})
    whole = sse(START, *tool_block(0, command), *end("tool_use"))
    damaged = whole.replace(b"effects", b"eff\xff\xfects")
    ralph.retry_quickly()
    server = answer_with(http_answer(damaged), http_answer(whole), stream(DONE))
    ran = ralph("hi")
    assert (ran.code, len(server.requests)) == (0, 3)
    assert effects(ralph) == ["line"]
    assert [path.name for path in ralph.cwd.iterdir()].count("effects") == 1
    assert "invalid UTF-8 inside a tool's input" in ran.stderr


def test_a23_damaged_text_is_shown_with_a_warning_exits_0(ralph, answer_with) -> None:
    answer_with(http_answer(sse(START, *text_block(0, "caf?"), *end()).replace(b"caf?", b"caf\xe9")))
    ran = ralph("hi")
    assert (ran.code, ran.stdout) == (0, "caf\ufffd\n")
    assert "invalid UTF-8" in ran.stderr
