"""Describes an exception in one line. The exception is an error of the operating system, a tool's error for the
model, or a bug in ralph.
"""

from __future__ import annotations

from pathlib import PurePath

_MOST_FRAMES = 4


def describe_bug(error: BaseException) -> str:
    """One line with the class of the exception, its message and its innermost frames. The innermost frame comes
    first. Apart from the message, the line contains no source text and no values of variables.
    """
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
    """A failure of a tool. Its text is written for the model and becomes the result of the tool call.

    Any other exception from a tool is a bug in ralph.
    """
