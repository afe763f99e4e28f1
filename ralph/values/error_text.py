"""Exceptions in one line: the system's own words, a tool's words for the model, and the place of a bug in ralph."""

from __future__ import annotations

from pathlib import PurePath

_MOST_FRAMES = 4


def describe_bug(error: BaseException) -> str:
    """The exception and the innermost frames, innermost first; no source text, no values."""
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{PurePath(code.co_filename).name}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    where = " < ".join(reversed(frames[-_MOST_FRAMES:]))
    return f"a bug in ralph: {type(error).__name__}: {error} (at {where})"


def os_error_text(error: OSError) -> str:
    return error.strerror or type(error).__name__


class ToolError(Exception):
    """A failure of a tool that is for the model to read, in words it can act on: its text becomes an error
    result.

    Anything else that a tool raises is a bug.
    """
