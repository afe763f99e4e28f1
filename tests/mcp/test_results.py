"""Tests what becomes of the results of MCP tool calls, which a server may fill with anything."""

from __future__ import annotations

import base64
import json

from ralph.mcp.results import EMPTY, ReceivedImage, is_error, parts_of
from tests.rows import every_row

DATA = base64.b64encode(b"abc").decode()


@every_row(
    ("result", "parts"),
    [
        ({}, [EMPTY]),
        ({"content": []}, [EMPTY]),
        ({"content": "no list"}, [EMPTY]),
        ({"content": [None, 3, "text"]}, [EMPTY]),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, ["a", "b"]),
        (
            {"content": [{"type": "image", "data": DATA, "mimeType": "image/png"}]},
            [ReceivedImage(b"abc", "image/png, 3 bytes")],
        ),
        (
            {"content": [{"type": "image", "data": "%%%", "mimeType": "image/png"}]},
            ["[an image that is no valid Base64 (image/png)]"],
        ),
        (
            {"content": [{"type": "audio", "data": DATA, "mimeType": "audio/wav"}]},
            ["[audio that cannot be shown: audio/wav, 3 bytes]"],
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "u://a", "text": "words"}}]},
            ["[resource u://a]\nwords"],
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "u://a", "blob": DATA}}]},
            ["[resource u://a]", "[data that cannot be shown: no type, 3 bytes]"],
        ),
        (
            {"content": [{"type": "resource_link", "uri": "u://a", "name": "a"}]},
            ["[resource link: a, u://a]"],
        ),
        ({"content": [{"type": "hologram"}]}, ["[content of the type 'hologram', which cannot be shown]"]),
        ({"structuredContent": {"a": "ü"}}, ['{"a": "ü"}']),
    ],
)
def test_parts(result, parts) -> None:
    assert parts_of(result) == parts


def test_structured_content_that_a_text_repeats_is_shown_once() -> None:
    text = {"type": "text", "text": json.dumps({"b": 1, "a": 2}, indent=2)}
    assert parts_of({"content": [text], "structuredContent": {"a": 2, "b": 1}}) == [text["text"]]
    assert parts_of({"content": [text], "structuredContent": {"a": 3}}) == [text["text"], '{"a": 3}']


@every_row(("result", "expected"), [({}, False), ({"isError": True}, True), ({"isError": "yes"}, False)])
def test_an_error_is_one_that_says_so(result, expected) -> None:
    assert is_error(result) is expected
