"""The faults of the network and of servers in every dialect: each row of the fault table that depends on the form of an answer."""

from __future__ import annotations

import json
import time
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.api.reception import EVENT_BYTES
from ralph.values.answer import MalformedCall, ToolCall
from ralph.values.errors import (
    AgentError,
    ErrorClass,
    FailureKind,
    HttpError,
    Json,
    StreamParse,
    StreamTransient,
    classify_error,
    failure_kind,
    is_bad_key,
    is_damaged,
)
from ralph.values.events import ClockFired, Notice, ResponseDiscarded, StreamReceived
from tests.api.answers.pieces import PieceClient, Pieces, split
from tests.api.dialects.spoken import CALLS, JSON, SPOKEN, TEXT, Spoken, text_only
from tests.api.harness import KEY, Rig, http_answer, limits, read_request, reset
from tests.rows import every_row

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from ralph.values.answer import Answer

SHORT_S = 0.15
MEANT = tuple(ToolCall(*one) for one in CALLS)


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, PieceClient]]:
    made = {spoken.api: PieceClient(spoken.api) for spoken in SPOKEN}
    yield made
    for one in made.values():
        one.rig.close()


def failure(client: PieceClient, body: bytes, content_type: str = "text/event-stream") -> AgentError:
    with pytest.raises(AgentError) as caught:
        client.receive([body], content_type)
    return caught.value


def discarded(rig: Rig) -> int:
    return len(rig.events.of(ResponseDiscarded))


def error_event(**fields: Any) -> bytes:
    return f"data: {json.dumps({'error': fields})}\n\n".encode()


@every_row("spoken", SPOKEN)
def test_a6_in_each_dialect_an_answer_cut_anywhere_is_none(clients, spoken: Spoken) -> None:
    client = clients[spoken.api]
    assert client.receive([spoken.stream]).calls == MEANT
    last = len(spoken.stream) - len(spoken.events[-1])
    for length in (*range(0, last, 7), last, last + 20, len(spoken.stream) - 2):
        before = discarded(client.rig)
        assert isinstance(failure(client, spoken.stream[:length]), StreamTransient)
        has_begun = length >= len(b"".join(spoken.events[: spoken.begun]))
        assert discarded(client.rig) - before == has_begun


@every_row("spoken", SPOKEN)
def test_a7_in_each_dialect_a_reset_inside_an_answer_discards_it_and_one_after_it_changes_nothing(
    raw_server, rig, spoken: Spoken
) -> None:
    bodies = iter([spoken.stream, b"".join(spoken.events[:-2])])

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        body = next(bodies)
        size = b"%x\r\n" % (len(body) + 100)  # more was promised than ever comes
        sock.sendall(http_answer(size + body, headers="transfer-encoding: chunked\r\n"))
        reset(sock)

    client = rig(raw_server(serve), speaks=spoken.api)
    assert client.send().calls == MEANT
    with pytest.raises(StreamTransient):
        client.send()
    assert discarded(client) == 1


@every_row("spoken", SPOKEN)
@every_row(("comment", "clock"), [(b"", "bytes idle"), (b": OPENROUTER PROCESSING\n\n", "progress idle")])
def test_a8_a9_in_each_dialect_silence_and_comments_alone_end_at_their_clock(
    raw_server, rig, spoken: Spoken, comment: bytes, clock: str
) -> None:
    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(http_answer(b"".join(spoken.events[:3])))
        while comment:
            sock.sendall(comment)  # raises when the client has left
            time.sleep(0.03)
        sock.recv(1)

    patient = limits(bytes_idle_s=SHORT_S if not comment else 3, progress_idle_s=SHORT_S if comment else 3)
    client = rig(raw_server(serve), speaks=spoken.api, limits=patient)
    with pytest.raises(StreamTransient, match=clock):
        client.send()
    assert [event.clock for event in client.events.of(ClockFired)] == [clock]


@every_row("spoken", SPOKEN)
def test_a10_in_each_dialect_an_event_that_is_too_large_is_refused(clients, spoken: Spoken) -> None:
    endless = [spoken.events[0], b'data: {"x": "' + b"y" * EVENT_BYTES]
    with pytest.raises(StreamParse, match="larger than"):
        clients[spoken.api].receive(endless)


@every_row("spoken", SPOKEN)
def test_a12_in_each_dialect_json_that_does_not_parse_is_damage_wherever_it_stands(
    clients, spoken: Spoken
) -> None:
    client = clients[spoken.api]
    for place in range(len(spoken.events)):
        broken = spoken.events[place].replace(b"}\n\n", b"\n\n")
        before = discarded(client.rig)
        error = failure(client, b"".join((*spoken.events[:place], broken, *spoken.events[place:])))
        assert isinstance(error, Json)
        assert is_damaged(error)
        assert discarded(client.rig) - before == (place >= spoken.begun)


# HTML standard, 9.2.6: without data, nothing is dispatched.
NO_EVENTS = (b"retry: 5\n\n", b"id: 7\n\n", b": a comment\n\n", b"id: 7\nretry: 5\n\n: a comment\n\n")


@every_row("spoken", SPOKEN)
@every_row("nothing", NO_EVENTS)
def test_in_each_dialect_fields_and_comments_alone_are_no_event(
    clients, spoken: Spoken, nothing: bytes
) -> None:
    client = clients[spoken.api]

    def received(pieces: list[bytes]) -> list[Any]:
        kinds = StreamReceived, Notice
        before = [len(client.rig.events.of(kind)) for kind in kinds]
        assert client.receive(pieces).calls == MEANT
        return [client.rig.events.of(kind)[count:] for kind, count in zip(kinds, before, strict=True)]

    plain = received([*spoken.events])
    assert received([nothing + event for event in spoken.events]) == plain
    for place in range(len(spoken.events)):
        assert received([*spoken.events[:place], nothing, *spoken.events[place:]]) == plain


@every_row("spoken", SPOKEN)
@every_row("content_type", ["Text/Event-Stream", "TEXT/EVENT-STREAM; Charset=UTF-8"])
@every_row("mark", [b"", b"\xef\xbb\xbf"])
def test_in_each_dialect_a_media_type_has_no_case_and_a_first_byte_order_mark_is_skipped(
    clients, spoken: Spoken, content_type: str, mark: bytes
) -> None:
    client = clients[spoken.api]
    before = len(client.rig.events.of(Notice))
    assert client.receive([mark + spoken.stream], content_type).calls == MEANT
    assert len(client.rig.events.of(Notice)) == before


@every_row("spoken", SPOKEN)
@every_row("content_type", ["text/html", "text/event-stream"])
def test_a13_in_each_dialect_a_page_is_shown_by_its_title(clients, spoken: Spoken, content_type: str) -> None:
    error = failure(clients[spoken.api], b"<html><title>Sign in</title>" + b"x" * 500, content_type)
    assert isinstance(error, StreamParse)
    assert "Sign in" in str(error)


@every_row("spoken", SPOKEN)
def test_a13_in_each_dialect_a_stream_of_another_api_is_named_as_none(clients, spoken: Spoken) -> None:
    for other in SPOKEN:
        if other is not spoken:
            error = failure(clients[spoken.api], other.stream)
            assert isinstance(error, StreamParse)
            assert "not an event stream" in str(error)


@every_row("spoken", SPOKEN)
def test_a15_in_each_dialect_a_whole_answer_is_taken_with_a_notice_and_nothing_else_is(
    clients, spoken: Spoken
) -> None:
    client = clients[spoken.api]
    before = len(client.rig.events.of(Notice))
    answer = client.receive([json.dumps(spoken.whole).encode()], JSON)
    assert (answer.text, answer.calls, answer.stop_reason) == (TEXT, MEANT, "tool_use")
    assert len(client.rig.events.of(Notice)) == before + 1
    for nothing, label in product((b"", b" \n\n"), (JSON, "text/event-stream", "text/html")):
        assert isinstance(failure(client, nothing, label), StreamTransient)
    for body in (b'{"object": "list", "data": []}', b"[]", b'{"output": 3}', b'{"choices": 3}'):
        assert isinstance(failure(client, body, JSON), StreamParse)
    assert isinstance(failure(client, json.dumps(spoken.whole).encode()[:-9], JSON), StreamParse)


@every_row("spoken", SPOKEN)
def test_a15_a16_in_each_dialect_an_error_inside_a_200_goes_by_its_fields(clients, spoken: Spoken) -> None:
    client = clients[spoken.api]
    for fields, kind in IN_ANSWERS:
        assert failure_kind(failure(client, json.dumps({"error": fields}).encode(), JSON)) is kind, fields
        assert failure_kind(failure(client, json.dumps([{"error": fields}]).encode(), JSON)) is kind, fields
        for place in range(len(spoken.events)):
            before = discarded(client.rig)
            error = failure(client, b"".join((*spoken.events[:place], error_event(**fields))))
            assert (failure_kind(error), is_damaged(error)) == (kind, False), fields
            assert discarded(client.rig) - before == (place >= spoken.begun)


IN_ANSWERS: list[tuple[dict[str, Any], FailureKind]] = [
    ({"message": "m", "type": "server_error", "code": None}, FailureKind.SERVER),
    ({"message": "m", "type": "tokens", "code": "rate_limit_exceeded"}, FailureKind.RATE_LIMIT),
    ({"message": "m", "type": "insufficient_quota", "code": "insufficient_quota"}, FailureKind.USAGE_LIMIT),
    ({"message": "m", "type": "invalid_request_error", "code": None}, FailureKind.INVALID_REQUEST),
    ({"message": "m", "code": "context_length_exceeded"}, FailureKind.CONTEXT_OVERFLOW),
    ({"message": "m", "code": "invalid_api_key"}, FailureKind.AUTH),
    ({"message": "m", "code": "model_not_found"}, FailureKind.NOT_FOUND),
    ({"message": "Insufficient Balance", "code": "invalid_request_error"}, FailureKind.USAGE_LIMIT),
    ({"message": "m", "code": 502, "metadata": {"raw": "overloaded"}}, FailureKind.SERVER),
    ({"message": "m", "code": "429"}, FailureKind.RATE_LIMIT),
    ({"message": "m", "code": 503, "status": "UNAVAILABLE"}, FailureKind.OVERLOADED),
    ({"message": "m", "code": "tool_use_failed", "status_code": 400}, FailureKind.STREAM),
    ({"message": "m", "code": "content_filter", "status": 400}, FailureKind.INVALID_REQUEST),
]


class Status(NamedTuple):
    status: int
    body: Any
    kind: FailureKind
    wait_s: float | None = None
    headers: dict[str, str] = {}  # noqa: RUF012  # no test changes it


def error(message: str = "m", **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


def google(code: int, message: str, status: str, *details: dict[str, str]) -> list[dict[str, Any]]:
    kinds = [{"@type": "type.googleapis.com/google.rpc", **one} for one in details]
    return [error(message, code=code, status=status, details=kinds)]


Kind = FailureKind
INVALID = "invalid_request_error"
FILTERED = {
    "param": "prompt",
    "status": 400,
    "innererror": {
        "code": "ResponsibleAIPolicyViolation",
        "content_filter_result": {"jailbreak": {"filtered": True}},
    },
}
TOO_LARGE = "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 12328"
XAI_EMPTY = "Your team x has either used all available credits or reached its monthly spending limit."
OF_A_MINUTE = {
    "x-ratelimit-remaining-requests": "9",
    "x-ratelimit-reset-requests": "1m0s",
    "x-ratelimit-remaining-tokens": "0",
    "x-ratelimit-reset-tokens": "6.5s",
}
LIMITED = error(type="tokens", code="rate_limit_exceeded")
QUOTA = error(type="insufficient_quota", code="insufficient_quota")
STATUSES = {
    "OpenAI, a rate limit": Status(
        429, LIMITED, Kind.RATE_LIMIT, 1.5, {"retry-after-ms": "1500", "retry-after": "2"}
    ),
    "OpenAI, tokens of a minute": Status(429, LIMITED, Kind.RATE_LIMIT, 6.5, OF_A_MINUTE),
    "OpenAI, no credit": Status(429, QUOTA, Kind.USAGE_LIMIT, None, {"retry-after": "1"}),
    "OpenAI, a full context": Status(
        400, error(type=INVALID, code="context_length_exceeded"), Kind.CONTEXT_OVERFLOW
    ),
    "OpenAI, a bad key": Status(401, error(type=INVALID, code="invalid_api_key"), Kind.AUTH),
    "OpenAI, no such model": Status(400, error(type=INVALID, code="model_not_found"), Kind.NOT_FOUND),
    "OpenAI, a field that is wrong": Status(
        400, error(type=INVALID, param="x", code="unknown_parameter"), Kind.INVALID_REQUEST
    ),
    "OpenAI, reasoning of another organization": Status(
        400, error(code="invalid_encrypted_content"), Kind.INVALID_REQUEST
    ),
    "Azure, no such deployment": Status(
        404, error("This deployment does not exist.", code="DeploymentNotFound"), Kind.NOT_FOUND
    ),
    "Azure, a rate limit": Status(
        429, error("Please retry after 26 seconds.", code="429"), Kind.RATE_LIMIT, 26.0
    ),
    "Azure, a filtered prompt": Status(
        400, error("The response was filtered.", code="content_filter", **FILTERED), Kind.INVALID_REQUEST
    ),
    "Gemini, a rate limit": Status(
        429,
        google(429, "You exceeded your quota.", "RESOURCE_EXHAUSTED", {"retryDelay": "34.5s"}),
        Kind.RATE_LIMIT,
        34.5,
    ),
    "Gemini, a bad key": Status(
        400, google(400, "API key not valid.", "INVALID_ARGUMENT", {"reason": "API_KEY_INVALID"}), Kind.AUTH
    ),
    "Gemini, an overload": Status(
        503, google(503, "The model is overloaded.", "UNAVAILABLE"), Kind.OVERLOADED
    ),
    "Mistral, a rate limit": Status(
        429,
        {"object": "error", "message": "m", "type": "rate_limited", "code": "1300", "raw_status_code": 429},
        Kind.RATE_LIMIT,
    ),
    "DeepSeek, no credit": Status(402, error("Insufficient Balance", code=INVALID), Kind.USAGE_LIMIT),
    "DeepSeek, no such model": Status(
        400, error("Model Not Exist", type=INVALID, code=INVALID), Kind.NOT_FOUND
    ),
    "xAI, no credit": Status(429, {"code": "Some resource", "error": XAI_EMPTY}, Kind.USAGE_LIMIT),
    "xAI, a bad key": Status(
        400, {"code": "Client specified", "error": "Incorrect API key provided: na***ys."}, Kind.AUTH
    ),
    "Groq, a call that it could not read": Status(
        400, error(type=INVALID, code="tool_use_failed"), Kind.STREAM
    ),
    "Groq, a request beyond its minute": Status(
        413, error(TOO_LARGE, type="tokens", code="rate_limit_exceeded"), Kind.CONTEXT_OVERFLOW
    ),
    "OpenRouter, no credit": Status(402, error("Insufficient credits.", code=402), Kind.USAGE_LIMIT),
    "OpenRouter, its provider": Status(
        502, error("Provider returned error", code=502, metadata={"raw": "bad gateway"}), Kind.SERVER
    ),
    "a gateway's page": Status(504, "<html>Gateway Timeout</html>", Kind.TIMEOUT),
}


@every_row("spoken", SPOKEN)
@every_row(Status._fields, STATUSES.values())
def test_a14_a17_a18_a19_a20_in_each_dialect_a_status_goes_by_the_vendors_fields(
    spoken: Spoken, status: int, body: Any, kind: FailureKind, wait_s: float | None, headers: dict[str, str]
) -> None:
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    transport = httpx.MockTransport(
        lambda _: httpx.Response(status, headers=headers, stream=Pieces([content]))
    )
    client = Rig("http://api.test", speaks=spoken.api, transport=transport)
    try:
        with pytest.raises(HttpError) as caught:
            client.send()
    finally:
        client.close()
    error = caught.value
    assert (failure_kind(error), error.retry_after) == (kind, wait_s)
    transient = {FailureKind.RATE_LIMIT, FailureKind.OVERLOADED, FailureKind.SERVER, FailureKind.STREAM}
    is_transient = kind in transient | {FailureKind.TIMEOUT}
    assert classify_error(error) is (ErrorClass.TRANSIENT if is_transient else ErrorClass.PERMANENT)
    assert is_bad_key(error) == (kind is FailureKind.AUTH)


@every_row("spoken", SPOKEN)
def test_a19_in_each_dialect_a_key_in_an_error_is_redacted(clients, spoken: Spoken) -> None:
    error = failure(clients[spoken.api], error_event(message=f"the key {KEY[1]} is not known"))
    assert KEY[1] not in str(error)


@given(st.sampled_from(SPOKEN), st.data())
def test_a21_in_each_dialect_moved_doubled_and_missing_events_make_no_other_call(
    spoken: Spoken, data: st.DataObject
) -> None:
    *events, last = spoken.events
    place = data.draw(st.integers(0, len(events) - 2))
    match data.draw(st.sampled_from(["twice", "missing", "swapped"])):
        case "twice":
            events.insert(place, events[place])
        case "missing":
            del events[place]
        case _:
            events[place], events[place + 1] = events[place + 1], events[place]
    client = PieceClient(spoken.api)
    try:
        answer = client.receive([*events, last])
    except (StreamTransient, StreamParse):
        return
    finally:
        client.rig.close()
    assert {*runnable(answer)} <= {(one.name, json.dumps(one.arguments)) for one in MEANT}
    assert len(answer.calls) <= len(MEANT)


def runnable(answer: Answer) -> list[tuple[str, str]]:
    return [(one.name, json.dumps(one.arguments)) for one in answer.calls if isinstance(one, ToolCall)]


@every_row("spoken", SPOKEN)
def test_a22_in_each_dialect_events_and_fields_of_the_future_are_ignored(clients, spoken: Spoken) -> None:
    news = [
        b'data: {"type": "response.future", "x": [1]}\n\n',
        b'event: future\ndata: {"y": null}\n\n',
        b"data:\n\n",
    ]
    for place in range(len(spoken.events)):
        events = [*spoken.events[:place], *news, *spoken.events[place:]]
        events = [event.replace(b'"index": 0', b'"index": 0, "future": {"x": 1}') for event in events]
        answer = clients[spoken.api].receive(events)
        assert (answer.text, answer.calls, answer.warnings) == (TEXT, MEANT, ())


@every_row("spoken", SPOKEN)
def test_a23_in_each_dialect_bytes_that_are_no_utf8_are_a_warning_in_text_and_never_in_a_call(
    clients, spoken: Spoken
) -> None:
    client = clients[spoken.api]
    answer = client.receive([b"".join(text_only(spoken.api, "Ja: ä")).replace("ä".encode(), b"\xff")])
    assert answer.text == "Ja: \ufffd"
    assert any("invalid UTF-8" in warning for warning in answer.warnings)
    assert isinstance(failure(client, spoken.stream.replace("ä".encode(), b"\xff")), StreamTransient)
    whole = json.dumps(spoken.whole, ensure_ascii=False).encode().replace(b"\\\\u00e4", b"\xff")
    damaged = whole.replace("ä".encode(), b"\xff")
    assert damaged.count(b"\xff")
    assert isinstance(failure(client, damaged, JSON), StreamTransient)


@given(
    st.sampled_from(SPOKEN),
    st.lists(st.integers(0, 9999), max_size=30),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_in_each_dialect_an_answer_is_the_same_however_its_bytes_are_split(
    spoken: Spoken, at: list[int], line_end: str
) -> None:
    stream = spoken.stream.replace(b"\n", line_end.encode())
    client = PieceClient(spoken.api)
    try:
        answer = client.receive(split(stream + line_end.encode(), at))
    finally:
        client.rig.close()
    assert (answer.text, answer.calls) == (TEXT, MEANT)


@every_row("spoken", SPOKEN)
def test_d3_in_each_dialect_a_call_that_the_limit_has_cut_is_malformed(clients, spoken: Spoken) -> None:
    stream = spoken.stream
    for end, cut in (
        (b'"stop_reason": "tool_use"', b'"stop_reason": "max_tokens"'),
        (b'"finish_reason": "tool_calls"', b'"finish_reason": "length"'),
        (b'"type": "response.completed"', b'"type": "response.incomplete"'),
        (b'"status": "completed", "error"', b'"status": "incomplete", "error"'),
    ):
        stream = stream.replace(end, cut)
    answer = clients[spoken.api].receive([stream])
    assert answer.stop_reason == "max_tokens"
    assert [type(one) for one in answer.calls] == [ToolCall, MalformedCall]


@every_row("spoken", SPOKEN)
def test_d7_in_each_dialect_a_filtered_answer_is_a_refusal_that_runs_nothing(clients, spoken: Spoken) -> None:
    answer = clients[spoken.api].receive(text_only(spoken.api, "No.", "content_filter"))
    assert (answer.stop_reason, answer.text, answer.calls) == ("refusal", "No.", ())


@every_row("spoken", SPOKEN)
def test_d10_in_each_dialect_a_reason_of_the_future_ends_the_answer(clients, spoken: Spoken) -> None:
    answer = clients[spoken.api].receive(text_only(spoken.api, "Done.", "future"))
    assert answer.text == "Done."
    assert answer.stop_reason in {"future", "max_tokens"}
