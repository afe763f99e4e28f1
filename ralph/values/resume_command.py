"""Writes the shell command that resumes a session. No I/O happens here."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

NEXT_PROMPT = "what to do next"
"""A placeholder in a suggested command that resumes a completed session. It stands for the new prompt, which only
such a session needs."""


def resume_command(
    name: str,
    *,
    cwd: str | None = None,
    session_dir: str | None = None,
    again: Mapping[str, str] | None = None,
    prompt: str | None = None,
) -> str:
    """The shell command that resumes a session. `name` is the session's id, or the beginning of the id. `again` maps
    options that the next run needs again to their values. If an argument is None, the command does not contain it.
    """
    options = {"--cd": cwd, "--session-dir": session_dir, **(again or {})}
    words = ["ralph", "--resume", name]
    for option, value in options.items():
        words += [option, value] if value is not None else []
    command = " ".join(map(shell_word, words))
    return f'{command} "{prompt}"' if prompt is not None else command


def shell_word(text: str) -> str:
    """The text quoted as one word of a shell command. If it is not printable, for example because a path is not
    UTF-8, its bytes are written in octal.
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_in_octal, text.encode("utf-8", "surrogateescape"))) + "'"


def _in_octal(byte: int) -> str:
    is_plain = 32 <= byte < 127 and chr(byte) not in "'\\"
    return chr(byte) if is_plain else f"\\{byte:03o}"
