"""The window that a refusal names, in the words of each server, and none where it names none."""

from __future__ import annotations

import pytest

from ralph.core.errors import HttpError, StreamParse
from ralph.core.overflow import named_window

ROWS = [
    ("prompt is too long: 208310 tokens > 200000 maximum", 200_000),
    (
        "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length",
        200_000,
    ),
    (
        (
            "This model's maximum context length is 32768 tokens. However, you requested 32897 tokens (897 in the "
            "messages, 32000 in the completion)."
        ),
        32_768,
    ),
    (
        "the request exceeds the available context size (4096 tokens), try increasing it",
        4096,
    ),
    ('{"error":{"type":"exceed_context_size_error","n_prompt_tokens":5000,"n_ctx":4096}}', 4096),
    ("prompt is too long", None),
    ("Input is too long for requested model.", None),
    ("prompt is too long: 208310 tokens > 0 maximum", None),
    ("prompt is too long: 2 tokens > 9999999999 maximum", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "window"), ROWS)
def test_the_window_is_read_from_the_words_of_each_server(text: str, window: int | None) -> None:
    assert named_window(HttpError(400, None, text)) == window
    assert named_window(HttpError(400, None, "{}", message=text)) == window
    assert named_window(StreamParse(text)) == window
