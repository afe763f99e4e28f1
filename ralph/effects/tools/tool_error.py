"""The failure of a tool that is the model's to read, in words it can act on. Anything else is a bug."""

from __future__ import annotations


class ToolError(Exception):
    """The text becomes an error `tool_result` as it is."""


def os_error_text(error: OSError) -> str:
    return error.strerror or type(error).__name__
