"""The facts in an error object, whichever server wrote it."""

from __future__ import annotations

from typing import Any

from ralph.api.error_body import ErrorFields, error_fields
from tests.rows import every_row

ERROR_BODIES: dict[str, tuple[Any, ErrorFields]] = {
    "Anthropic": (
        {
            "type": "error",
            "error": {"type": "api_error", "message": "m", "details": {"error_code": "c"}},
            "request_id": "r",
        },
        ErrorFields(type="api_error", code="c", message="m", request_id="r"),
    ),
    "OpenAI": (
        {"error": {"message": "m", "type": "t", "param": None, "code": "context_length_exceeded"}},
        ErrorFields(type="t", code="context_length_exceeded", message="m"),
    ),
    "a code that decides nothing": ({"error": {"message": "m", "code": "c"}}, ErrorFields(message="m")),
    "llama.cpp": (
        {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
        ErrorFields(type="unavailable_error", status=503, message="Loading model"),
    ),
    "LiteLLM": ({"error": {"message": "m", "code": "429"}}, ErrorFields(status=429, message="m")),
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
    "too deep to be meant": ({"error": {"error": {"error": {"error": "m"}}}}, ErrorFields()),
    "no object": (["m"], ErrorFields()),
}


@every_row(("body", "fields"), ERROR_BODIES.values())
def test_an_error_body_is_read_whichever_server_wrote_it(body: Any, fields: ErrorFields) -> None:
    assert error_fields(body) == fields


def test_a_long_list_of_wrong_fields_is_cut() -> None:
    message = error_fields({"detail": [{"loc": ["x"], "msg": "m"}] * 1000}).message
    assert message == "; ".join(["x: m"] * 5)
