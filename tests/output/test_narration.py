"""The lines for people on standard error."""

from __future__ import annotations

from typing import Any

from ralph.output.narration import LONGEST_SUMMARY, Narration, describe_call
from ralph.output.stream_json import event_of, system_fields
from ralph.values import events as ev
from ralph.values.answer import ToolCall, ToolOutput, ToolResult
from ralph.values.outcome import Outcome
from ralph.values.usage import RunUsage, TokenUsage
from tests.output.ended import ended
from tests.rows import every_row

DISCARDED = "[discarded] the answer above does not count"


def narrate(*events: ev.Event, is_quiet: bool = False, has_color: bool = False) -> list[str]:
    narration = Narration(is_quiet=is_quiet, has_color=has_color)
    return [line for event in events for line in narration.lines(event)]


def failed(error: str, *, kind: str = "server") -> ev.AttemptEnded:
    return ev.AttemptEnded(1, 1, "main", "m", 0.5, TokenUsage(), kind=kind, error=error)


def retry(**fields: Any) -> ev.RetryScheduled:
    values = {
        "attempt": 1,
        "max_retries": 4,
        "wait_s": 2.0,
        "status": 529,
        "error_class": "HttpError",
        "kind": "overloaded",
        "message": "HTTP 529: Overloaded",
        **fields,
    }
    return ev.RetryScheduled(**values)


def streamed(*texts: str) -> list[ev.Event]:
    deltas = [
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}} for text in texts
    ]
    return [ev.StreamReceived(delta) for delta in deltas]


def accepted(*texts: str) -> ev.AnswerAccepted:
    return ev.AnswerAccepted({"content": [{"type": "text", "text": text} for text in texts]})


@every_row(
    ("event", "lines"),
    [
        (retry(), ["[retry] Attempt 1/4: 529 — waiting 2s"]),
        (
            retry(attempt=2, status=None, error_class="Api", wait_s=0.5),
            ["[retry] Attempt 2/4: Api — waiting 0.5s"],
        ),
        (
            retry(status=429, wait_s=7.0, requested_wait_s=7.0),
            ["[retry] Attempt 1/4: 429 — waiting 7s", "[retry] Using retry-after: 7s"],
        ),
        (
            retry(status=None, error_class="StreamTransient"),
            ["[retry] Attempt 1/4: StreamTransient — waiting 2s"],
        ),
        (ev.ResponseRestarted(), ["[retry] Retrying from beginning of response..."]),
        (
            retry(wait_s=0.0, requested_wait_s=0.0),
            ["[retry] Attempt 1/4: 529 — waiting 0s", "[retry] Using retry-after: 0s"],
        ),
        (retry(attempt=21, max_retries=21, wait_s=1800.0), ["[retry] Attempt 21/21: 529 — waiting 1800s"]),
        (retry(wait_s=1234567.0), ["[retry] Attempt 1/4: 529 — waiting 1234567s"]),
        (retry(wait_s=1 / 3), ["[retry] Attempt 1/4: 529 — waiting 0.333s"]),
        (ev.RetryRecovered(3, 14.0), ["[retry] Recovered after 3 retries"]),
        (ev.RetryExhausted(4, 30.0, "HTTP 529: no"), ["[retry] Failed after 4 retries: HTTP 529: no"]),
    ],
)
def test_the_lines_of_a_retry_chain_are_exactly_these(event, lines) -> None:
    assert narrate(event) == lines


def test_every_failed_attempt_is_shown_also_when_quiet() -> None:
    for is_quiet in (False, True):
        assert narrate(failed("HTTP 500: oops"), is_quiet=is_quiet) == ["[error] HTTP 500: oops"]


def test_with_several_targets_an_error_names_its_own() -> None:
    started = ev.RunStarted("/w", "m", (), "KEY", targets=("main", "spare"))
    assert narrate(started, failed("HTTP 500: oops"))[1:] == [
        "[target] in this order: main, spare",
        "[error] main: HTTP 500: oops",
    ]


def test_quiet_leaves_only_errors_and_the_outcome() -> None:
    call = ToolCall("t1", "Bash", {"command": "ls"})
    events: list[ev.Event] = [
        ev.RunStarted("/w", "m", (), "KEY"),
        *streamed("hello\n"),
        accepted("hello"),
        ev.ToolStarted(call),
        ev.ToolFinished(call, ToolResult("t1", ToolOutput("no", is_error=True)), 1.0),
        retry(),
        ev.RetryRecovered(1, 2.0),
        ev.RetryExhausted(1, 2.0, "e"),
        ev.ResponseDiscarded("m1"),
        ev.ClockFired("connect", 10),
        ev.Heartbeat("x", 30),
        ev.Notice("n"),
    ]
    assert narrate(*events, is_quiet=True) == []
    assert len(narrate(ended(), is_quiet=True)) == 1


@every_row(
    "event",
    [retry(), ev.RetryRecovered(1, 2), ev.RetryExhausted(1, 2, "e"), failed("e"), ev.Notice("n"), ended()],
)
def test_colour_is_the_same_text_between_two_codes(event) -> None:
    (plain,) = narrate(event)
    (colored,) = narrate(event, has_color=True)
    assert "\x1b" not in plain
    assert colored.startswith("\x1b[")
    assert colored.endswith("\x1b[0m")
    assert plain in colored


def test_the_models_text_appears_line_by_line_as_it_streams() -> None:
    narration = Narration(is_quiet=False, has_color=True)
    shown = [list(narration.lines(event)) for event in streamed("Hel", "lo\nwor", "ld\n\nend")]
    assert shown == [[], ["Hello"], ["world", ""]]
    assert list(narration.lines(ev.StreamReceived({"type": "content_block_stop", "index": 0}))) == ["end"]
    assert list(narration.lines(accepted("Hello\nworld\n\nend"))) == []


def test_thinking_and_tool_input_are_not_shown() -> None:
    deltas = [
        {"type": "thinking_delta", "thinking": "x\n"},
        {"type": "input_json_delta", "partial_json": "{\n"},
    ]
    assert narrate(*(ev.StreamReceived({"type": "content_block_delta", "delta": d}) for d in deltas)) == []


def test_text_already_shown_is_marked_discarded() -> None:
    discarded = ev.ResponseDiscarded("m1")
    assert narrate(*streamed("half a sen"), discarded, retry()) == [
        "half a sen",
        DISCARDED,
        "[retry] Attempt 1/4: 529 — waiting 2s",
    ]


def test_the_text_of_a_retry_is_shown_below_the_line_that_the_chain_recovered() -> None:
    narration = Narration(is_quiet=False, has_color=False)
    scheduled = list(narration.lines(retry()))
    broken = [*streamed("half a line\nof what breaks off"), ev.ResponseDiscarded("m1"), failed("cut")]
    assert [line for event in broken for line in narration.lines(event)] == ["[error] cut"]
    assert list(narration.lines(retry())) == scheduled
    assert [line for event in streamed("It ", "is\nwhole") for line in narration.lines(event)] == []
    assert list(narration.lines(ev.RetryRecovered(2, 4.0))) == [
        "[retry] Recovered after 2 retries",
        "It is",
        "whole",
    ]
    assert list(narration.lines(accepted("It is\nwhole"))) == [], "once"
    assert [line for event in streamed("the next\n") for line in narration.lines(event)] == ["the next"]


def test_the_text_of_a_chain_that_is_given_up_is_not_shown() -> None:
    exhausted = ev.RetryExhausted(1, 2.0, "stopped by SIGTERM")
    lines = narrate(retry(), *streamed("half"), ev.ResponseDiscarded("m1"), exhausted, ended())
    assert "half" not in "\n".join(lines)
    assert DISCARDED not in lines


def test_after_a_broken_stream_an_answer_that_does_not_stream_is_still_said() -> None:
    lines = narrate(*streamed("half"), ev.ResponseDiscarded("m1"), accepted("whole"))
    assert lines == ["half", DISCARDED, "whole"]


@every_row(
    ("event", "line"),
    [
        (ev.RunStarted("/w", "claude", (), "KEY"), "[ralph] claude in /w (sandbox: none)"),
        (
            ev.RunStarted(
                "/w", "claude", (), "KEY", sandbox="landlock", gpus=("/dev/nvidia0", "/dev/dri/renderD129")
            ),
            "[ralph] claude in /w (sandbox: landlock, GPU: nvidia0 renderD129)",
        ),
        (ev.ToolStarted(ToolCall("t", "Bash", {"command": "ls\n -l"})), "[tool] Bash: ls -l"),
        (ev.ClockFired("bytes idle", 90.0), "[clock] not a byte of the answer for 90s (clocks.bytes_idle_s)"),
        (ev.Heartbeat("an answer from h", 30.4), "[wait] waiting for an answer from h, 30s so far"),
        (ev.Notice("careful"), "[notice] careful"),
    ],
)
def test_other_events_are_one_line_each(event, line) -> None:
    assert narrate(event) == [line]


@every_row(
    ("call", "line"),
    [
        (ToolCall("t", "Read", {"file_path": "a.py", "limit": 3}), "Read: a.py"),
        (ToolCall("t", "Bash", {"command": "x" * 500}), "Bash: " + "x" * LONGEST_SUMMARY + " …"),
        (ToolCall("t", "Bash", {}), "Bash: "),
        (ToolCall("t", "Other", {"a": 1, "b": "c"}), "Other: a=1, b='c'"),
    ],
)
def test_a_call_is_described_by_its_telling_argument(call, line) -> None:
    assert describe_call(call) == line


def test_the_last_line_is_the_outcome_below_its_hints() -> None:
    run = ended(
        Outcome.API_UNAVAILABLE,
        errors=("first", "HTTP 529: Overloaded"),
        hints=("Wait.",),
        retries=4,
        waited_s=30.0,
        num_turns=2,
        usage=RunUsage().plus("unheard-of", TokenUsage(input=1234, output=5), None),
    )
    assert narrate(run) == [
        "[hint] Wait.",
        (
            "[ralph] api_unavailable (exit 75): HTTP 529: Overloaded "
            "[2 turns, 1.2s, 4 retries, 30s waited, 1,234 tokens in, 5 out, cost unknown]"
        ),
    ]
    assert narrate(ended()) == ["[ralph] completed [1 turn, 1.2s]"]


def test_a_model_cannot_move_the_readers_cursor_or_colour_the_screen() -> None:
    tricks = "a\x1b[2J\x1b]0;title\x07b\r\x9bc\tkept"
    assert narrate(*streamed(tricks + "\n")) == ["ab\tkept"]
    assert narrate(accepted(tricks)) == ["ab\tkept"]
    assert narrate(failed("server\x1b[31m says\nmore")) == ["[error] server says more"]


def test_a_server_cannot_forge_a_line_of_ours_or_flood_the_screen() -> None:
    error = "HTTP 400: bad\n[ralph] completed [1 turn]\n" + "x" * 5000
    for line in narrate(failed(error), ev.RetryExhausted(1, 2.0, error)):
        assert "\n" not in line
        assert len(line) < 1100
    (last,) = narrate(ended(Outcome.API_REJECTED, errors=(error,)))
    assert last.startswith("[ralph] api_rejected (exit 69): HTTP 400: bad [ralph] completed")
    assert len(last) < 1200


def test_an_unknown_event_that_looks_like_text_is_not_shown_as_the_models_words() -> None:
    future = {"type": "future_event", "delta": {"type": "text_delta", "text": "not said"}}
    narration = Narration(is_quiet=False, has_color=False)
    assert [*narration.lines(ev.StreamReceived(future)), *narration.lines(accepted())] == []


CALL = ToolCall("t1", "Bash", {"command": "make test"})


@every_row(
    ("event", "line"),
    [
        (ev.SyntheticRetry(1, 1, "empty"), "[turn] Synthetic retry 1/3: the answer was empty"),
        (
            ev.SyntheticRetry(1, 3, "thinking_only"),
            "[turn] Synthetic retry 3/3: the answer held thinking only",
        ),
        (
            ev.SyntheticRetry(1, 2, "no_report"),
            "[turn] Synthetic retry 2/3: the answer was not a final report",
        ),
        (ev.SyntheticRetry(1, 1, "of_tomorrow"), "[turn] Synthetic retry 1/3: of tomorrow"),
        (
            ev.MalformedCallRefused(1, "Bash", "There is no\ntool."),
            "[turn] Malformed call of Bash: There is no tool.",
        ),
        (
            ev.GuardTripped(4, "no_change", CALL, 2),
            "[guard] Not run (no change, 2 of 6 refusals): Bash: make test",
        ),
        (ev.FinalTurnEntered(4, "max_turns"), "[turn] Final turn: the turn limit is reached"),
        (ev.FinalTurnEntered(4, "context"), "[turn] Final turn: the context is full"),
        (ev.FinalTurnEntered(4, "report"), "[turn] Final turn: no valid final report came"),
        (
            ev.TurnsCollapsed(1, "report_failed", 10, 2),
            "[turn] At most one more turn follows (the limit was 10 turns): the final report was not accepted",
        ),
        (
            ev.TurnsCollapsed(1, "no_report", None, 2),
            "[turn] At most one more turn follows (there was no limit): the answer was not a final report",
        ),
        (ev.ReportAccepted("tool_call", "success", 1, 1, None), "[report] success, by tool call"),
        (
            ev.ReportAccepted("text", "success", 1, 0, "max_turns"),
            "[report] success, found in the text of an answer",
        ),
        (
            ev.ReportAccepted("synthetic", "failure", 1, 0, None),
            "[report] failure, written by ralph, because the model gave none",
        ),
    ],
)
def test_what_happens_in_a_turn_is_one_line_in_words(event: ev.Event, line: str) -> None:
    assert narrate(event) == [line]
    assert narrate(event, is_quiet=True) == []


def compacted(trigger: str = "threshold", source: str = "model") -> ev.ContextCompacted:
    return ev.ContextCompacted(trigger, source, 160_123, 4_567)


def test_a_summary_that_was_taken_is_no_answer_that_broke_off() -> None:
    taken = [*streamed("Half fixed."), compacted(), ev.ResponseDiscarded("msg_1")]
    assert narrate(*taken, accepted("whole, as JSON")) == [
        "Half fixed.",
        narrate(compacted())[0],
        "whole, as JSON",
    ]
    assert narrate(*streamed("No use."), ev.ResponseDiscarded("msg_1")) == ["No use.", DISCARDED]


@every_row(
    ("event", "line"),
    [
        (ev.BackgroundStarted("bash_1", "npm run\ndev"), "[background] bash_1 started: npm run dev"),
        (
            ev.BackgroundEnded("bash_1", "x", "", 0, "", 61.0),
            "[background] bash_1 ended with exit code 0 after 1m01s",
        ),
        (ev.BackgroundEnded("bash_1", "x", took_s=2.0), "[background] bash_1 ended after 2.0s"),
        (
            ev.BackgroundEnded("bash_1", "x", "", 143, "model", 2.0),
            "[background] bash_1 was stopped after 2.0s",
        ),
        (
            ev.BackgroundEnded("bash_1", "x", "", 143, "run", 2.0),
            "[background] bash_1 was stopped at the end of the run after 2.0s",
        ),
        (
            ev.BackgroundEnded("bash_1", "x", "", 137, "limit", 2.0),
            "[background] bash_1 was stopped at a limit after 2.0s",
        ),
    ],
)
def test_commands_in_the_background_have_a_line_each_time(event: ev.Event, line: str) -> None:
    assert narrate(event) == [line]
    fields = system_fields(event)
    assert fields is not None
    assert narrate(event_of(fields) or ev.Notice("")) == [line], "the page has it from the journal"
    assert narrate(event, is_quiet=True) == []
