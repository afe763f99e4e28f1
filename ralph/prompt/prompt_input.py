"""Finds the text of the task in an argument, a file, or standard input. Piped data can follow an argument or a file; a pipe
that sends nothing then is ignored, with a notice. A terminal is never read. A prompt is refused if it is empty, is not UTF-8, or
contains a NUL byte, which does not occur in text.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.own_process import is_open
from ralph.prompt.named_file import open_named_file, refuse_kernel_file
from ralph.prompt.piped_input import InputReader, SilentPipe
from ralph.values.shortage import shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ralph.prompt.piped_input import PipedData
    from ralph.values.ports import Clock, Waiter

# Larger than any context window.
MOST_PROMPT_BYTES = 16 * 1024 * 1024

_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_UTF_16 = "this looks like UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`"
_BINARY = "this looks like binary data; name the file in the prompt instead"
_OTHER = "if it is Latin-1, convert it with `iconv -f LATIN1 -t UTF-8`"
_WAYS = "give it in quotes, with -f FILE, or on standard input; `ralph help using` has examples"
_KEEPS_IT_OUT = "; if there is no input, start ralph with </dev/null"


class PromptError(Exception):
    """The prompt cannot be used, for the reason in the message. The process ends with exit code 2."""


class InputWait(Struct, frozen=True):
    """The ports for waiting for input, and the time limit for the first byte of the input."""

    waiter: Waiter
    clock: Clock
    first_byte_s: float
    """The time limit for the first byte (`clocks.input_s`). 0 means no limit."""
    tell: Callable[[str], None]
    """Tells the user about a long wait, at most once for each input."""


class PromptFound(Struct, frozen=True):
    text: str | None
    """None if no prompt was required, and there is none."""
    notices: tuple[str, ...] = ()
    silent: SilentPipe | None = None
    """The pipe on standard input if it sent no byte in time."""
    typed: str | None = None
    """The part of `text` that was an argument of the command line."""
    own_chars: int | None = None
    """The number of characters of `text` above piped data. None if the whole text has one source."""


class _Piped(Struct, frozen=True):
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
    """Finds the text of the task. `argument` is the prompt on the command line, and `file` the path of a prompt file; `-` is
    standard input. `directories` are as in `open_named_file`. If `is_required` is False and there is neither a prompt nor
    piped data, the text is None. Raises PromptError and ShortageError, and Interrupted after a signal or the time limit.
    """
    if argument is not None and file is not None:
        raise PromptError("both a prompt and --prompt-file were given; use one of them")
    if argument is None and file is None and not is_required:
        piped = _piped_data(wait, stdin_fd)
        return PromptFound(piped.text if piped.text.strip() else None, piped.notices, piped.silent)
    if "-" in (argument, file):
        argument, file = None, None
    typed = argument = None if argument is None else _decoded(argument, "the prompt")
    if file is not None:
        argument = _read_file(file, directories, wait)
    if argument is None:
        return PromptFound(_required_stdin(wait, stdin_fd))
    if not argument.strip():
        raise PromptError(f"the prompt file {file} is empty" if file is not None else "the prompt is empty")
    piped = _piped_data(wait, stdin_fd)
    if not piped.text.strip():
        return PromptFound(argument, piped.notices, piped.silent, typed)
    own = argument.rstrip()
    return PromptFound(f"{own}\n\n{piped.text}", piped.notices, piped.silent, typed, len(own))


def _read_file(path: str, directories: Sequence[str | Path], wait: InputWait) -> str:
    """Reads a file as standard input is read, so that a FIFO cannot block the run, and a device cannot fill the memory."""
    try:
        # Only opening must not block, because a FIFO may have no writer yet. Reads may block: a thread does them.
        fd = open_named_file(path, directories)
        os.set_blocking(fd, True)
    except OSError as error:
        _raise_shortage(error)
        raise PromptError(f"cannot read the prompt file {path}: {error.strerror}") from error
    return _required_text(wait, fd, f"the prompt file {path}")


def _required_stdin(wait: InputWait, fd: int) -> str:
    if not is_open(fd) or os.isatty(fd):
        raise PromptError(f"no prompt: {_WAYS}")
    _refuse_kernel_file(fd)
    text = _required_text(wait, fd, "standard input", "; close it, or give the prompt as an argument")
    if not text.strip():
        raise PromptError(f"the prompt on standard input is empty: {_WAYS}")
    return text


def _required_text(wait: InputWait, fd: int, name: str, instead: str = "") -> str:
    received, _ = _received(wait, fd, name)
    if received is None:
        raise PromptError(f"{name} stayed silent for {wait.first_byte_s:g}s{instead}")
    if received.error is not None:
        _raise_shortage(received.error)
        raise PromptError(f"cannot read {name}: {received.error.strerror}")
    return _text_of(received, name)


def _piped_data(wait: InputWait, fd: int) -> _Piped:
    """Reads the data on standard input that is added to a prompt. The result also contains notices about this data."""
    if not _may_add(fd):
        return _Piped()
    _refuse_kernel_file(fd)
    # Another program, such as a shell's `while read` loop, may have read a part of the file: the rest is not for ralph.
    if stat.S_ISREG(os.fstat(fd).st_mode) and os.lseek(fd, 0, os.SEEK_CUR) > 0:
        return _Piped(
            notices=("standard input is a file that another process has begun to read: ralph ignores it",)
        )
    name = "standard input"
    received, silent = _received(wait, fd, name, _KEEPS_IT_OUT)
    if received is None:
        return _Piped(silent=silent)
    if received.error is not None:
        _raise_shortage(received.error)
        if received.data:
            broke_off = f"after {len(received.data):,} bytes: {received.error.strerror}"
            raise PromptError(f"standard input broke off {broke_off}; the prompt would lack the rest")
        return _Piped(
            notices=(f"standard input cannot be read ({received.error.strerror}): ralph ignores it",)
        )
    if not received.data.strip():
        return _Piped()
    count = f"{len(received.data):,} bytes"
    return _Piped(_text_of(received, name), (f"added {count} from standard input to the prompt",))


def _received(
    wait: InputWait, fd: int, name: str, advice: str = ""
) -> tuple[PipedData | None, SilentPipe | None]:
    """The data of a pipe or a file, or the pipe if nothing came in time."""
    received = InputReader(wait, fd, name, most_bytes=MOST_PROMPT_BYTES, advice=advice).read()
    return received, SilentPipe(fd, wait.first_byte_s) if received is None else None


def _text_of(received: PipedData, name: str) -> str:
    if len(received.data) > MOST_PROMPT_BYTES:
        raise PromptError(
            f"{name} holds more than {MOST_PROMPT_BYTES >> 20} MiB; name a file in the prompt instead"
        )
    return _decoded(received.data, name)


def _decoded(data: bytes | str, name: str) -> str:
    try:
        return argument_text(data) if isinstance(data, str) else prompt_text(data)
    except ValueError as error:
        raise PromptError(f"{name} {error}") from None


def _raise_shortage(error: OSError) -> None:
    """Raises ShortageError for an error that says nothing about the input, but that the machine lacks something."""
    short = shortage_of(error)
    if short is not None:
        raise short from error


def _refuse_kernel_file(fd: int) -> None:
    """In `ralph < PROMPT.md`, PROMPT.md may be a link to /proc/self/environ, which contains the API key."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return
    try:
        refuse_kernel_file(fd, "/dev/stdin")
    except OSError as error:
        raise PromptError(f"standard input is not read: {error.strerror}") from error


def _may_add(fd: int) -> bool:
    """Whether standard input may contain data for the prompt: no terminal and no other device."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def prompt_text(data: bytes) -> str:
    """The bytes as text, without a byte order mark. Raises ValueError, before whose text the caller puts the source's name."""
    refuse_binary(data)
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(_refusal(data, error.start, _OTHER)) from None


def refuse_binary(data: bytes) -> None:
    """Raises the error of `prompt_text` if the bytes are UTF-16 or contain NUL, so that no part of them is text."""
    if data.startswith(_UTF_16_MARKS):
        raise ValueError(_refusal(data, 0, _UTF_16))
    first_nul = data.find(b"\0")
    if first_nul >= 0:
        raise ValueError(_refusal(data, first_nul, _BINARY))


def argument_text(argument: str) -> str:
    """The prompt in a command-line argument. Raises the errors of `prompt_text`."""
    # Python decodes bytes of an argument that are not UTF-8 as lone surrogates.
    return prompt_text(argument.encode("utf-8", "surrogateescape"))


def _refusal(data: bytes, index: int, advice: str) -> str:
    line = data.count(b"\n", 0, index) + 1
    return f"is not UTF-8 text: byte {index + 1:,} (0x{data[index]:02x}, in line {line:,}); {advice}"
