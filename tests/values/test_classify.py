"""The table of the retry specification, row by row. The class depends on fields and never on text."""

from __future__ import annotations

import pytest

from ralph.api.error_body import stream_error
from ralph.values.errors import (
    AgentError,
    Api,
    ErrorClass,
    FailureKind,
    HttpError,
    Json,
    NetworkCause,
    StreamParse,
    StreamTransient,
    classify_error,
    failure_kind,
    outcome_of,
)
from ralph.values.outcome import Outcome
from tests.rows import every_row

T, P = ErrorClass.TRANSIENT, ErrorClass.PERMANENT


def http(status: int, **fields: object) -> HttpError:
    return HttpError(status, None, "", **fields)  # type: ignore[arg-type]


@every_row("status", range(300, 600))
def test_every_status_has_the_class_of_the_table(status: int) -> None:
    expected = T if status in (408, 409, 429) or status >= 500 else P
    assert classify_error(http(status)) is expected


def test_should_retry_overrides_the_status_both_ways() -> None:
    assert classify_error(http(400, should_retry=True)) is T
    assert classify_error(http(529, should_retry=False)) is P


def test_what_must_not_be_retried_now_is_for_a_later_run_where_it_passes_with_time() -> None:
    """The run ends with exit code 75, so that a loop waits. Errors that do not pass with time keep their own exit
    code.
    """
    for status in (429, 500, 529):
        assert outcome_of(http(status, should_retry=False)) is Outcome.API_UNAVAILABLE, status
    assert outcome_of(http(400, should_retry=False)) is Outcome.API_REJECTED
    assert outcome_of(http(401, should_retry=False)) is Outcome.AUTH


SPEND_CODES = ["enforced_spend_limit_reached", "contract_spend_limit_reached", "insufficient_quota"]


@every_row("code", SPEND_CODES)
@every_row("status", [400, 429, 500])
def test_a_spend_limit_is_permanent_in_any_status_whatever_the_server_advises(code: str, status: int) -> None:
    error = http(status, error_code=code, should_retry=True)
    assert classify_error(error) is P
    assert failure_kind(error) is FailureKind.USAGE_LIMIT
    assert outcome_of(error) is Outcome.AUTH


TRANSIENT_TYPES = ["overloaded_error", "api_error", "rate_limit_error", "timeout_error", "conflict_error"]


@every_row("error_type", [*TRANSIENT_TYPES, "something_new", None])
def test_stream_errors_that_may_pass_are_transient_unknown_and_absent_types_too(
    error_type: str | None,
) -> None:
    fields = {"message": "m"} if error_type is None else {"type": error_type, "message": "m"}
    error = stream_error({"type": "error", "error": fields})
    assert isinstance(error, StreamTransient)
    assert classify_error(error) is T


PERMANENT_TYPES = [
    *("invalid_request_error", "authentication_error", "permission_error", "not_found_error"),
    *("request_too_large", "billing_error", "exceed_context_size_error"),
]


@every_row("status", [400, 405, 407, 415, 429, 451, 500, 501, 502, 503])
def test_an_error_inside_a_stream_means_what_its_status_would_mean(status: int) -> None:
    error = stream_error({"error": {"message": "m", "type": "ForeignError", "code": status}})
    assert (classify_error(error), failure_kind(error)) == (
        classify_error(http(status)),
        failure_kind(http(status)),
    )
    assert classify_error(error) is (T if status == 429 or status >= 500 else P)
    assert error.error_type == "ForeignError"  # type: ignore[attr-defined]


@every_row("error_type", PERMANENT_TYPES)
def test_stream_errors_that_reject_the_request_are_permanent(error_type: str) -> None:
    error = stream_error({"type": "error", "error": {"type": error_type, "message": "m"}})
    assert isinstance(error, StreamParse)
    assert classify_error(error) is P


@every_row("body", [{"error": "text"}, {"error": None}, {}, {"error": {"type": 7, "message": None}}])
def test_a_shapeless_stream_error_is_transient(body: dict[str, object]) -> None:
    assert classify_error(stream_error(body)) is T


CAUSES = {
    NetworkCause.TIMEOUT: T,
    NetworkCause.REFUSED: T,
    NetworkCause.RESET: T,
    NetworkCause.UNREACHABLE: T,
    NetworkCause.PROTOCOL_GARBAGE: T,
    NetworkCause.DNS_TEMPORARY: T,
    NetworkCause.DNS_UNKNOWN_HOST: P,
    NetworkCause.CERTIFICATE: P,
    NetworkCause.BAD_URL: P,
    NetworkCause.UNSENDABLE: P,
    NetworkCause.TLS: T,
    NetworkCause.NOT_PERMITTED: T,
    NetworkCause.SHORTAGE: T,
    NetworkCause.OTHER: T,
}


@every_row("cause", NetworkCause)
def test_no_answer_at_all_goes_by_its_cause(cause: NetworkCause) -> None:
    assert classify_error(Api(cause)) is CAUSES[cause]


def test_broken_protocol_and_broken_json_are_permanent() -> None:
    assert classify_error(StreamParse("x")) is P
    assert classify_error(Json("x")) is P


def test_classification_ignores_numbers_in_the_text() -> None:
    assert classify_error(HttpError(400, None, "error 500 429 529 overloaded_error timeout")) is P
    assert classify_error(StreamParse("overloaded_error 529")) is P


def test_something_that_is_none_of_the_five_is_a_bug() -> None:
    with pytest.raises(TypeError):
        classify_error(AgentError())


OVERFLOWS = [
    http(413),
    http(400, message="prompt is too long: 208310 tokens > 200000 maximum"),
    http(400, message="Input is too long for requested model."),
    http(400, message="input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000"),
    HttpError(400, None, '{"error":{"code":400,"type":"exceed_context_size_error","n_ctx":4096}}'),
    http(400, message="This model's maximum context length is 4096 tokens."),
    http(400, message="the request exceeds the available context size, try increasing it"),
    http(400, message="No room.", error_type="exceed_context_size_error"),
    http(400, message="No room.", error_type="invalid_request_error", error_code="context_length_exceeded"),
    http(500, message="No room.", error_code="context_length_exceeded", should_retry=True),
    StreamParse("prompt is too long", "invalid_request_error"),
    StreamParse("too large", "request_too_large"),
    StreamParse("No room.", "exceed_context_size_error"),
    StreamParse("No room.", None, "context_length_exceeded"),
]


@every_row("error", OVERFLOWS)
def test_context_overflow_is_never_retried_and_is_a_limit(error: AgentError) -> None:
    assert failure_kind(error) is FailureKind.CONTEXT_OVERFLOW
    assert classify_error(error) is P
    assert outcome_of(error) is Outcome.LIMIT_REACHED


IN_STREAM_BY_STATUS = [
    (400, FailureKind.INVALID_REQUEST, P),
    (401, FailureKind.AUTH, P),
    (402, FailureKind.BILLING, P),
    (404, FailureKind.NOT_FOUND, P),
    (413, FailureKind.CONTEXT_OVERFLOW, P),
    (429, FailureKind.RATE_LIMIT, T),
    (500, FailureKind.SERVER, T),
    (502, FailureKind.SERVER, T),
    (503, FailureKind.OVERLOADED, T),
    (504, FailureKind.TIMEOUT, T),
    (7, FailureKind.STREAM, T),
    (4290, FailureKind.STREAM, T),
    ("unknown_code", FailureKind.STREAM, T),
    ("server_error", FailureKind.SERVER, T),
    ("slow_down", FailureKind.OVERLOADED, T),
    ("rate_limit_exceeded", FailureKind.RATE_LIMIT, T),
    ("content_filter", FailureKind.INVALID_REQUEST, P),
    ("model_not_found", FailureKind.NOT_FOUND, P),
]


@every_row(("code", "kind", "expected"), IN_STREAM_BY_STATUS)
@every_row("error_type", ["SomethingOfItsOwn", "None", None])
def test_an_in_stream_error_of_an_unknown_type_goes_by_the_status_in_its_code(
    code: object, kind: FailureKind, expected: ErrorClass, error_type: str | None
) -> None:
    for number in (code, str(code)):
        error = stream_error({"error": {"type": error_type, "message": "m", "code": number}})
        assert (failure_kind(error), classify_error(error)) == (kind, expected)


def test_a_known_type_in_a_stream_counts_more_than_the_status_beside_it() -> None:
    error = stream_error({"error": {"type": "overloaded_error", "message": "m", "code": 400}})
    assert classify_error(error) is T


@every_row("code", [*SPEND_CODES, "context_length_exceeded"])
def test_a_code_that_decides_is_permanent_in_a_stream_of_whatever_type(code: str) -> None:
    for fields in ({"code": code}, {"details": {"error_code": code}}):
        error = stream_error({"error": {"type": "rate_limit_error", "message": "m", **fields}})
        assert classify_error(error) is P
        assert failure_kind(error) in (FailureKind.USAGE_LIMIT, FailureKind.CONTEXT_OVERFLOW)


LOW_CREDIT = "Your credit balance is too low to access the Anthropic API."
SPEND = "You have reached your specified workspace API usage limits. You will regain access on 2026-12-01."

OUTCOMES = [
    (http(400), Outcome.API_REJECTED),
    (http(404), Outcome.API_REJECTED),
    (http(302), Outcome.API_REJECTED),
    (http(422), Outcome.API_REJECTED),
    (http(400, message=LOW_CREDIT), Outcome.AUTH),
    (http(401), Outcome.AUTH),
    (http(402), Outcome.AUTH),
    (http(403), Outcome.AUTH),
    (http(407), Outcome.AUTH),
    (http(400, message=SPEND), Outcome.AUTH),
    (http(429, message="You have reached your API usage limits: x"), Outcome.AUTH),
    (http(429), Outcome.API_UNAVAILABLE),
    (http(503), Outcome.API_UNAVAILABLE),
    (http(529), Outcome.API_UNAVAILABLE),
    (StreamTransient("cut"), Outcome.API_UNAVAILABLE),
    (StreamParse("odd"), Outcome.API_REJECTED),
    (StreamParse("no", "authentication_error"), Outcome.AUTH),
    (Json("bad"), Outcome.API_REJECTED),
    (Api(NetworkCause.REFUSED), Outcome.API_UNAVAILABLE),
    (Api(NetworkCause.CERTIFICATE), Outcome.API_REJECTED),
]


@every_row(("error", "outcome"), OUTCOMES)
def test_a_final_error_ends_the_run_with_its_outcome(error: AgentError, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome
