"""The events must not depend on how the bytes of a stream were split, and no event may be held back without
need.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ralph.api.reception import StreamBytes
from tests.rows import every_row

MARK = b"\xef\xbb\xbf"


def cleaned(*chunks: bytes) -> list[bytes]:
    stream = StreamBytes()
    return [stream.clean(chunk) for chunk in chunks]


@every_row(
    ("chunks", "clean"),
    [
        ([b"a\nb"], [b"a\nb"]),
        ([b"a\r\nb\rc\r"], [b"a\nb\nc\n"]),
        ([b"a\r", b"\nb"], [b"a\n", b"b"]),
        ([b"a\r", b"\n", b"\nb"], [b"a\n", b"", b"\nb"]),
        ([b"a\r", b"\r", b"b"], [b"a\n", b"\n", b"b"]),
        ([MARK + b"a"], [b"a"]),
        ([MARK[:1], MARK[1:2], MARK[2:] + b"a"], [b"", b"", b"a"]),
        ([MARK[:2], b"a"], [b"", MARK[:2] + b"a"]),
        ([b"a", MARK], [b"a", MARK]),
        ([b"", b"a"], [b"", b"a"]),
    ],
)
def test_line_ends_become_lf_at_once_and_the_mark_goes(chunks, clean) -> None:
    assert cleaned(*chunks) == clean


@given(st.lists(st.sampled_from([b"\r", b"\n", b"a", MARK, MARK[:1], "ä".encode()]), max_size=12), st.data())
def test_cuts_change_nothing(parts, data) -> None:
    whole = b"".join(parts)
    at = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    chunks = [whole[start:end] for start, end in zip([0, *at], [*at, len(whole)], strict=True)]
    one, many = StreamBytes(), StreamBytes()
    # As long as all bytes so far may begin a byte order mark, nothing is certain.
    assert one.clean(whole) == b"".join(map(many.clean, chunks))
    assert one.has_invalid_utf8 == many.has_invalid_utf8


@every_row(
    ("chunks", "is_invalid"),
    [([b"caf\xe9 x"], True), ([b"\xc3", b"\xa9"], False), ([b"\xc3", b"x", b"ok"], True), ([b"\xff"], True)],
)
def test_bytes_that_are_no_utf8_are_noticed(chunks, is_invalid) -> None:
    stream = StreamBytes()
    for chunk in chunks:
        stream.clean(chunk)
    assert stream.has_invalid_utf8 is is_invalid
