"""The text of a stream must not depend on how its bytes are split, and none of it may be held back without need.
test_accumulators.py has the answer.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ralph.api.reception import StreamText
from tests.rows import every_row

MARK = b"\xef\xbb\xbf"


def decoded(*chunks: bytes) -> list[str]:
    stream = StreamText()
    return [stream.decoded(chunk) for chunk in chunks]


@every_row(
    ("chunks", "texts"),
    [
        ([b"a\nb"], ["a\nb"]),
        ([b"a\r\nb\rc\r"], ["a\nb\nc\n"]),
        ([b"a\r", b"\nb"], ["a\n", "b"]),
        ([b"a\r", b"\n", b"\nb"], ["a\n", "", "\nb"]),
        ([b"a\r", b"\r", b"b"], ["a\n", "\n", "b"]),
        ([MARK + b"a"], ["a"]),
        ([MARK[:1], MARK[1:2], MARK[2:] + b"a"], ["", "", "a"]),
        ([MARK[:2], b"a"], ["", "\ufffda"]),
        ([b"a", MARK], ["a", "\ufeff"]),
        ([MARK, MARK], ["", "\ufeff"]),
        ([b"", b"a"], ["", "a"]),
        ([b"\xc3", b"\xa9\xc3", b"x", b"\xff"], ["", "\u00e9", "\ufffdx", "\ufffd"]),
    ],
)
def test_line_ends_become_lf_at_once_and_the_mark_goes(chunks, texts) -> None:
    assert decoded(*chunks) == texts


@given(st.lists(st.sampled_from([b"\r", b"\n", b"a", MARK, MARK[:1], "ä".encode()]), max_size=12), st.data())
def test_cuts_change_nothing(parts, data) -> None:
    whole = b"".join(parts)
    at = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    chunks = [whole[start:end] for start, end in zip([0, *at], [*at, len(whole)], strict=True)]
    one, many = StreamText(), StreamText()
    assert one.decoded(whole) == "".join(map(many.decoded, chunks))
    assert one.has_invalid_utf8 == many.has_invalid_utf8


@every_row(
    ("chunks", "is_invalid"),
    [([b"caf\xe9 x"], True), ([b"\xc3", b"\xa9"], False), ([b"\xc3", b"x", b"ok"], True), ([b"\xff"], True)],
)
def test_bytes_that_are_no_utf8_are_noticed(chunks, is_invalid) -> None:
    stream = StreamText()
    for chunk in chunks:
        stream.decoded(chunk)
    assert stream.has_invalid_utf8 is is_invalid
