"""Finds the text of the task: the argument, a file, standard input, or an argument with piped data below it.

A terminal is never read. A silent pipe is left alone, with a notice. Refuses an empty prompt, and a prompt that is
not UTF-8 text.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from ralph.prompt.prompt_text import argument_text, prompt_text
from ralph.values.shortage import shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ralph.prompt.piped_input import Received, SilentPipe
    from ralph.values.ports import Clock, Waiter

# Larger than any context window.
MOST_PROMPT_BYTES = 16 * 1024 * 1024

_KEEPS_IT_OUT = "; start ralph with </dev/null where nothing is to come from it"


class PromptError(Exception):
    """One line that says what is wrong with the prompt and what to do (exit 2)."""


class InputWait(NamedTuple):
    """The ports for waiting for input, and how long its first byte may take."""

    waiter: Waiter
    clock: Clock
    first_byte_s: float
    """`clocks.input_s`; 0: no limit."""
    tell: Callable[[str], None]
    """Reports a long wait for the first byte, once. The argument names the awaited input."""


class PromptFound(NamedTuple):
    text: str | None
    """The prompt's text; None: none was given, and none was required."""
    notices: tuple[str, ...] = ()
    """Notices for people about the prompt's sources."""
    silent: SilentPipe | None = None
    """Standard input, if no first byte came in time."""


class _Piped(NamedTuple):
    text: str = ""
    notices: tuple[str, ...] = ()
    silent: SilentPipe | None = None


def read_prompt(
    argument: str | None,
    file: str | None,
    *,
    directories: Sequence[str | Path],
    wait: InputWait,
    stdin_fd: int = 0,
    is_required: bool = True,
) -> PromptFound:
    """The task's text. Raises PromptError, ShortageError, and `Interrupted` when a signal came or the time is up.

    `directories`: where ralph was started and where it works, to tell a repository's links from the user's. Without
    `is_required`, the text is None if there is neither a prompt nor piped data.
    """
    if argument is not None and file is not None:
        raise PromptError("both a prompt and --prompt-file were given; use one of them")
    if argument is None and file is None and not is_required:
        piped = _piped_data(wait, stdin_fd)
        return PromptFound(piped.text if piped.text.strip() else None, piped.notices, piped.silent)
    if "-" in (argument, file):
        argument, file = None, None
    if file is not None:
        argument = _read_file(file, directories, wait)
    elif argument is not None:
        argument = _decoded(argument, "the prompt")
    if argument is None:
        return PromptFound(_required_stdin(wait, stdin_fd))
    if not argument.strip():
        raise PromptError(f"the prompt file {file} is empty" if file is not None else "the prompt is empty")
    piped = _piped_data(wait, stdin_fd)
    text = f"{argument.rstrip()}\n\n{piped.text}" if piped.text.strip() else argument
    return PromptFound(text, piped.notices, piped.silent)


def _read_file(path: str, directories: Sequence[str | Path], wait: InputWait) -> str:
    """The text of a file. It is read like standard input, so that a FIFO or a device neither blocks the run nor fills
    its memory.
    """
    from ralph.prompt.named_file import open_named_file  # noqa: PLC0415 - most prompts are arguments

    try:
        # It is non-blocking only to open a FIFO that nobody writes to yet.
        fd = open_named_file(path, directories)
        os.set_blocking(fd, True)
    except OSError as error:
        _raise_shortage(error)
        raise PromptError(f"cannot read the prompt file {path}: {error.strerror}") from error
    return _required_text(wait, fd, f"the prompt file {path}")


def _required_stdin(wait: InputWait, fd: int) -> str:
    if not _is_open(fd) or os.isatty(fd):
        raise PromptError("no prompt: give it as an argument, with --prompt-file, or on standard input")
    _refuse_kernel_file(fd)
    text = _required_text(wait, fd, "standard input", "; close it, or give the prompt as an argument")
    if not text.strip():
        raise PromptError("the prompt on standard input is empty")
    return text


def _required_text(wait: InputWait, fd: int, name: str, instead: str = "") -> str:
    from ralph.prompt.piped_input import InputReader  # noqa: PLC0415 - a prompt on the command line needs none

    received = InputReader(wait, fd, name, most_bytes=MOST_PROMPT_BYTES).read()
    if received is None:
        raise PromptError(f"{name} stayed silent for {wait.first_byte_s:g}s{instead}")
    if received.error is not None:
        _raise_shortage(received.error)
        raise PromptError(f"cannot read {name}: {received.error.strerror}")
    return _text_of(received, name)


def _piped_data(wait: InputWait, fd: int) -> _Piped:
    """The data that is piped in besides the prompt, and the notices about it."""
    if not _may_add(fd):
        return _Piped()
    _refuse_kernel_file(fd)
    if _is_half_read(fd):
        return _Piped(notices=("standard input is a file that somebody has begun to read: left alone",))
    from ralph.prompt.piped_input import InputReader, SilentPipe  # noqa: PLC0415 - as above

    name = "standard input"
    received = InputReader(wait, fd, name, most_bytes=MOST_PROMPT_BYTES, advice=_KEEPS_IT_OUT).read()
    if received is None:
        return _Piped(silent=SilentPipe(fd, wait.first_byte_s))
    if received.error is not None:
        _raise_shortage(received.error)
        if received.data:
            broke_off = f"after {len(received.data):,} bytes: {received.error.strerror}"
            raise PromptError(f"standard input broke off {broke_off}; the prompt would lack the rest")
        return _Piped(notices=(f"standard input cannot be read ({received.error.strerror}): left alone",))
    if not received.data.strip():
        return _Piped()
    count = f"{len(received.data):,} bytes"
    return _Piped(_text_of(received, name), (f"{count} from standard input stand below the prompt",))


def _text_of(received: Received, name: str) -> str:
    if len(received.data) > MOST_PROMPT_BYTES:
        raise PromptError(
            f"{name} holds more than {MOST_PROMPT_BYTES >> 20} MiB; have the prompt name a file instead"
        )
    return _decoded(received.data, name)


def _decoded(data: bytes | str, name: str) -> str:
    """The text of an argument, or of bytes from a file or a pipe."""
    try:
        return argument_text(data) if isinstance(data, str) else prompt_text(data)
    except ValueError as error:
        raise PromptError(f"{name} {error}") from None


def _raise_shortage(error: OSError) -> None:
    """Raises ShortageError if the error is due to a shortage.

    The input is valid, and piped data must not be dropped because a thread is missing.
    """
    short = shortage_of(error)
    if short is not None:
        raise short from error


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _refuse_kernel_file(fd: int) -> None:
    """Refuses a file on standard input that the kernel generates.

    In `ralph < PROMPT.md` the shell follows any link, also one to /proc/self/environ.
    """
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return
    from ralph.prompt.named_file import refuse_kernel_file  # noqa: PLC0415 - few prompts are redirected files

    try:
        refuse_kernel_file(fd, "/dev/stdin")
    except OSError as error:
        raise PromptError(f"standard input is not read: {error.strerror}") from error


def _may_add(fd: int) -> bool:
    """Whether standard input can hold data. A device (terminal, /dev/null) cannot."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def _is_half_read(fd: int) -> bool:
    """Whether another program, such as a shell's `while read` loop, has read a part of standard input: the rest is not
    for ralph.
    """
    return stat.S_ISREG(os.fstat(fd).st_mode) and os.lseek(fd, 0, os.SEEK_CUR) > 0
