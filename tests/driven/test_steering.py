"""A driver's lines: each request is answered once and in order, and no exception is raised where nobody could catch
it.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from ralph.driven import steering
from ralph.driven.control_channel import END_OF_INPUT, EndOfInput, TooLong
from ralph.driven.control_lines import UserMessage, failure, success
from ralph.driven.steering import MOST_QUEUED_MESSAGES
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.values.controls import PermissionMode
from ralph.values.events import (
    ClockFired,
    Heartbeat,
    Notice,
    PermissionModeChanged,
    ResponseDiscarded,
    StreamReceived,
)
from ralph.values.outcome import Outcome
from ralph.values.ports import TIMED_OUT, GuardRefused, Interrupted, InterruptRequested, RetryAborted
from tests.driven.driver_lines import ACCEPTED, EXHAUSTED, FAILED, RECOVERED, SCHEDULED, Desk, request, user


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_needs_nothing_done_succeeds(desk) -> None:
    assert desk.answer_to("initialize", hooks=None) == {}


def test_no_line_is_taken_before_the_session_is_open() -> None:
    desk = Desk(is_open=False)
    waiter = InboxWaiter(desk.clock, desk.inbox, driver=desk.steering)
    desk.steering.mailbox.put(request("get_status"))
    assert waiter.wait(waiter.mailbox(), until_s=0, waiting_for="a thread") is TIMED_OUT
    assert desk.responses == []
    desk.steering.open(desk.models)
    waiter.wait(waiter.mailbox(), until_s=0, waiting_for="the next message")
    assert [response["response"]["request_id"] for response in desk.responses] == ["r1"]


def test_what_asks_for_nothing_that_ralph_lacks_is_accepted(desk) -> None:
    nothing: dict[str, Any] = {"hooks": {}, "agents": None, "skills": ["s"], "excludeDynamicSections": True}
    assert desk.answer_to("initialize", **nothing) == {}
    assert desk.steering.missing_guard is None


def test_nothing_runs_when_a_driver_would_count_on_something_in_vain(desk) -> None:
    desk.steering.begin_work()
    refused = desk.answer_to("initialize", toolAliases={"a": "b"}, plugins=["p"])
    assert refused == "initialize: ralph does not offer plugins, toolAliases; leave that out"
    assert desk.steering.missing_guard == f"{refused}. Nothing runs without what was asked for"
    assert desk.answer_to("initialize") == desk.steering.missing_guard


GUARDS: list[dict[str, Any]] = [
    {"agents": {"reviewer": {"prompt": "x"}}},
    {"canUseTool": True},
    {"can_use_tool": {"enabled": True}},
    {"permissionPromptToolName": "stdio"},
    {"permissions": {"deny": ["Bash"]}},
    {"disallowedTools": ["Bash"]},
]


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: next(iter(guard)))
def test_a_guard_that_cannot_be_honoured_is_refused_for_good_and_stops_the_message(desk, guard) -> None:
    desk.steering.begin_work()
    assert desk.answer_to("initialize", **guard).startswith(f'initialize asked for "{next(iter(guard))}"')
    assert "nothing runs without a guard that was asked for" in desk.steering.missing_guard
    desk.steering.end_work()
    desk.steering.begin_work()
    for again in (guard, {"agents": None}, {}):
        assert desk.answer_to("initialize", **again) == desk.steering.missing_guard


def test_the_message_at_work_is_stopped_once_when_a_guard_is_refused(desk) -> None:
    desk.steering.begin_work()
    with pytest.raises(GuardRefused) as caught:
        desk.steering.handle(request("initialize", **GUARDS[0]))
    assert caught.value.outcome is Outcome.CONFIG
    desk.steering.handle(request("initialize", **GUARDS[0]))
    desk.steering.end_work()
    desk.steering.handle(request("initialize", **GUARDS[0]))


@pytest.mark.parametrize("mode", ["plan", "bypassPermissions", "auto", "default", "acceptEdits", "dontAsk"])
def test_a_permission_mode_is_set_and_then_told(desk, mode) -> None:
    assert desk.answer_to("set_permission_mode", mode=mode) == {"mode": mode}
    assert desk.controls.permission_mode == mode
    told, *notices = desk.events.events
    assert told == PermissionModeChanged(mode)
    asking = mode in ("default", "acceptEdits")
    assert ["nobody is asked here" in one.text for one in notices] == [True] * asking


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, '"request.mode" must be the name of a permission mode, not null'),
        ({"mode": ["plan"]}, '"request.mode" must be the name of a permission mode, not a list'),
        (
            {"mode": "Plan"},
            "\"request.mode\" must be one of plan, bypassPermissions, auto, default, acceptEdits, dontAsk, not 'Plan'",
        ),
        (
            {"mode": "x" * 99},
            '"request.mode" must be one of plan, bypassPermissions, auto, default, acceptEdits, dontAsk, not a text',
        ),
    ],
)
def test_a_permission_mode_that_cannot_be_kept_changes_nothing(desk, fields, error) -> None:
    desk.answer_to("set_permission_mode", mode="plan")
    desk.events.events.clear()
    assert desk.answer_to("set_permission_mode", **fields).startswith(error)
    assert desk.controls.permission_mode == "plan"
    assert desk.events.events == []


def test_a_run_that_was_started_in_plan_stays_in_it(desk) -> None:
    desk.controls.permission_mode = PermissionMode.PLAN
    desk.controls.stays_in_plan = True
    assert desk.answer_to("set_permission_mode", mode="plan") == {"mode": "plan"}
    assert "was started with --permission-mode plan" in desk.answer_to("set_permission_mode", mode="default")
    assert desk.controls.permission_mode == "plan"


def test_an_unknown_request_is_an_error_that_lists_the_known_ones(desk) -> None:
    assert desk.answer_to("reboot") == (
        'unknown control request "reboot"; known are initialize, interrupt, set_model, set_permission_mode, '
        "set_max_thinking_tokens, get_context_usage, mcp_status, mcp_message, set_auto_retry, abort_retry, get_status"
    )
    assert desk.answer_to("rewind_files", user_message_id="u1").startswith("File rewinding is not enabled")
    assert "--mcp-config" in desk.answer_to("mcp_set_servers", servers={})
    assert len(desk.answer_to("x" * 100_000)) < 250


@pytest.mark.parametrize("enabled", [False, True])
def test_auto_retry_is_switched_for_the_loop_to_see(desk, enabled) -> None:
    desk.controls.auto_retry = not enabled
    assert desk.answer_to("set_auto_retry", enabled=enabled) == {"enabled": enabled}
    assert desk.controls.auto_retry is enabled


@pytest.mark.parametrize(
    ("fields", "given"), [({}, "null"), ({"enabled": "no"}, '"no"'), ({"enabled": 0}, "0")]
)
def test_auto_retry_takes_true_and_false_only(desk, fields, given) -> None:
    assert (
        desk.answer_to("set_auto_retry", **fields) == f'"request.enabled" must be true or false, not {given}'
    )
    assert desk.controls.auto_retry is True


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"model": "second"}, "claude-second-2"),
        ({"model": "default"}, "claude-first-1"),
        ({"model": None}, "claude-first-1"),
        ({}, "claude-first-1"),
    ],
)
def test_a_model_is_requested_by_its_full_name_and_taken_once(desk, fields, model) -> None:
    assert desk.answer_to("set_model", **fields) == {"model": model}
    assert desk.answer_to("get_status")["model"] == model
    assert [desk.controls.take_requested_model() for _ in range(2)] == [model, None]
    desk.models.serving = "claude-fallback-3"
    assert desk.answer_to("get_status")["model"] == "claude-fallback-3", (
        "who is asked, whatever was requested"
    )


@pytest.mark.parametrize(
    ("requested", "error"),
    [
        ("third", "unknown model third; models: first, second"),
        *(
            (
                requested,
                f'"request.model" must be a model\'s name of at most 200 characters, "default" or null, not {shown}',
            )
            for requested, shown in [
                (" ", '" "'),
                ("a\nb", '"a\\nb"'),
                (["first"], "a list"),
                ("x" * 201, "a text of 201 characters"),
            ]
        ),
        ("x" * 200, f"unknown model {'x' * 200}; models: first, second"),
    ],
)
def test_a_model_that_cannot_be_had_changes_nothing(desk, requested, error) -> None:
    desk.answer_to("set_model", model="second")
    assert desk.answer_to("set_model", model=requested) == error
    assert desk.answer_to("get_status")["model"] == "claude-second-2"
    assert desk.controls.take_requested_model() == "claude-second-2"


def test_an_interrupt_is_answered_and_then_raised_once_for_each_message(desk) -> None:
    desk.steering.begin_work()
    with pytest.raises(InterruptRequested, match="interrupted by a control request") as caught:
        desk.steering.handle(request("interrupt"))
    assert desk.responses == [success("r1", {"interrupted": True, "still_queued": []})]
    assert isinstance(caught.value, Interrupted)
    assert caught.value.outcome.exit_code(caught.value.signal_number) == 130
    assert caught.value.outcome is Outcome.INTERRUPTED
    desk.responses.clear()
    assert desk.answer_to("interrupt") == {"interrupted": True, "still_queued": []}
    assert desk.raised_by("interrupt") is None, "what cleans up is left in peace"
    desk.steering.end_work()
    assert desk.answer_to("interrupt") == {"interrupted": False, "still_queued": []}
    desk.steering.begin_work()
    assert isinstance(desk.raised_by("interrupt"), InterruptRequested)


def test_an_idle_run_has_nothing_to_interrupt_or_abort(desk) -> None:
    desk.progress.emit(SCHEDULED)
    assert desk.answer_to("interrupt") == {"interrupted": False, "still_queued": []}
    assert desk.answer_to("abort_retry") == {"aborted": False}
    assert desk.raised_by("interrupt") is None
    assert desk.raised_by("abort_retry") is None


def test_aborting_is_answered_and_then_raised_once_while_a_chain_is_open(desk) -> None:
    desk.steering.begin_work()
    assert desk.answer_to("abort_retry") == {"aborted": False}
    desk.progress.emit(SCHEDULED)
    with pytest.raises(RetryAborted, match=r"^Retry cancelled$") as caught:
        desk.steering.handle(request("abort_retry"))
    assert caught.value.outcome is Outcome.API_UNAVAILABLE
    assert desk.responses == [success("r1", {"aborted": True})]
    desk.responses.clear()
    assert desk.raised_by("abort_retry") is None
    assert desk.raised_by("interrupt") is None, "the message is ending already"


@pytest.mark.parametrize("close", [RECOVERED, EXHAUSTED])
@pytest.mark.parametrize("between", [[], [StreamReceived({})], [FAILED, SCHEDULED]])
def test_a_chain_can_be_aborted_until_it_is_closed(desk, between, close) -> None:
    desk.steering.begin_work()
    for event in (SCHEDULED, *between):
        desk.progress.emit(event)
    assert desk.answer_to("get_status")["retry"] is not None
    desk.progress.emit(close)
    assert desk.answer_to("abort_retry") == {"aborted": False}
    assert desk.answer_to("get_status")["retry"] is None
    desk.progress.emit(SCHEDULED)
    assert isinstance(desk.raised_by("abort_retry"), RetryAborted)


def test_the_status_of_an_idle_run(desk) -> None:
    assert desk.answer_to("get_status") == {
        "state": "idle",
        "turn": 0,
        "queued_messages": 0,
        "auto_retry": True,
        "retry": None,
        "model": "claude-first-1",
        "waiting_for": None,
    }


def test_the_status_of_a_run_at_work(desk) -> None:
    desk.steering.begin_work()
    desk.controls.auto_retry = False
    for event in (ACCEPTED, ACCEPTED, SCHEDULED):
        desk.progress.emit(event)
    desk.steering.handle(user("and then"))
    desk.clock.seconds = 5.5
    desk.steering.handle(request("get_status"), waiting_for="retry 2 of 4")
    assert desk.responses == [
        success(
            "r1",
            {
                "state": "working",
                "turn": 2,
                "queued_messages": 1,
                "auto_retry": False,
                "retry": {
                    "attempt": 2,
                    "max_retries": 4,
                    "is_waiting": True,
                    "seconds_left": 2.5,
                    "message": "529 overloaded",
                },
                "model": "claude-first-1",
                "waiting_for": "retry 2 of 4",
            },
        )
    ]


def test_turns_are_counted_afresh_for_each_message(desk) -> None:
    for turns in (2, 1):
        desk.steering.begin_work()
        for _ in range(turns):
            desk.progress.emit(ACCEPTED)
        desk.steering.end_work()
        assert desk.answer_to("get_status")["turn"] == turns, "those of the last message, until the next"


@pytest.mark.parametrize(("now_s", "left_s"), [(0, 8), (7.99, 0.01), (8, 0), (60, 0)])
def test_a_retry_waits_until_its_time_has_come(desk, now_s, left_s) -> None:
    desk.progress.emit(SCHEDULED)
    desk.clock.seconds = now_s
    retry = desk.answer_to("get_status")["retry"]
    assert (retry["is_waiting"], retry["seconds_left"]) == (left_s > 0, left_s)


@pytest.mark.parametrize(
    ("event", "is_waiting"),
    [
        (Heartbeat("retry 2 of 4", 30), True),
        (Notice("hi"), True),
        (StreamReceived({}), False),
        (FAILED, False),
        (ClockFired("connect", 10), False),
        (ResponseDiscarded("m1"), False),
    ],
)
def test_a_retry_waits_until_its_attempt_gives_a_sign(desk, event, is_waiting) -> None:
    desk.progress.emit(SCHEDULED)
    desk.progress.emit(event)
    assert desk.answer_to("get_status")["retry"]["is_waiting"] is is_waiting


@pytest.mark.parametrize(
    ("item", "error"),
    [
        (b"hello", "the line is no JSON: Expecting value: line 1 column 1 (char 0)"),
        (TooLong(32 * 2**20), "the line is longer than 32 MiB and was dropped"),
        (EndOfInput("Input/output error"), "cannot read standard input: Input/output error"),
    ],
)
def test_what_cannot_be_taken_is_an_error_without_an_id(desk, item, error) -> None:
    desk.steering.handle(item)
    assert desk.responses == [failure(None, error)]


def test_a_malformed_request_is_answered_by_its_id(desk) -> None:
    desk.steering.handle(b'{"type":"control_request","request_id":"r9"}')
    error = '"request" must be an object with a "subtype", not null'
    assert desk.responses == [failure("r9", error)]


@pytest.mark.parametrize("item", [b"", b'{"type":"keep_alive"}', END_OF_INPUT])
def test_what_asks_for_nothing_is_not_answered(desk, item) -> None:
    desk.steering.handle(item)
    assert desk.responses == []


def test_messages_are_queued_up_to_a_number(desk) -> None:
    for number in range(MOST_QUEUED_MESSAGES):
        desk.steering.handle(user(f"message {number}"))
    assert desk.responses == []
    desk.steering.handle(user("one too many"))
    error = "the message was dropped: 100 messages are waiting already; send it again after a result"
    assert desk.responses == [failure(None, error)]
    waiter = InboxWaiter(SystemClock())
    assert desk.steering.next_message(waiter) == UserMessage("message 0")
    desk.steering.handle(user("the last"))
    desk.steering.handle(END_OF_INPUT)
    taken = [desk.steering.next_message(waiter) for _ in range(MOST_QUEUED_MESSAGES)]
    expected = [*(f"message {number}" for number in range(1, MOST_QUEUED_MESSAGES)), "the last"]
    assert taken == list(map(UserMessage, expected))
    assert desk.steering.next_message(waiter) is None


def test_messages_are_queued_up_to_a_size_and_one_whatever_its_size(desk, monkeypatch) -> None:
    assert steering.MOST_QUEUED_BYTES == 67_108_864
    monkeypatch.setattr(steering, "MOST_QUEUED_BYTES", most_bytes := 65_536)
    half = user("x" * (most_bytes // 2 - len(user(""))))
    desk.steering.handle(half)
    desk.steering.handle(half)
    assert desk.responses == []
    desk.steering.handle(user("x"))
    error = (
        "the message was dropped: 65,536 bytes of messages are waiting already; send it again after a result"
    )
    assert desk.responses.pop() == failure(None, error)
    waiter = InboxWaiter(SystemClock())
    for _ in range(2):
        desk.steering.next_message(waiter)
    desk.steering.handle(user("x" * (most_bytes + 1)))
    assert desk.answer_to("get_status")["queued_messages"] == 1


def test_messages_that_came_with_a_signal_are_not_lost(desk) -> None:
    steering = desk.steering
    waiter = InboxWaiter(desk.clock, desk.inbox, driver=steering)
    for line in (user("one"), request("get_status"), user("two"), END_OF_INPUT):
        steering.mailbox.put(line)
    waiter.inbox.note_signal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        steering.next_message(waiter)
    assert not steering.has_message
    steering.take_last_lines(waiter)
    assert [steering.next_message(waiter).content for _ in range(2)] == ["one", "two"]
    assert steering.next_message(waiter) is None
    assert len(desk.responses) == 1
