"""Finds the text of the task in an argument, a file, or standard input. Piped data can follow an argument or a file; a pipe
that sends nothing then is ignored, with a notice. A terminal is never read. A prompt is refused if it is empty, is not UTF-8, or
contains a NUL byte, which does not occur in text.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import struct
import termios
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.own_process import is_open
from ralph.machine.process_start import is_piped
from ralph.machine.starting import patiently, start_thread
from ralph.prompt.judged_file import argument_text, open_named_file, prompt_text, refuse_kernel_file
from ralph.values.outcome import ShortageError, shortage_of
from ralph.values.ports import TIMED_OUT, Mailbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ralph.values.ports import Clock, Waiter

# Larger than any context window.
MOST_PROMPT_BYTES = 16 * 1024 * 1024

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
        return _piped_data(wait, stdin_fd)
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
    if piped.text is None:
        return replace(piped, text=argument, typed=typed)
    own = argument.rstrip()
    return replace(piped, text=f"{own}\n\n{piped.text}", typed=typed, own_chars=len(own))


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
    received = InputReader(wait, fd, name).read()
    if received is None:
        raise PromptError(f"{name} stayed silent for {wait.first_byte_s:g}s{instead}")
    if received.error is not None:
        _raise_shortage(received.error)
        raise PromptError(f"cannot read {name}: {received.error.strerror}")
    return _text_of(received, name)


def _piped_data(wait: InputWait, fd: int) -> PromptFound:
    """Reads the data on standard input that is added to a prompt, with notices about it."""
    if not is_piped(fd):
        return PromptFound(None)
    _refuse_kernel_file(fd)
    # Another program, such as a shell's `while read` loop, may have read a part of the file: the rest is not for ralph.
    if stat.S_ISREG(os.fstat(fd).st_mode) and os.lseek(fd, 0, os.SEEK_CUR) > 0:
        return PromptFound(
            None, ("standard input is a file that another process has begun to read: ralph ignores it",)
        )
    name = "standard input"
    received = InputReader(wait, fd, name, _KEEPS_IT_OUT).read()
    if received is None:
        return PromptFound(None, silent=SilentPipe(fd, wait.first_byte_s))
    if received.error is not None:
        _raise_shortage(received.error)
        if received.data:
            broke_off = f"after {len(received.data):,} bytes: {received.error.strerror}"
            raise PromptError(f"standard input broke off {broke_off}; the prompt would lack the rest")
        return PromptFound(
            None, (f"standard input cannot be read ({received.error.strerror}): ralph ignores it",)
        )
    text = _text_of(received, name)
    if not text.strip():
        return PromptFound(None)
    return PromptFound(text, (f"added {len(received.data):,} bytes from standard input to the prompt",))


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


# --- Reading a pipe or a file to its end
# Only the wait for the first byte has a time limit. If none arrives in time, ralph takes nothing, and another program that
# reads the pipe finds all data.

SAYS_SO_AFTER_S = 3.0
"""Then the user, who may not know that there is a pipe, gets a notice that ralph is waiting."""
_CHUNK_BYTES = 65_536


class PipedData(Struct, frozen=True):
    data: bytes
    error: OSError | None = None


class SilentPipe(Struct, frozen=True):
    """A pipe on standard input that sent no byte in time, and from which nothing was read."""

    fd: int
    waited_s: float

    @property
    def notice(self) -> str:
        return (
            f"standard input is an open pipe, and no data arrived within {self.waited_s:g}s: ralph ignores it, and data that "
            "arrives later; if there is no input, start ralph with </dev/null; else raise clocks.input_s"
        )

    @property
    def refusal(self) -> str:
        """The error for data that arrived after ralph had stopped waiting, and would be missing in the prompt."""
        return (
            f"data arrived on standard input after {self.waited_s:g}s of silence, when ralph had stopped waiting: nothing was "
            "sent to the model; raise clocks.input_s, or, if the data is not for ralph, start it with </dev/null"
        )

    @property
    def in_the_end(self) -> tuple[str, ...]:
        """Notices for the result: that no data arrived in time, and how many bytes have since then."""
        count = self.unread_bytes()
        arrived = "1 byte" if count == 1 else f"{count:,} bytes"
        later = (f"{arrived} arrived on standard input later and were not read",) if count else ()
        return (self.notice, *later)

    def unread_bytes(self) -> int:
        """The number of bytes that have arrived, or 0 if the system cannot tell."""
        try:
            answer = fcntl.ioctl(self.fd, termios.FIONREAD, struct.pack("i", 0))
        except OSError:
            return 0
        (count,) = struct.unpack("i", answer)
        return int(count)


class InputReader:
    """Reads the input from one descriptor, once."""

    def __init__(self, wait: InputWait, fd: int, name: str, advice: str = "") -> None:
        """`name` stands for the input in messages. `advice` ends the notice about a long wait."""
        self._wait = wait
        self._fd = fd
        self._name = name
        self._advice = advice
        self._says_so_at_s: float | None = wait.clock.now_s() + SAYS_SO_AFTER_S

    def read(self) -> PipedData | None:
        """Reads the whole input, or a little more than `MOST_PROMPT_BYTES`. None if neither a byte nor the end came
        in time. Raises Interrupted, and ShortageError if the machine lacks a thread or memory.
        """
        if not _poll(self._fd, 0) and not self._has_something():
            return None
        mailbox = self._wait.waiter.mailbox()
        self._start(_read_chunks, self._fd, mailbox)
        data = bytearray()
        while True:
            so_far = f"{len(data):,} bytes so far"
            chunk = self._next(mailbox, None, f"the end of {self._name}", so_far)
            if isinstance(chunk, MemoryError):
                raise ShortageError("memory") from chunk
            if isinstance(chunk, OSError):
                return PipedData(bytes(data), chunk)
            data += chunk
            if not chunk or len(data) > MOST_PROMPT_BYTES:
                mailbox.close()
                return PipedData(bytes(data))

    def _has_something(self) -> bool:
        seconds = self._wait.first_byte_s
        until_s = self._wait.clock.now_s() + seconds if seconds > 0 else None
        limit = f"{seconds:g}s at most" if seconds > 0 else "without a limit"
        mailbox = self._wait.waiter.mailbox()
        self._start(_watch, self._fd, mailbox)
        spoke = self._next(mailbox, until_s, f"the first byte of {self._name}", f"{limit}, clocks.input_s")
        mailbox.close()
        return spoke is not TIMED_OUT or _poll(self._fd, 0)

    def _next(self, mailbox: Mailbox, until_s: float | None, waiting_for: str, about: str) -> Any:
        waiter, says_so_at_s = self._wait.waiter, self._says_so_at_s
        if says_so_at_s is not None and (until_s is None or says_so_at_s < until_s):
            item = waiter.wait(mailbox, until_s=says_so_at_s, waiting_for=waiting_for)
            if item is not TIMED_OUT:
                return item
            self._says_so_at_s = None
            self._wait.tell(f"waiting for {waiting_for} ({about}){self._advice}")
        return waiter.wait(mailbox, until_s=until_s, waiting_for=waiting_for)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        def start() -> None:
            start_thread(work, *arguments, name="ralph-input")

        patiently(start, self._wait.waiter, self._wait.clock)


def _poll(fd: int, timeout_ms: int | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_ms))


def _watch(fd: int, mailbox: Mailbox) -> None:
    """Runs in a thread, which may last until the process ends."""
    _poll(fd, None)
    mailbox.put(True)


def _read_chunks(fd: int, mailbox: Mailbox) -> None:
    """Runs in a thread, until the input ends or has more than `MOST_PROMPT_BYTES`."""
    read_bytes = 0
    while read_bytes <= MOST_PROMPT_BYTES:
        try:
            chunk = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:  # another process that shares the pipe has made it non-blocking for all
            _poll(fd, None)
            continue
        except (OSError, MemoryError) as error:
            mailbox.put(error)
            return
        mailbox.put(chunk)
        read_bytes += len(chunk)
        if not chunk:
            return
