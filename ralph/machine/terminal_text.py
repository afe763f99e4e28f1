"""Makes a program's output readable. Removes terminal control sequences, and replaces bytes that are not text."""

from __future__ import annotations

import re

# ECMA-48: CSI sequences; strings (OSC, DCS, PM, APC, SOS) up to their terminator; other escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
)
_OVERSTRIKES = re.compile(r"[^\n\x08]\x08")
_CARRIAGE_RETURNS_AT_END = re.compile(r"\r+\n")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# The characters that `surrogateescape` makes of bytes that are not UTF-8.
_UNDECODABLE = re.compile(r"[\udc80-\udcff]+")


def readable_text(data: bytes) -> tuple[str, int]:
    """The readable text of `data`, and the number of bytes that were not valid UTF-8. Consecutive invalid bytes
    become one U+FFFD.
    """
    text = data.decode("utf-8", "surrogateescape")
    text = _ESCAPES.sub("", text)
    text = _CARRIAGE_RETURNS_AT_END.sub("\n", text)
    if "\r" in text:
        text = "\n".join(_last_state(line) for line in text.split("\n"))
    text = _OVERSTRIKES.sub("", text)
    text = _CONTROLS.sub("", text)
    invalid = sum(len(run) for run in _UNDECODABLE.findall(text))
    return (_UNDECODABLE.sub("\ufffd", text) if invalid else text), invalid


def _last_state(line: str) -> str:
    """The visible text of a line after all its carriage returns. Progress bars use them to overwrite a line."""
    return next((state for state in reversed(line.split("\r")) if state.strip()), "")
