"""Tests what becomes of the results of MCP tool calls, which a server may fill with anything."""

from __future__ import annotations

import base64
import json

from ralph.mcp.toolset import (
    AS_ABOVE,
    EMPTY,
    EMPTY_FAILURE,
    SAME_IMAGE,
    SAME_TEXT,
    ReceivedImage,
    is_error,
    parts_of,
)
from tests.rows import every_row

LONG = "line of text\n" * 10
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
            {"content": [{"type": "image", "data": DATA, "mimeType": "Image/PNG"}]},
            [ReceivedImage(b"abc", "Image/PNG, 3 bytes")],
        ),
        (
            {"content": [{"type": "image", "data": "%%%", "mimeType": "image/png"}]},
            ["[an image that is not valid Base64 (image/png)]"],
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
        ({"content": [], "structuredContent": {"rows": 3}}, ['{"rows": 3}']),
        ({"content": [], "structuredContent": {}}, ["{}"]),
        ({"content": [], "structuredContent": None}, [EMPTY]),
        ({"content": [{"type": "text", "text": " \n"}]}, [EMPTY]),
        ({"content": [{"type": "text"}, {"type": "text", "text": None}]}, [EMPTY]),
        ({"content": [{"type": "text", "text": ""}], "structuredContent": {"a": 1}}, ['{"a": 1}']),
        (
            {
                "content": [
                    {"type": "text", "text": "\n"},
                    {"type": "image", "data": DATA, "mimeType": "image/png"},
                ]
            },
            [ReceivedImage(b"abc", "image/png, 3 bytes")],
        ),
        ({"isError": True, "content": []}, [EMPTY_FAILURE]),
        ({"isError": True}, [EMPTY_FAILURE]),
        ({"isError": True, "content": [{"type": "text", "text": ""}]}, [EMPTY_FAILURE]),
        ({"isError": True, "content": [], "structuredContent": {"code": 7}}, ['{"code": 7}']),
        ({"isError": True, "content": [{"type": "text", "text": "no such file"}]}, ["no such file"]),
    ],
)
def test_parts(result, parts) -> None:
    assert parts_of(result) == parts


def test_structured_content_that_a_text_repeats_is_shown_once() -> None:
    text = {"type": "text", "text": json.dumps({"b": 1, "a": 2}, indent=2)}
    assert parts_of({"content": [text], "structuredContent": {"a": 2, "b": 1}}) == [text["text"]]
    assert parts_of({"content": [text], "structuredContent": {"a": 3}}) == [text["text"], '{"a": 3}']
    number = {"type": "text", "text": '{"a": 1}'}
    assert parts_of({"content": [number], "structuredContent": {"a": True}}) == ['{"a": 1}', '{"a": true}']


def texts(*found: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": one} for one in found]


@every_row(
    ("content", "structured", "added"),
    [
        (texts("5"), {"result": 5}, []),
        (texts("true"), {"result": True}, []),
        (texts("sunny"), {"result": "sunny"}, []),
        (texts('"sunny"'), {"result": "sunny"}, []),
        (texts("5"), {"result": "5"}, []),
        (texts("a", "b"), {"result": ["a", "b"]}, []),
        (texts('{"n": 1}', '{\n  "n": 2\n}'), {"result": [{"n": 1}, {"n": 2}]}, []),
        (texts("[1, 2]"), {"result": [1, 2]}, []),
        (texts("a", "b"), ["a", "b"], []),
        (texts('{"result": 5}'), {"result": 5}, []),
        (texts("5"), {"result": 6}, ['{"result": 6}']),
        (texts("1"), {"result": True}, ['{"result": true}']),
        (texts("a"), {"result": ["a", "b"]}, ['{"result": ["a", "b"]}']),
        (texts("b", "a"), {"result": ["a", "b"]}, ['{"result": ["a", "b"]}']),
        (texts("a"), {"result": "a", "more": 1}, ['{"result": "a", "more": 1}']),
        (texts("a"), {"found": "a"}, ['{"found": "a"}']),
        ([], {"result": []}, ['{"result": []}']),
        (texts("3 rows"), {"result": [1, 2, 3]}, ['{"result": [1, 2, 3]}']),
        (texts("a"), {"content": "a"}, []),
        (texts(LONG), {"found": LONG}, []),
        (texts(json.dumps([LONG])), {"found": [LONG]}, []),
        (texts(LONG), {"found": LONG, "size": 1}, [f'{{"found": "{AS_ABOVE}", "size": 1}}']),
        (texts("a"), {"found": "a", "size": 1}, ['{"found": "a", "size": 1}']),
        (texts("a"), {"found": LONG}, [json.dumps({"found": LONG})]),
        (texts("a"), {}, ["{}"]),
    ],
)
def test_a_typed_result_is_shown_once(content, structured, added) -> None:
    shown = [one["text"] for one in content]
    assert parts_of({"content": content, "structuredContent": structured}) == [*shown, *added]


def test_an_image_in_the_structured_content_is_not_sent_as_text() -> None:
    """As `read_media_file` of the reference server for files answers."""
    image = {"type": "image", "data": base64.b64encode(bytes(200)).decode(), "mimeType": "image/png"}
    for structured in ({"content": [image]}, {"content": image}, {"found": [image]}):
        shown = parts_of({"content": [image], "structuredContent": structured})
        assert shown == [ReceivedImage(bytes(200), "image/png, 200 bytes")]


def test_what_the_blocks_of_a_result_repeat_is_sent_once() -> None:
    image = {"type": "image", "data": base64.b64encode(bytes(200)).decode(), "mimeType": "image/png"}
    resource = {"type": "resource", "resource": {"uri": "u://a", "text": LONG}}
    shown = parts_of({"content": [*texts(LONG, "a", LONG, "a"), resource, image, image]})
    assert shown[:5] == [LONG, "a", SAME_TEXT, "a", f"[resource u://a]\n{SAME_TEXT}"]
    assert shown[5:] == [ReceivedImage(bytes(200), "image/png, 200 bytes"), SAME_IMAGE]
    assert parts_of({"content": [resource, *texts(LONG)]}) == [f"[resource u://a]\n{LONG}", SAME_TEXT]


@every_row(("result", "expected"), [({}, False), ({"isError": True}, True), ({"isError": "yes"}, False)])
def test_an_error_is_one_that_says_so(result, expected) -> None:
    assert is_error(result) is expected
