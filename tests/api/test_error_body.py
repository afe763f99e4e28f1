"""The facts in an error object, whichever server wrote it."""

from __future__ import annotations

from typing import Any

from ralph.api.error_body import ErrorFields, error_fields, out_of_list
from tests.rows import every_row


def error(**fields: Any) -> dict[str, Any]:
    return {"error": {"message": "m", **fields}}


FILTERED = {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {}}
ERROR_BODIES: dict[str, tuple[Any, ErrorFields]] = {
    "Anthropic": (
        {**error(type="api_error", details={"error_code": "c"}), "type": "error", "request_id": "r"},
        ErrorFields(type="api_error", code="c", message="m", request_id="r"),
    ),
    "OpenAI": (
        error(type="t", param=None, code="context_length_exceeded"),
        ErrorFields(type="t", code="context_length_exceeded", message="m"),
    ),
    "a code that decides nothing": (error(code="c"), ErrorFields(message="m")),
    "llama.cpp": (
        error(code=503, type="unavailable_error"),
        ErrorFields(type="unavailable_error", status=503, message="m"),
    ),
    "LiteLLM": (error(code="429"), ErrorFields(status=429, message="m")),
    "Ollama": ({"error": "m"}, ErrorFields(message="m")),
    "vLLM": (
        {"object": "error", "message": "m", "type": "RateLimitError", "code": 429},
        ErrorFields(type="RateLimitError", status=429, message="m"),
    ),
    "FastAPI": ({"detail": "m"}, ErrorFields(message="m")),
    "FastAPI validation": (
        {"detail": [{"loc": ["body", "n", 0], "msg": "a", "type": "missing"}, {"msg": "b"}]},
        ErrorFields(message="body.n.0: a; b"),
    ),
    "FastAPI with an object": ({"detail": {"error": "m"}}, ErrorFields(message="m")),
    "an error beside a message": ({"error": None, "message": "m", "type": "t"}, ErrorFields(message="m")),
    "nothing to say": (
        {"error": {"type": 3, "message": " ", "code": True}, "detail": [1], "request_id": 4},
        ErrorFields(),
    ),
    "Azure's content filter": (
        error(type=None, param="prompt", code="content_filter", status=400, innererror=FILTERED),
        ErrorFields(status=400, message="m"),
    ),
    "Gemini": (
        error(
            code=400, status="INVALID_ARGUMENT", details=[{"@type": "x"}, {"reason": "API_KEY_INVALID"}, "x"]
        ),
        ErrorFields(type="INVALID_ARGUMENT", code="API_KEY_INVALID", status=400, message="m"),
    ),
    "Mistral": (
        {"object": "error", "message": "m", "type": "rate_limited", "code": "1300", "raw_status_code": 429},
        ErrorFields(type="rate_limited", status=429, message="m"),
    ),
    "Mistral, a wrong field": (
        {
            "object": "error",
            "message": {"detail": [{"type": "extra_forbidden", "loc": ["body", "x"], "msg": "m"}]},
            "type": "invalid_request_error",
        },
        ErrorFields(type="invalid_request_error", message="body.x: m"),
    ),
    "xAI": ({"code": "Some reason", "error": "m"}, ErrorFields(message="m")),
    "Groq": (
        error(type="t", code="tool_use_failed", status_code=400),
        ErrorFields(type="t", code="tool_use_failed", status=400, message="m"),
    ),
    "too deep to be meant": ({"error": {"error": {"error": {"error": {"error": "m"}}}}}, ErrorFields()),
    "no object": (["m"], ErrorFields()),
}


@every_row(("body", "fields"), ERROR_BODIES.values())
def test_an_error_body_is_read_whichever_server_wrote_it(body: Any, fields: ErrorFields) -> None:
    assert error_fields(body) == fields


def test_a_long_list_of_wrong_fields_is_cut() -> None:
    message = error_fields({"detail": [{"loc": ["x"], "msg": "m"}] * 1000}).message
    assert message == "; ".join(["x: m"] * 5)


def test_an_error_object_alone_in_a_list_is_that_object() -> None:
    assert out_of_list([{"error": "m"}]) == {"error": "m"}
    for other in ([{"error": "m"}, {"error": "n"}], [{"message": "m"}], ["error"], [], "error", None):
        assert out_of_list(other) is other
