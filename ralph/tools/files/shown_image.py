"""Makes the content block for an image, after checking that the API will accept it. A rejected image would stay in
the conversation, and the API would reject every later request too.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from ralph.tools.files.file_type import image_size
from ralph.tools.files.image_damage import image_damage, without_damaged_extras
from ralph.values.tool_calls import ToolError

if TYPE_CHECKING:
    from ralph.tools.tool_context import ImageBudget
    from ralph.values.tool_calls import Block

MAX_IMAGE_BYTES = 5_000_000 * 3 // 4
"""The maximum size of an image in bytes. Its base64 text has at most 5 MB. Other clouds accept this size too, while
Anthropic's own API accepts 10 MB."""
# The API accepts 8000 pixels a side in a request with few images, but only this many if there are more than 20
# images.
_MAX_IMAGE_PIXELS = 2000


def shown_image(data: bytes, media_type: str, images: ImageBudget) -> Block:
    """Makes the content block for an image, and adds the image to `images`. Raises ToolError if the image is damaged
    or too large.
    """
    if len(data) > MAX_IMAGE_BYTES:
        raise ToolError(
            f"the image has {len(data):,} bytes; at most {MAX_IMAGE_BYTES:,} can be shown. Scale it down first"
        )
    pixels = image_size(data, media_type)
    if pixels is None:
        raise ToolError(f"the image is damaged: its {media_type} header names no size")
    if max(pixels) > _MAX_IMAGE_PIXELS:
        raise ToolError(
            f"the image is {pixels[0]}x{pixels[1]} pixels; at most {_MAX_IMAGE_PIXELS} a side can be shown. Scale it down "
            "first"
        )
    if media_type == "image/png":
        data = without_damaged_extras(data)
    if damage := image_damage(data, media_type):
        raise ToolError(f"the image is damaged: {damage}")
    images.take(len(data))
    source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}
