"""Where the task comes from: the argument, a file, standard input, or an argument with piped data below it.

A terminal is never read. A pipe that stays silent is left alone, and that is said. Refuses an empty prompt, and one
that is not UTF-8 text.
"""

from __future__ import annotations

import os
import stat
import threading
from typing import TYPE_CHECKING

from ralph.core.prompt_text import argument_text, prompt_text
from ralph.ports import TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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
    argument: str | None,
    file: str | None,
    *,
    directories: Sequence[str | Path],
    waiter: Waiter,
    clock: Clock,
    stdin_fd: int = 0,
    is_required: bool = True,
) -> tuple[str | None, tuple[str, ...]]:
    """The task's text, and notices for people. Raises PromptError; `Interrupted` when a signal came.

    `directories`: where ralph was called and where it works, to tell a repository's links from the user's. Without `is_required` None is a prompt too, where nothing was given and nothing is piped in.
    """
    if argument is not None and file is not None:
        raise PromptError("both a prompt and --prompt-file were given; use one of them")
    if argument is None and file is None and not is_required:
        piped, notices = _piped_data(waiter, clock, stdin_fd)
        return piped if piped.strip() else None, notices
    if "-" in (argument, file):
        argument, file = None, None
    if file is not None:
        argument = _read_file(file, directories, waiter, clock)
    elif argument is not None:
        argument = _decoded(argument, "the prompt")
    if argument is None:
        return _required_stdin(waiter, clock, stdin_fd), ()
    if not argument.strip():
        raise PromptError(f"the prompt file {file} is empty" if file is not None else "the prompt is empty")
    piped, notices = _piped_data(waiter, clock, stdin_fd)
    return (f"{argument.rstrip()}\n\n{piped}" if piped.strip() else argument), notices


def _read_file(path: str, directories: Sequence[str | Path], waiter: Waiter, clock: Clock) -> str:
    """Read like standard input: a FIFO or a device must neither hang the run nor fill its memory."""
    from ralph.effects.named_file import open_named_file  # noqa: PLC0415 - most prompts are arguments

    try:
        # Non-blocking only for the opening of a FIFO that nobody writes to yet.
        fd = open_named_file(path, directories)
        os.set_blocking(fd, True)
        data = _read_to_end(waiter, clock, fd, FIRST_BYTE_S, f"the prompt file {path}")
    except OSError as error:
        raise PromptError(f"cannot read the prompt file {path}: {error.strerror}") from error
    if data is None:
        raise PromptError(f"the prompt file {path} stayed silent for {FIRST_BYTE_S:g}s")
    return _decoded(data, f"the prompt file {path}")


def _required_stdin(waiter: Waiter, clock: Clock, fd: int) -> str:
    if not _is_open(fd) or os.isatty(fd):
        raise PromptError("no prompt: give it as an argument, with --prompt-file, or on standard input")
    _refuse_kernel_file(fd)
    try:
        data = _read_to_end(waiter, clock, fd, FIRST_BYTE_S, "standard input")
    except OSError as error:
        raise PromptError(f"cannot read standard input: {error.strerror}") from error
    if data is None:
        raise PromptError(
            f"standard input stayed silent for {FIRST_BYTE_S:g}s; close it, or give the prompt as an argument"
        )
    text = _decoded(data, "standard input")
    if not text.strip():
        raise PromptError("the prompt on standard input is empty")
    return text


def _piped_data(waiter: Waiter, clock: Clock, fd: int) -> tuple[str, tuple[str, ...]]:
    """Data that was piped in beside the prompt, and what to say about it."""
    if not _may_add(fd):
        return "", ()
    _refuse_kernel_file(fd)
    if _is_half_read(fd):
        return "", ("standard input is a file that somebody has begun to read: left alone",)
    try:
        data = _read_to_end(waiter, clock, fd, SILENT_PIPE_S, "the end of standard input")
    except OSError as error:
        return "", (f"standard input cannot be read ({error.strerror}): left alone",)
    if data is None:
        return "", (f"standard input is an open pipe that stayed silent for {SILENT_PIPE_S:g}s: left alone",)
    if not data.strip():
        return "", ()
    return _decoded(data, "standard input"), (
        f"{len(data):,} bytes from standard input stand below the prompt",
    )


def _read_to_end(waiter: Waiter, clock: Clock, fd: int, first_byte_s: float, name: str) -> bytes | None:
    """Everything up to end of file; None when not even a first byte came in time. Raises OSError."""
    mailbox = waiter.mailbox()
    threading.Thread(target=_read_chunks, args=(fd, mailbox), name="ralph-prompt", daemon=True).start()
    data = bytearray()
    until_s: float | None = clock.now_s() + first_byte_s
    while True:
        chunk = waiter.wait(mailbox, until_s=until_s, waiting_for=f"the end of {name}" if data else name)
        if chunk is TIMED_OUT:
            mailbox.close()
            return None
        if isinstance(chunk, OSError):
            raise chunk
        if not chunk:
            return bytes(data)
        data += chunk
        until_s = None
        if len(data) > MOST_PROMPT_BYTES:
            mailbox.close()
            raise PromptError(
                f"{name} holds more than {MOST_PROMPT_BYTES >> 20} MiB; have the prompt name a file instead"
            )


def _read_chunks(fd: int, mailbox: Mailbox) -> None:
    """In a thread of its own. It reads on only while somebody wants more."""
    read_bytes = 0
    while read_bytes <= MOST_PROMPT_BYTES:
        try:
            chunk = os.read(fd, 65536)
        except OSError as error:
            mailbox.put(error)
            return
        mailbox.put(chunk)
        read_bytes += len(chunk)
        if not chunk:
            return


def _decoded(data: bytes | str, name: str) -> str:
    """`data`: an argument, or the bytes of something else."""
    try:
        return argument_text(data) if isinstance(data, str) else prompt_text(data)
    except ValueError as error:
        raise PromptError(f"{name} {error}") from None


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _refuse_kernel_file(fd: int) -> None:
    """`ralph < PROMPT.md`, where that is a link to /proc/self/environ: a shell follows any link."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return
    from ralph.effects.named_file import refuse_kernel_file  # noqa: PLC0415 - few prompts are redirected files

    try:
        refuse_kernel_file(fd, "/dev/stdin")
    except OSError as error:
        raise PromptError(f"standard input is not read: {error.strerror}") from error


def _may_add(fd: int) -> bool:
    """A device (terminal, /dev/null) has nothing to add."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def _is_half_read(fd: int) -> bool:
    """The rest of a file that a shell's `while read` loop goes through is not for us."""
    return stat.S_ISREG(os.fstat(fd).st_mode) and os.lseek(fd, 0, os.SEEK_CUR) > 0
