"""Where the task comes from: the argument, a file, standard input, or an argument with piped data below it.

A terminal is never read. A pipe that stays silent is left alone, and that is said. Refuses an empty prompt.
"""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.ports import TIMED_OUT

if TYPE_CHECKING:
    from ralph.ports import Clock, Mailbox, Waiter

# With a prompt given, a pipe that says nothing for this long has nothing to add.
SILENT_PIPE_S = 1.0
# Standard input asked for by name (`-`, or no other prompt): so long for its first byte, then to its end.
FIRST_BYTE_S = 30.0
# Larger than any context window.
MOST_PROMPT_BYTES = 16 * 1024 * 1024


class PromptError(Exception):
    """One line that says what is wrong with the prompt and what to do (exit 2)."""


def read_prompt(
    argument: str | None, file: str | None, *, waiter: Waiter, clock: Clock, stdin_fd: int = 0
) -> tuple[str, tuple[str, ...]]:
    """The task's text, and notices for people. Raises PromptError; `Interrupted` when a signal came."""
    if argument is not None and file is not None:
        raise PromptError("both a prompt and --prompt-file were given; use one of them")
    if "-" in (argument, file):
        argument, file = None, None
        return _required_stdin(waiter, clock, stdin_fd), ()
    given = _read_file(file) if file is not None else argument
    if given is None:
        return _required_stdin(waiter, clock, stdin_fd), ()
    if not given.strip():
        raise PromptError(f"the prompt file {file} is empty" if file is not None else "the prompt is empty")
    piped, notice = _piped_data(waiter, clock, stdin_fd)
    prompt = f"{given.rstrip()}\n\n{piped}" if piped.strip() else given
    return prompt, (notice,) if notice else ()


def _read_file(path: str) -> str:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise PromptError(f"cannot read the prompt file {path}: {error.strerror}") from error
    return _decoded(data)


def _required_stdin(waiter: Waiter, clock: Clock, fd: int) -> str:
    if not _is_open(fd) or os.isatty(fd):
        raise PromptError("no prompt: give it as an argument, with --prompt-file, or on standard input")
    data = _read_stdin(waiter, clock, fd, FIRST_BYTE_S)
    if data is None:
        raise PromptError(
            f"standard input stayed silent for {FIRST_BYTE_S:g}s; close it, or give the prompt as an argument"
        )
    text = _decoded(data)
    if not text.strip():
        raise PromptError("the prompt on standard input is empty")
    return text


def _piped_data(waiter: Waiter, clock: Clock, fd: int) -> tuple[str, str | None]:
    """Data that was piped in beside the prompt, and a notice where a pipe stayed silent."""
    if not _is_pipe_or_file(fd):
        return "", None
    data = _read_stdin(waiter, clock, fd, SILENT_PIPE_S)
    if data is None:
        return "", f"standard input is an open pipe that stayed silent for {SILENT_PIPE_S:g}s: left alone"
    return _decoded(data), None


def _read_stdin(waiter: Waiter, clock: Clock, fd: int, first_byte_s: float) -> bytes | None:
    """Everything up to end of file; None when not even a first byte came in time."""
    mailbox = waiter.mailbox()
    threading.Thread(target=_read_chunks, args=(fd, mailbox), name="ralph-stdin", daemon=True).start()
    data = bytearray()
    until_s: float | None = clock.now_s() + first_byte_s
    while True:
        chunk = waiter.wait(mailbox, until_s=until_s, waiting_for="standard input")
        if chunk is TIMED_OUT:
            mailbox.close()
            return None
        if isinstance(chunk, OSError):
            raise PromptError(f"cannot read standard input: {chunk.strerror}")
        if not chunk:
            return bytes(data)
        data += chunk
        until_s = None
        if len(data) > MOST_PROMPT_BYTES:
            raise PromptError(
                f"standard input holds more than {MOST_PROMPT_BYTES >> 20} MiB; name a file in the prompt instead"
            )


def _read_chunks(fd: int, mailbox: Mailbox) -> None:
    while True:
        try:
            chunk = os.read(fd, 65536)
        except OSError as error:
            mailbox.put(error)
            return
        mailbox.put(chunk)
        if not chunk:
            return


def _decoded(data: bytes) -> str:
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _is_pipe_or_file(fd: int) -> bool:
    """A device (terminal, /dev/null) has nothing to add."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)
