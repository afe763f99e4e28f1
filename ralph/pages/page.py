"""Turns a `Night` into one HTML file: the template `page.html` with `page.css` and `page.js` beside it.

Every text that a model, a tool or a server wrote is text in the file, never markup. The file asks for nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

if TYPE_CHECKING:
    from ralph.pages.night import Night

_HERE = Path(__file__).parent

# Control characters, characters that change the direction of text or that nobody sees, and half characters, which have
# no UTF-8. SGR sequences, which colour the output of programs, are left out of the page.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff"
    "\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e007f](?:(?<=\x1b)\\[[0-9;:]*m)?"
)


def html_of(night: Night) -> bytes:
    """The page of a night, as one HTML file in UTF-8."""
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    page = environment.get_template("page.html").render(
        night=night,
        style=Markup(style),  # noqa: S704 - a file of ralph
        script=Markup(script),  # noqa: S704 - the same
        style_hash=_hash_of(style),
        script_hash=_hash_of(script),
    )
    return _HIDDEN.sub(_named, page).encode()


def _named(hidden: re.Match[str]) -> str:
    """A visible name for a hidden character, such as the symbol ESC. Empty for a sequence that only sets colours."""
    if len(hidden[0]) > 1 or hidden[0] == "\r":
        return ""
    code = ord(hidden[0])
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"  # the symbols of control characters


def _hash_of(text: str) -> str:
    """The name of a style or script in a Content-Security-Policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
