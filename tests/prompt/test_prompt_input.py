"""Every kind of standard input that a caller may leave to ralph, beside a prompt and as the prompt."""

from __future__ import annotations

import os
import pty
import re
import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.prompt.judged_file import argument_text, prompt_text
from ralph.prompt.prompt_input import InputWait, PromptError, PromptFound, read_prompt
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


CLOSED = 987_654
FIRST_BYTE_S = 0.1


def found(fd: int, *, prompt: str | None = "review", first_byte_s: float = FIRST_BYTE_S) -> PromptFound:
    clock = SystemClock()
    wait = InputWait(InboxWaiter(clock), clock, first_byte_s, print)
    return read_prompt(prompt, None, directories=(), wait=wait, stdin_fd=fd)


@pytest.fixture
def opened() -> Iterator[Callable[..., None]]:
    """Closes these descriptors and sockets after the test."""
    with ExitStack() as stack:

        def note(*ends: int | socket.socket) -> None:
            for end in ends:
                stack.callback(os.close, end) if isinstance(end, int) else stack.callback(end.close)

        yield note


@pytest.fixture
def sockets(opened) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection. Node.js gives such a socket to its children as standard input."""
    pair = socket.socketpair()
    opened(*pair)
    return pair


def end_writing(fd: int) -> None:
    """Closes the writing end but keeps its number in use, because the fixture closes it later."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, fd)
    os.close(nothing)


@pytest.fixture
def pipe(opened) -> tuple[int, int]:
    """The reading end and the writing end of a pipe."""
    ends = os.pipe()
    opened(*ends)
    return ends


def test_where_nothing_can_come_nobody_waits_and_nothing_is_said(opened) -> None:
    ours, its = pty.openpty()
    nothing = os.open(os.devnull, os.O_RDONLY)
    ended, writing = os.pipe()
    os.close(writing)
    opened(ours, its, nothing, ended)
    os.write(ours, b"typed\n")
    for fd in (CLOSED, its, nothing, ended):
        assert found(fd, first_byte_s=0) == PromptFound("review", typed="review")


@pytest.mark.parametrize("kind", ["closed", "terminal"])
def test_a_prompt_is_not_awaited_where_none_can_come(opened, kind) -> None:
    ours, its = pty.openpty()
    opened(ours, its)
    with pytest.raises(PromptError, match="no prompt: give it in quotes"):
        found(CLOSED if kind == "closed" else its, prompt=None, first_byte_s=0)


def test_a_file_is_read_unless_somebody_has_begun_to(tmp_path: Path, opened) -> None:
    (tmp_path / "list").write_text("one\ntwo\n")
    fd = os.open(tmp_path / "list", os.O_RDONLY)
    opened(fd)
    assert found(fd).text == "review\n\none\ntwo\n"
    os.lseek(fd, 4, os.SEEK_SET)
    half_read = found(fd)
    assert (half_read.text, half_read.silent) == ("review", None)
    assert "begun to read" in half_read.notices[0]
    assert os.read(fd, 9) == b"two\n"


def test_a_silent_socket_is_left_alone_with_all_that_comes_later(sockets) -> None:
    its, ours = sockets
    left = found(its.fileno())
    assert left.text == "review"
    assert left.silent is not None
    assert list(left.silent.in_the_end) == [left.silent.notice]
    ours.sendall(b"later")
    assert left.silent.unread_bytes() == 5
    _, later = left.silent.in_the_end
    assert later.startswith("5 bytes arrived")
    assert its.recv(100) == b"later"


def test_the_end_of_a_silent_pipe_is_no_data(pipe) -> None:
    reading, writing = pipe
    left = found(reading)
    end_writing(writing)
    assert left.silent is not None
    assert left.silent.unread_bytes() == 0


def test_a_socket_that_speaks_late_is_read_to_its_end(sockets) -> None:
    its, ours = sockets

    def speak() -> None:
        ours.sendall(b"+ a line")
        ours.close()

    threading.Timer(0.05, speak).start()
    assert found(its.fileno(), first_byte_s=0).text == "review\n\n+ a line"


def test_a_pipe_that_others_have_made_non_blocking_is_read_to_its_end(pipe) -> None:
    reading, writing = pipe
    os.set_blocking(reading, False)
    os.write(writing, b"one ")

    def speak() -> None:
        os.write(writing, b"two")
        end_writing(writing)

    threading.Timer(0.05, speak).start()
    assert found(reading).text == "review\n\none two"


def test_what_cannot_be_read_is_left_alone_and_that_is_said(tmp_path: Path, opened) -> None:
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    opened(fd)
    unreadable = found(fd)
    assert (unreadable.text, unreadable.silent) == ("review", None)
    assert unreadable.notices == ("standard input cannot be read (Bad file descriptor): ralph ignores it",)


def test_data_that_breaks_off_is_no_prompt(sockets) -> None:
    """Otherwise the rest of the prompt would be missing without notice."""
    its, ours = sockets
    its.sendall(b"unread")  # so that the other side's end is a reset
    ours.sendall(b"part")
    ours.close()
    with pytest.raises(PromptError, match="broke off after 4 bytes: Connection reset"):
        found(its.fileno())


# --- Which data counts as text, and where in the data a problem is reported


@every_row("text", ["", "do it\n", "caf\xe9 \U0001f40d", "\x1b[1m\x08\x7f\r\n", "a\ufeffb"])
def test_utf_8_is_text_whatever_it_says(text) -> None:
    assert prompt_text(text.encode()) == argument_text(text) == text


def test_a_byte_order_mark_is_no_part_of_it() -> None:
    assert prompt_text("\ufeffdo it".encode()) == "do it"


@every_row(
    ("data", "where", "advice"),
    [
        (b"do\nit caf\xe9\n", "byte 10 (0xe9, in line 2)", "iconv -f LATIN1 -t UTF-8"),
        (b"\xef\xbb\xbf\xff", "byte 4 (0xff, in line 1)", "iconv -f LATIN1"),
        (b"cut off \xf0\x9f", "byte 9 (0xf0, in line 1)", "iconv -f LATIN1"),
        (b"\xed\xa0\x80", "byte 1 (0xed, in line 1)", "iconv -f LATIN1"),
        (b"\n\n" + b"x" * 2000 + b"\0", "byte 2,003 (0x00, in line 3)", "binary data"),
        (b"\x7fELF\x02\x01\x01\0\xff", "byte 8 (0x00, in line 1)", "binary data"),
        ("\ufeffhi".encode("utf-16-le"), "byte 1 (0xff, in line 1)", "iconv -f UTF-16"),
        ("\ufeffhi".encode("utf-16-be"), "byte 1 (0xfe, in line 1)", "iconv -f UTF-16"),
    ],
)
def test_other_bytes_are_refused_with_their_place(data, where, advice) -> None:
    with pytest.raises(ValueError, match=f"^is not UTF-8 text: {re.escape(where)}; ") as refused:
        prompt_text(data)
    assert advice in str(refused.value)


@given(st.binary(max_size=50))
def test_whatever_comes_is_text_or_one_line(data: bytes) -> None:
    try:
        text = prompt_text(data)
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017 - either is right, and both are looked at
    else:
        assert text.encode() == data.removeprefix(b"\xef\xbb\xbf")


def test_an_argument_s_odd_bytes_are_those_that_were_typed() -> None:
    with pytest.raises(ValueError, match=re.escape("byte 4 (0xe9")):
        argument_text(b"caf\xe9".decode("utf-8", "surrogateescape"))
