"""Tests what ralph believes of a server's description of a model, and what the description changes."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ralph.conversation.target import ModelDescription, described, description_of
from ralph.values.servers import MODELS, MOST_TOKENS, ModelFacts
from tests.rows import every_row

UNKNOWN = ModelFacts(context_window=None, max_output=None, price=None)
HAIKU = MODELS["claude-haiku-5-5"]


def document(**fields: Any) -> dict[str, Any]:
    return {"type": "model", "id": "m", "display_name": "M", "lifecycle": "active", **fields}


@every_row("key", ["max_input_tokens", "max_tokens"])
@every_row(
    ("number", "believed"),
    [
        (1, 1),
        (MOST_TOKENS, MOST_TOKENS),
        (0, None),
        (-1, None),
        (MOST_TOKENS + 1, None),
        (10**30, None),
        (1e30, None),
        (200_000.0, None),
        (float("nan"), None),
        (True, None),
        (False, None),
        ("200000", None),
        ([200_000], None),
        ({}, None),
        (None, None),
    ],
)
def test_a_number_that_no_model_has_is_unknown_and_the_other_one_still_counts(key, number, believed) -> None:
    other = "max_tokens" if key == "max_input_tokens" else "max_input_tokens"
    names = {"max_input_tokens": "context_window", "max_tokens": "max_output"}
    description = description_of(document(**{key: number, other: 4096}))
    assert description == ModelDescription(**{names[key]: believed, names[other]: 4096})


@every_row(
    "said",
    [
        None,
        True,
        7,
        "model",
        [],
        [document(max_tokens=5)],
        {},
        document(),
        document(max_input_tokens=0, max_tokens=-1),
        {"type": "error", "error": {"type": "not_found_error", "message": "model: m"}},
        {"id": "m", "object": "model", "created": 1, "owned_by": "me"},
        # OpenAI's shape with numbers whose meaning nobody has fixed.
        {"id": "m", "object": "model", "max_tokens": 131_072, "max_input_tokens": 131_072},
        {"object": "list", "data": [document(max_tokens=5)]},
        {**document(max_tokens=5), "type": ["model"]},
    ],
)
def test_other_documents_say_nothing(said) -> None:
    assert description_of(said) is None


@every_row(
    ("facts", "description", "window", "max_output"),
    [
        (HAIKU, ModelDescription(200_000, 8_000), 200_000, 8_000),
        (HAIKU, ModelDescription(2_000_000, 256_000), 2_000_000, 256_000),
        (HAIKU, ModelDescription(200_000, None), 200_000, HAIKU.max_output),
        (HAIKU, ModelDescription(None, 8_000), HAIKU.context_window, 8_000),
        (HAIKU, None, HAIKU.context_window, HAIKU.max_output),
        (None, ModelDescription(32_768, 4_096), 32_768, 4_096),
        (None, ModelDescription(32_768, None), 32_768, None),
        (None, None, None, None),
    ],
)
def test_the_servers_word_wins_over_the_table_and_nothing_else_changes(
    facts, description, window, max_output
) -> None:
    expected = replace(facts or UNKNOWN, context_window=window, max_output=max_output)
    assert described(facts, description) == expected
