"""The words of each server for a refusal, and the sizes of the window and of the prompt in them."""

from __future__ import annotations

from datetime import UTC, datetime

from ralph.api.error_body import http_error, stream_error
from ralph.values.errors import (
    AgentError,
    Api,
    ErrorClass,
    FailureKind,
    HttpError,
    NetworkCause,
    StreamParse,
    StreamTransient,
    classify_error,
    failure_kind,
    is_damaged,
    is_said_again,
    may_mean_overflow,
    misses_thinking,
    refuses_thinking,
)
from ralph.values.refusals import (
    BAD_CALLS,
    BAD_KEYS,
    MISSING_MODELS,
    MISSING_THINKING,
    OVERFLOWS,
    REFUSAL_CODES,
    SIGNATURES,
    Sizes,
    exhausted_account,
    sizes_in,
)
from tests.rows import every_row

OVERFLOW = FailureKind.CONTEXT_OVERFLOW
AT = datetime(2026, 1, 1, tzinfo=UTC)

# Whole sentences, as they were reported.
SENTENCES = [
    "prompt is too long: 208310 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000",
    "Input is too long for requested model.",
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "This endpoint's maximum context length is 131072 tokens. However, you requested about 138956 tokens.",
    "Prompt exceeds maximum context length",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "input exceeds the model's context window",
    "Input tokens exceed the configured limit of 922000 tokens. Your messages resulted in 1200007 tokens.",
    "the request exceeds the available context size, try increasing it",
    "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "Context size has been exceeded.",
    "Requested tokens (2285) exceed context window of 2048",
    "max_tokens must be at least 1, got -17032.",
    "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
    "The decoder prompt (length 10127) is longer than the maximum model length of 8192.",
    "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
    "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).",
    "Input length 203743 exceeds the maximum length 202752",
    "the prompt exceeds the maximum allowed input length of 131072 tokens",
    "the input length exceeds the context length",
    "input exceeds context length",
    "prompt too long; exceeded max context length by 12 tokens",
    "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 9>= n_ctx: 4).",
    "However, the model is loaded with context length of only 7866 tokens, which is not enough.",
    "However, the model is loaded with a context length of only 4096 tokens, which is not enough.",
    "Reached context length of 4096 tokens with model (arch: llama) that cannot go on without more room.",
    "Your request exceeded model token limit: 262144 (requested: 262150)",
    "Input token length too long",
    "invalid params, context window exceeds limit (2013)",
    "Range of input length should be [1, 98304]",
    "Prompt exceeds max length",
    "prompt tokens too long",
    "This model's maximum prompt length is 131072 but the request contains 136973 tokens.",
    "The input token count (3377151) exceeds the maximum number of tokens allowed (1048576).",
    "Please reduce the length of the messages or completion.",
    "prompt token count of 93854 exceeds the limit of 90000",
    "Prompt contains 65673 tokens, too large for model with 32768 maximum context length",
    "litellm.ContextWindowExceededError: AnthropicError",
]
EXTRA_USAGE = "Extra usage is required for long context requests."
BEYOND_A_MINUTE = [
    "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 30601.",
    "Request too large for model `llama-3.1-8b-instant` on tokens per minute (TPM): Limit 6000, Requested 12328",
]
WITHIN_A_MINUTE = (
    "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 25000, Requested 9000."
)


@every_row("sentence", SENTENCES)
def test_every_text_is_known_with_its_statuses_and_no_others(sentence: str) -> None:
    kinds = {status: failure_kind(said(status, sentence)) for status in range(400, 600)}
    assert {status for status, kind in kinds.items() if kind is OVERFLOW} == {400, 413, 422, 500}
    for error in ({"message": sentence}, {"type": "api_error", "message": sentence}, sentence):
        found = stream_error({"error": error})
        assert (failure_kind(found), is_damaged(found)) == (OVERFLOW, False)
    limited = stream_error({"error": {"type": "rate_limit_error", "message": sentence}})
    assert failure_kind(limited) is FailureKind.RATE_LIMIT


def said(status: int, sentence: str) -> HttpError:
    body = f'{{"error":{{"message":"{sentence}"}}}}'.encode()
    return http_error(status, {}, body, AT, str)


def test_the_demand_for_extra_usage_is_an_overflow_with_429_too() -> None:
    kinds = {status: failure_kind(said(status, EXTRA_USAGE)) for status in range(400, 600)}
    assert {status for status, kind in kinds.items() if kind is OVERFLOW} == {400, 413, 429}


def test_a_request_that_no_minute_has_room_for_is_an_overflow_although_it_is_called_a_rate_limit() -> None:
    for sentence in BEYOND_A_MINUTE:
        assert [failure_kind(said(status, sentence)) for status in (413, 429)] == [OVERFLOW] * 2
        error = {"type": "tokens", "code": "rate_limit_exceeded", "message": sentence}
        assert failure_kind(stream_error({"error": error})) is OVERFLOW
    assert failure_kind(said(429, WITHIN_A_MINUTE)) is FailureKind.RATE_LIMIT


def test_every_row_of_the_table_is_needed() -> None:
    """Each text is the only one that knows some sentence, so none can be removed, and each row has a source."""
    for row in OVERFLOWS:
        assert row.vendor
        assert row.source
        others = [other for other in OVERFLOWS if other is not row]
        if row.text and row.code != "exceed_context_size_error":
            assert any(
                row.search(sentence) and not any(other.search(sentence) for other in others)
                for sentence in (*SENTENCES, EXTRA_USAGE, *BEYOND_A_MINUTE)
            ), row.text


@every_row("code", sorted(REFUSAL_CODES))
def test_a_code_decides_with_any_status_as_text_or_number(code: str) -> None:
    value = int(code) if code.isdigit() else f'"{code}"'
    for status in (400, 422, 429, 500):
        error = http_error(status, {}, f'{{"error":{{"code":{value}}}}}'.encode(), AT, str)
        assert failure_kind(error) is (kind := kind_of_code(code))
        in_stream = stream_error({"error": {"code": code, "message": "m"}})
        assert (failure_kind(in_stream), classify_error(in_stream)) == (kind, classify_error(error))


def kind_of_code(code: str) -> FailureKind:
    tables = {
        FailureKind.INVALID_REQUEST: (*SIGNATURES, *MISSING_THINKING),
        FailureKind.AUTH: BAD_KEYS,
        FailureKind.NOT_FOUND: MISSING_MODELS,
        FailureKind.STREAM: BAD_CALLS,
    }
    return next((kind for kind, rows in tables.items() if code in {row.code for row in rows}), OVERFLOW)


REFUSED_THINKING = [
    "messages.1.content.0: Invalid `signature` in `thinking` block",
    "messages.1.content.0: Invalid signature in thinking block. The block is bound to a different conversation.",
    "messages.3.content.11: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
    "When thinking is disabled, an `assistant` message in the final position cannot contain `thinking`.",
    "messages.1.content.0.thinking.signature: Field required",
    "Corrupted thought signature.",
    "Unable to submit request because Thought signature is not valid.",
    "The encrypted content gAAA...DQ== could not be verified.",
]
MISSED_THINKING = [
    "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
    "The `content[].thinking` in the thinking mode must be passed back to the API.",
    "The `reasoning_content` in the thinking mode must be passed back to the API.",
]


@every_row(
    ("sentence", "is_refused", "is_missed"),
    [
        *((sentence, True, False) for sentence in REFUSED_THINKING),
        *((sentence, False, True) for sentence in MISSED_THINKING),
        ("thinking.type.enabled is not supported for this model.", False, False),
        ("adaptive thinking is not supported on this model", False, False),
        ("The signature of the webhook is invalid", False, False),
    ],
)
def test_words_about_thinking(sentence: str, is_refused: bool, is_missed: bool) -> None:
    for status in range(400, 600):
        error, counts = said(status, sentence), status in {400, 422, 500}
        assert (refuses_thinking(error), misses_thinking(error)) == (
            is_refused and counts,
            is_missed and counts,
        )
        if counts and (is_refused or is_missed):
            assert failure_kind(error) is FailureKind.INVALID_REQUEST
            assert classify_error(error) is ErrorClass.PERMANENT


ALIKE = [
    "This request would exceed your organization's rate limit of 30,000 input tokens per minute",
    "Request too large for model on tokens per minute (TPM): Limit 6000, Requested 14810, please reduce your message",
    "max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens for x",
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    "Range of max_tokens should be [1, 8192]",
    "max_tokens must be at least 1, got 0.",
    "messages.0.content: the image exceeds the limit of 5 MB",
    "tools.0.input_schema: input too deep",
]


@every_row("sentence", ALIKE)
def test_words_that_are_alike_are_no_overflow(sentence: str) -> None:
    for status in (400, 422, 500):
        assert failure_kind(said(status, sentence)) is not OVERFLOW


def test_no_text_is_in_two_tables() -> None:
    for sentence in SENTENCES:
        assert exhausted_account((), sentence) is None, sentence


def stream(kind: str, text: str) -> AgentError:
    return stream_error({"error": {"type": kind, "message": text}})


@every_row(
    ("before", "error", "is_again"),
    [
        (said(500, "no"), said(500, "no"), True),
        (said(500, "no"), stream("api_error", "no"), True),
        (stream("api_error", "no"), stream("api_error", "no"), True),
        (said(500, "no"), said(500, "yes"), False),
        (None, said(500, "no"), False),
        (HttpError(500, None, ""), HttpError(500, None, ""), False),
        (said(503, "no"), said(503, "no"), False),
        (said(529, "no"), said(500, "no"), False),
        (said(429, "no"), said(429, "no"), False),
        (stream("overloaded_error", "no"), stream("overloaded_error", "no"), False),
        (Api(NetworkCause.RESET), Api(NetworkCause.RESET), False),
        (StreamTransient("cut"), StreamTransient("cut"), False),
    ],
)
def test_a_failure_of_the_server_is_said_again_if_its_text_is_the_same(
    before: AgentError | None, error: AgentError, is_again: bool
) -> None:
    assert is_said_again(before, error) is is_again


@every_row(
    ("error", "may_mean"),
    [
        *((said(status, "no"), status in {400, 422}) for status in range(400, 600) if status != 413),
        (stream("invalid_request_error", "no"), True),
        (stream("authentication_error", "no"), False),
        (stream("api_error", "no"), False),
        (said(400, "Your credit balance is too low"), False),
        (StreamParse("broken"), False),
        (Api(NetworkCause.RESET), False),
    ],
)
def test_which_unknown_words_may_mean_an_overflow(error: AgentError, may_mean: bool) -> None:
    assert may_mean_overflow(error) is may_mean


ROWS = [
    ("prompt is too long: 208310 tokens > 200000 maximum", Sizes(200_000, 208_310)),
    (
        "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length",
        Sizes(200_000, 178_959),
    ),
    (
        (
            "This model's maximum context length is 32768 tokens. However, you requested 32897 tokens (897 in the "
            "messages, 32000 in the completion)."
        ),
        Sizes(32_768, 897),
    ),
    ('{"error":{"type":"exceed_context_size_error","n_prompt_tokens":5000,"n_ctx":4096}}', Sizes(4096, 5000)),
    (
        (
            "'max_tokens' is too large: 2000. This model's maximum context length is 4096 tokens and your request has 2104 "
            "input tokens (2000 > 4096 - 2104)."
        ),
        Sizes(4096, 2104),
    ),
    (
        (
            "This model's maximum context length is 4097 tokens, however you requested 4226 tokens (4066 in your prompt; 160 "
            "for the completion)."
        ),
        Sizes(4097, 4066),
    ),
    (
        (
            "This endpoint's maximum context length is 131072 tokens. However, you requested about 138956 tokens (7884 of "
            "text input, 131072 in the output)."
        ),
        Sizes(131_072, 7884),
    ),
    # With tools, the first number is not the whole prompt.
    (
        (
            "This endpoint's maximum context length is 204800 tokens. However, you requested about 205432 tokens (81684 of "
            "text input, 3748 of tool input, 120000 in the output)."
        ),
        None,
    ),
    # "At least" is what the answer leaves of the window, and not what was counted.
    (
        (
            "This model's maximum context length is 128000 tokens. However, you requested 65535 output tokens and your prompt "
            "contains at least 62466 input tokens, for a total of at least 128001 tokens."
        ),
        None,
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
def test_the_numbers_are_read_from_the_words_of_each_server(text: str, told: Sizes | None) -> None:
    assert sizes_in(HttpError(400, None, text)) == told
    assert (sizes_in(HttpError(400, None, "{}", message=text)), sizes_in(StreamParse(text))) == (told, told)


@every_row(("answer", "fits"), [(31_870, True), (31_871, True), (31_872, False)])
def test_the_same_prompt_fits_with_an_answer_that_the_window_leaves(answer: int, fits: bool) -> None:
    assert Sizes(32_768, 897).leaves(answer) is fits
