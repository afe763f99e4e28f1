"""An image that would make the API refuse this and every later request must not enter the conversation."""

from __future__ import annotations

import base64

import pytest

from ralph.conversation.messages import Conversation, user_message
from ralph.tools.content import (
    image_damage,
    image_media_type,
    image_size,
    shown_image,
    without_damaged_extras,
)
from ralph.tools.tool_context import MOST_BYTES, MOST_IMAGES, ImageBudget
from ralph.values.answer import ToolCall, ToolError, ToolOutput, ToolResult
from tests.rows import every_row
from tests.tools.image_files import IMAGES, gif, jpeg, png, webp

LARGEST = 3_750_000
EMPTY_PNG = len(png(10, 10))

every_image = pytest.mark.parametrize(("data", "media_type"), IMAGES.values(), ids=IMAGES)


@every_image
def test_an_image_comes_as_an_image_block(tools, tmp_path, data, media_type) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    output = tools.call("Read", {"file_path": "a.txt"})
    assert not output.is_error, output.content
    [block] = output.content
    assert (block["type"], block["source"]["media_type"]) == ("image", media_type)
    assert base64.b64decode(block["source"]["data"]) == data


@pytest.mark.parametrize(
    "data",
    [
        *(png(2000, 2000), jpeg(2000, 2000), gif(2000, 2000), webp(b"VP8 ", 2000, 2000)),
        *(webp(b"VP8L", 2000, 2000), webp(b"VP8X", 2000, 2000), png(10, 10, LARGEST - EMPTY_PNG)),
    ],
    ids=len,
)
def test_an_image_at_the_bounds_is_shown(tools, tmp_path, data) -> None:
    (tmp_path / "a.png").write_bytes(data)
    assert not tools.call("Read", {"file_path": "a.png"}).is_error


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (png(2001, 10), "the image is 2001x10 pixels; at most 2000 a side can be shown. Scale it down first"),
        (jpeg(10, 2001), "the image is 10x2001 pixels"),
        (gif(2001, 10), "the image is 2001x10 pixels"),
        (webp(b"VP8X", 10, 2001), "the image is 10x2001 pixels"),
        (png(0, 10), "damaged"),
        (b"\xff\xd8\xff\xe0", "damaged"),
        (b"GIF89a", "damaged"),
        (b"RIFF\0\0\0\0WEBPVP8X", "damaged"),
        (
            png(10, 10, LARGEST - EMPTY_PNG + 1),
            "the image has 3,750,001 bytes; at most 3,750,000 can be shown",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_image_the_api_would_refuse_is_an_error(tools, tmp_path, data, sentence) -> None:
    (tmp_path / "a.png").write_bytes(data)
    assert sentence in tools.error("Read", file_path="a.png")


@every_image
def test_an_image_is_whole_to_its_last_byte_and_damaged_without_it(data, media_type) -> None:
    assert (image_media_type(data), image_size(data, media_type)) == (media_type, (30, 20))
    assert image_damage(data, media_type) is None
    assert image_damage(data + b"what a camera adds", media_type) is None
    whole = [end for end in range(12, len(data)) if image_damage(data[:end], media_type) is None]
    assert whole == []


@every_row(
    ("data", "media_type", "damage"),
    [
        (png(3, 3).replace(b"IHDR", b"IHDX"), "image/png", "its chunk 'IHDX' does not match its checksum"),
        (png(3, 3, 9)[:-16] + png(3, 3)[-12:], "image/png", "its chunk 'IDAT' does not match its checksum"),
        (png(3, 3)[:33] + png(3, 3)[-12:], "image/png", "it has no IDAT chunk"),
        (png(3, 3)[:-12], "image/png", "it ends before its IEND chunk"),
        (jpeg().replace(b"\xff\xda", b"\xff\xfe"), "image/jpeg", "it has no end marker"),
        (jpeg()[:-2], "image/jpeg", "it has no end marker"),
        (gif()[:-1], "image/gif", "it has no trailer"),
        (gif()[:-1] + b"\0\0\0", "image/gif", "it has no trailer"),
        (webp()[:-3], "image/webp", "it ends 3 bytes early"),
        (webp().replace(b"VP8 ", b"ALPH"), "image/webp", "it has no image data"),
        (webp().replace(b"VP8 \x0a", b"VP8 \x0c"), "image/webp", "a chunk goes beyond its end"),
    ],
)
def test_what_is_wrong_behind_the_header_is_named(data, media_type, damage) -> None:
    assert image_damage(data, media_type) == damage


def test_a_damaged_image_is_an_error(tools, tmp_path) -> None:
    (tmp_path / "a.png").write_bytes(png(10, 10)[:-1])
    assert tools.error("Read", file_path="a.png") == ("the image is damaged: it ends before its IEND chunk")


def test_the_images_of_one_conversation_have_a_budget(tools, tmp_path) -> None:
    data = png(10, 10, 3_500_000)
    (tmp_path / "a.png").write_bytes(data)
    calls = [ToolCall(f"c{number}", "Read", {"file_path": "a.png"}) for number in range(5)]
    errors = [output.content for output, _ in tools.box.run(calls) if output.is_error]
    left = MOST_BYTES - 4 * len(data)
    said = (
        f"the image has {len(data):,} bytes; the images of this conversation may have 16,777,216 in all, and {left:,} "
        "are left. Shrink it, or look at a part of it"
    )
    assert errors == [said]
    (tmp_path / "small.png").write_bytes(png(10, 10))
    assert not tools.call("Read", {"file_path": "small.png"}).is_error


def test_a_budget_is_spent_to_its_last_byte_and_image() -> None:
    budget = ImageBudget()
    budget.take(MOST_BYTES)
    with pytest.raises(ToolError, match="and 0 are left"):
        budget.take(1)
    many = ImageBudget()
    for _ in range(MOST_IMAGES):
        many.take(1)
    with pytest.raises(ToolError, match="holds 100 images"):
        many.take(1)


def test_what_a_conversation_holds_already_counts_after_a_resume() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"x" * 90_000).decode()}
    image = {"type": "image", "source": source}
    result = ToolResult("a", ToolOutput((image,))).as_block()
    talk = Conversation().plus(user_message([result, {"type": "text", "text": "and"}]))
    budget = ImageBudget()
    for message in talk.messages:
        budget.restore(message.content)
    budget.take(MOST_BYTES - 90_000)
    with pytest.raises(ToolError, match="and 0 are left"):
        budget.take(1)


def test_an_extra_chunk_with_a_wrong_checksum_is_left_out_and_the_image_shown() -> None:
    """The test server of the Model Context Protocol sends such an image. Strict decoders reject it."""
    whole = png(3, 3)
    extra = b"\0\0\0\3iCCPabc\0\0\0\0"
    assert without_damaged_extras(whole[:33] + extra + whole[33:]) == whole
    assert without_damaged_extras(whole + b"rest") == whole + b"rest"
    broken = whole.replace(b"IHDR", b"IHDX")
    assert without_damaged_extras(broken) == broken, "what a decoder needs is never left out"
    block = shown_image(whole[:33] + extra + whole[33:], "image/png", ImageBudget())
    assert base64.b64decode(block["source"]["data"]) == whole
