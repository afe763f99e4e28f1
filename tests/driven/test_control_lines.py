"""The meaning of a driver's lines. Every wrong line gets an error that says what is wrong."""

from __future__ import annotations

import base64
import json
from typing import Any, get_args

from msgspec.json import Decoder

from ralph.driven.control_lines import (
    LONGEST_REQUEST_ID,
    ControlRequest,
    Ignored,
    Interrupt,
    Malformed,
    Request,
    RequestLine,
    Response,
    SetModel,
    UserLine,
    UserMessage,
    parse_control_line,
)
from tests.rows import every_row

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
SOURCE = {"type": "base64", "media_type": "image/png", "data": PNG}


def parsed(value: object) -> Any:
    return parse_control_line(json.dumps(value).encode())


def user(content: object, **more: object) -> dict[str, object]:
    return {"type": "user", "message": {"role": "user", "content": content}, **more}


def request(subtype: object, request_id: object = "r1", **fields: object) -> dict[str, object]:
    return {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **fields}}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


@every_row("kind", ["control_response", "control_cancel_request", "keep_alive"])
def test_what_drivers_send_that_is_no_request_is_ignored(kind) -> None:
    assert parsed({"type": kind, "request_id": "r1"}) == Ignored()


@every_row(
    ("line", "is_refused"),
    [
        ('{"request_id":"r1","subtype":"success","response":{"behavior":"deny","behavior":"allow"}}', True),
        (
            '{"request_id":"r1","subtype":"success","response":{"behavior":"deny"},"response":{"behavior":"allow"}}',
            True,
        ),
        ('{"request_id":"r1","subtype":"error","subtype":"success","response":{"behavior":"allow"}}', True),
        (
            '{"request_id":"r1","subtype":"success","response":{"behavior":"allow","updatedInput":{"a":1,"a":2}}}',
            True,
        ),
        ('{"request_id":"r1","subtype":"success","response":{"behavior":"allow"}}', False),
    ],
)
def test_a_response_with_a_key_twice_is_an_error(line, is_refused) -> None:
    response = parse_control_line(b'{"type":"control_response","response":%b}' % line.encode())
    if not is_refused:
        assert response == Response("r1", {"behavior": "allow"})
        return
    assert isinstance(response, Response)
    assert (response.request_id, response.fields) == ("r1", {})
    assert "occurs twice" in str(response.error)


def test_a_user_message_is_its_text_whatever_stands_beside_it() -> None:
    line = user("Fix the\nbug", session_id="", parent_tool_use_id=None, uuid="u1")
    assert parsed(line) == UserMessage("Fix the\nbug", "u1")
    assert parsed({**line, "uuid": 7}) == UserMessage("Fix the\nbug")


BEGINNINGS = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff\xe0",
    "image/gif": b"GIF89a",
    "image/webp": b"RIFF\n\0\0\0WEBP",
}


@every_row("media_type", BEGINNINGS)
def test_text_and_image_blocks_come_in_their_order(media_type) -> None:
    data = base64.b64encode(BEGINNINGS[media_type]).decode()
    image = {"type": "image", "source": {**SOURCE, "media_type": media_type, "data": data}}
    assert parsed(user([text("see"), image, text("this")])) == UserMessage((text("see"), image, text("this")))


@every_row("media_type", BEGINNINGS)
def test_data_of_another_kind_than_it_says_is_refused_at_the_door(media_type) -> None:
    data = base64.b64encode(b"hello, world").decode()
    line = user([{"type": "image", "source": {**SOURCE, "media_type": media_type, "data": data}}])
    refused = parsed(line)
    assert isinstance(refused, Malformed)
    assert refused.reason.endswith(f"is not {media_type}")


def test_a_request_is_its_id_its_subtype_and_the_rest() -> None:
    keys = {"subtype": "set_model", "model": "opus", "n": 1}
    assert parsed(request(**keys)) == ControlRequest("r1", SetModel("opus"), keys)
    longest = "x" * LONGEST_REQUEST_ID
    assert parsed(request("interrupt", longest)) == ControlRequest(
        longest, Interrupt(), {"subtype": "interrupt"}
    )


def test_every_type_that_a_line_becomes_can_be_decoded() -> None:
    """If a field's type were imported only for the type checker, a driver's first line would raise an error."""
    for kind in (UserLine, RequestLine, *get_args(Request)):
        Decoder(kind)
    assert [kind.__struct_config__.tag for kind in get_args(Request)] == [
        *("initialize", "interrupt", "set_model", "set_permission_mode", "set_max_thinking_tokens"),
        *("get_context_usage", "mcp_status", "mcp_message", "set_auto_retry", "abort_retry", "get_status"),
    ]


NOT_DATA = '"message.content[0].source.data" must be the image in base64, without line breaks'
NO_OBJECT = '"message" must be an object with "role" and "content", not '
NO_CONTENT = '"message.content" must be a text or a list of blocks, not '
NO_ID = '"request_id" must be a text of 1 to 200 characters, not '


def of_user(**message: object) -> dict[str, object]:
    return {"type": "user", "message": message}


def image(source: object) -> dict[str, object]:
    return user([{"type": "image", "source": source}])


@every_row(
    ("line", "reason"),
    [
        ([1], "the line must be a JSON object, not a list"),
        ("user", 'the line must be a JSON object, not "user"'),
        ({}, "unknown type null; known are user, control_request, control_response, "),
        ({"type": None}, "unknown type null; known are user, "),
        ({"type": ["user"]}, "unknown type a list; known are user, "),
        ({"type": "update_environment_variables"}, 'unknown type "update_environment_variables"; known are '),
        ({"type": "user"}, f"{NO_OBJECT}null"),
        ({"type": "user", "message": "hi"}, f'{NO_OBJECT}"hi"'),
        (of_user(content="hi"), '"message.role" must be "user", not null'),
        (of_user(role="assistant", content="hi"), '"message.role" must be "user", not "assistant"'),
        (user(None), f"{NO_CONTENT}null"),
        (user(text("hi")), f"{NO_CONTENT}an object"),
        (user(""), '"message.content" is empty'),
        (user(" \n"), '"message.content" is empty'),
        (user([]), '"message.content" is empty'),
        (user(["hi"]), '"message.content[0]" must be a block of type text or image, not "hi"'),
        (user([text("a"), text(" ")]), '"message.content[1].text" is empty'),
        (user([{"type": "text"}]), '"message.content[0].text" must be a text, not null'),
        (
            user([{"type": "tool_result", "tool_use_id": "t"}]),
            '"message.content[0].type" must be "text" or "image", not "tool_result"',
        ),
        (
            image("x.png"),
            '"message.content[0].source" must be an object with type, media_type and data, not "x.png"',
        ),
        (image({"type": "url"}), '"message.content[0].source.type" must be "base64", not "url"'),
        (
            image({**SOURCE, "media_type": "image/bmp"}),
            '"message.content[0].source.media_type" must be one of image/png, image/jpeg, image/gif, ',
        ),
        *(
            (image({**SOURCE, "data": data}), NOT_DATA)
            for data in ("", None, "a", "ä", "aGk=\n", "aG k=", "_-_-")
        ),
        (request("x", ""), f'{NO_ID}""'),
        (request("x", 7), f"{NO_ID}7"),
        (request("x", "x" * (LONGEST_REQUEST_ID + 1)), f"{NO_ID}a text of 201 characters"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line, reason) -> None:
    found = parsed(line)
    assert isinstance(found, Malformed)
    assert found.request_id is None
    assert found.reason.startswith(reason)
    assert len(found.reason) < 250


@every_row(
    ("subtype", "reason"),
    [
        ("rewind_files", "File rewinding is not enabled: "),
        ("of_tomorrow", 'unknown control request "of_tomorrow"; known are initialize, '),
    ],
)
def test_a_request_that_ralph_lacks_is_answered_with_what_there_is(subtype, reason) -> None:
    found = parsed(request(subtype))
    assert isinstance(found, Malformed)
    assert found.request_id == "r1"
    assert found.reason.startswith(reason)


def nested(depth: int) -> bytes:
    """A request that contains lists within lists, with `depth` levels in total."""
    inner = b"[" * (depth - 2) + b"]" * (depth - 2)
    return (
        b'{"type":"control_request","request_id":"r1","request":{"subtype":"interrupt","deep":'
        + inner
        + b"}}"
    )


@every_row(
    "line",
    [
        b"{",
        b'{"type":"user"',
        b"\xff",
        b'{"type":"keep_alive","x":NaN}',
        b'{"type":"keep_alive","x":1' + b"0" * 400 + b".5}",
        b'{"type":"keep_alive","x":' + b"1" * 5000 + b"}",
        nested(101),
        nested(100_000),
    ],
)
def test_what_is_no_json_or_too_deep_is_told_in_short(line) -> None:
    found = parse_control_line(line)
    assert isinstance(found, Malformed)
    assert found.reason.startswith("the line is not JSON: ")
    assert len(found.reason) < 250


@every_row(
    "line",
    [
        rb'{"type":"\ud800"}',
        rb'{"type":"user","message":{"role":"user","content":[{"type":"\ud800"}]}}',
    ],
)
def test_a_name_that_is_half_a_character_is_refused(line) -> None:
    found = parse_control_line(line)
    assert isinstance(found, Malformed)
    assert found.reason == "a name in the line is half a surrogate pair"
