"""The sizes of the window and of the prompt that a server names when it refuses a request, in the words of each
server.
"""

from __future__ import annotations

from ralph.agent.asking import Refused, refused
from ralph.values.errors import HttpError, StreamParse
from tests.rows import every_row

ROWS = [
    ("prompt is too long: 208310 tokens > 200000 maximum", Refused(200_000, 208_310)),
    (
        "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length",
        Refused(200_000, 178_959),
    ),
    (
        (
            "This model's maximum context length is 32768 tokens. However, you requested 32897 tokens (897 in the "
            "messages, 32000 in the completion)."
        ),
        Refused(32_768, 897),
    ),
    (
        '{"error":{"type":"exceed_context_size_error","n_prompt_tokens":5000,"n_ctx":4096}}',
        Refused(4096, 5000),
    ),
    ("the request exceeds the available context size (4096 tokens), try increasing it", None),
    ("This model's maximum context length is 8192 tokens.", None),
    ("prompt is too long", None),
    ("Input is too long for requested model.", None),
    ("prompt is too long: 208310 tokens > 0 maximum", None),
    ("prompt is too long: 2 tokens > 9999999999 maximum", None),
    ("", None),
]


@every_row(("text", "told"), ROWS)
def test_the_numbers_are_read_from_the_words_of_each_server(text: str, told: Refused | None) -> None:
    assert refused(HttpError(400, None, text)) == told
    assert refused(HttpError(400, None, "{}", message=text)) == told
    assert refused(StreamParse(text)) == told


@every_row(("answer", "fits"), [(31_870, True), (31_871, True), (31_872, False)])
def test_the_same_prompt_fits_with_an_answer_that_the_window_leaves(answer: int, fits: bool) -> None:
    assert Refused(32_768, 897).leaves(answer) is fits
