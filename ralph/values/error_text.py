"""Describes exceptions in one line: the system's own words, a tool's words for the model, the place of a bug."""

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
    """A tool's failure, described so that the model can act on it: the text becomes the call's error result.

    Any other exception from a tool is a bug.
    """
