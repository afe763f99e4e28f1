"""Tests which data counts as text, and where in the data a problem is reported."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.prompt.prompt_input import argument_text, prompt_text
from tests.rows import every_row


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
