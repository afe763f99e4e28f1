"""The check of request bodies must refuse bodies that are wrong in one place."""

from __future__ import annotations

import copy
from typing import Any

from tests.conversation.request_types import request_problems
from tests.rows import every_row

CALL = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "a"}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0="}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}, PICTURE]}
THOUGHT = {"type": "thinking", "thinking": "", "signature": "c2ln"}
VALID: dict[str, Any] = {
    "model": "claude-opus-4-8",
    "max_tokens": 100,
    "stream": True,
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "tools": [{"name": "Read", "description": "d", "input_schema": {"type": "object", "properties": {}}}],
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "a string is one text block"},
        {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "t"}, CALL]},
        {"role": "user", "content": [RESULT, {"type": "text", "text": "go on"}]},
    ],
}
NOWHERE = object()


def changed(path: str, value: object) -> dict[str, Any]:
    """The valid body with another value at this path. NOWHERE removes the field."""
    body = copy.deepcopy(VALID)
    *way, last = [int(step) if step.isdecimal() else step for step in path.split("/")]
    place: Any = body
    for step in way:
        place = place[step]
    if value is NOWHERE:
        del place[last]
    else:
        place[last] = value
    return body


def test_a_valid_body_has_no_problems() -> None:
    assert (request_problems(VALID), request_problems(VALID, with_betas=True)) == ([], [])


@every_row(
    "path",
    [
        "extra",
        "temperature",
        "thinking/extra",
        "output_config/extra",
        "tools/0/extra",
        "system/0/extra",
        "system/0/cache_control/extra",
        "messages/0/extra",
        "messages/1/content/0/extra",
        "messages/1/content/0/cache_control",
        "messages/1/content/1/extra",
        "messages/1/content/2/extra",
        "messages/2/content/0/extra",
        "messages/2/content/0/content/0/extra",
        "messages/2/content/0/content/1/extra",
        "messages/2/content/0/content/1/source/extra",
    ],
)
def test_an_unknown_key_is_refused_however_deep_it_stands(path) -> None:
    assert request_problems(changed(path, {"type": "ephemeral"})) != []


@every_row(
    ("path", "value"),
    [
        ("model", None),
        ("max_tokens", "100"),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("stream", False),
        ("stream", 1),
        ("thinking/type", "enabled"),
        ("output_config/effort", "enormous"),
        ("tools", {"Read": {}}),
        ("tools/0/description", ["d"]),
        ("tools/0/input_schema/type", "array"),
        ("system/0/cache_control/type", "persistent"),
        ("messages/0", "hi"),
        ("messages/0/role", "tool"),
        ("messages/0/content", [{"type": "future_block"}]),
        ("messages/1/content/2", None),
        ("messages/1/content/2/type", "tool_call"),
        ("messages/1/content/2/input", "a"),
        ("messages/2/content/0/content", [1]),
        ("messages/2/content/0/is_error", "yes"),
        ("messages/2/content/0/content/1/source/media_type", "image/tiff"),
        ("messages/2/content/0/content/1", CALL),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_also_inside_a_list(path, value) -> None:
    assert request_problems(changed(path, value)) != []
