"""Reading a journal that was cut or changed anywhere gives every complete record, or an error."""

from __future__ import annotations

import zlib
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.conversation.journal_lines import JournalDamage, line_of, written_at
from ralph.conversation.messages import user_message
from ralph.conversation.records import UnknownRecord, session_record, user_record
from tests.journals.reading import read_lines, readable_part
from tests.rows import every_row

RECORDS = (
    session_record("s1", "/ä", "now", "0"),
    user_record(user_message('Say "hi"\n\u2028 🙂'), task=1),
)
LINES = list(map(line_of, count(), RECORDS))
JOURNAL = b"".join(LINES)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.text(min_size=1).filter(lambda name: name not in {"seq", "kind", "crc", "at"})


@given(st.lists(st.dictionaries(names.filter(str.isascii), json_values, max_size=4), max_size=4))
def test_what_was_written_is_read_with_its_keys_in_order(values) -> None:
    records = [UnknownRecord("of_tomorrow", fields) for fields in values]
    reading = read_lines(b"".join(map(line_of, count(), records)))
    assert [
        list(record.fields.items()) for record in reading.records if isinstance(record, UnknownRecord)
    ] == [[(name, _as_utf8(value)) for name, value in fields.items()] for fields in values]


def _as_utf8(value):
    """The value with question marks for lone surrogates, which UTF-8 cannot encode."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case list():
            return [_as_utf8(entry) for entry in value]
        case dict():
            return {_as_utf8(name): _as_utf8(entry) for name, entry in value.items()}
    return value


@every_row("length", range(len(JOURNAL) + 1))
def test_p3_a_journal_cut_at_any_byte_keeps_every_whole_line(length) -> None:
    ends = [len(LINES[0]), len(JOURNAL)]
    whole = [end for end in ends if length >= end - 1]  # a line is whole without its break
    reading = read_lines(JOURNAL[:length])
    assert (reading.records, reading.lacks_break) == (RECORDS[: len(whole)], length + 1 in ends)
    kept = max((end for end in whole), default=0)
    assert reading.torn == JOURNAL[kept:length]


@every_row("position", range(len(JOURNAL)))
def test_p3_one_flipped_bit_anywhere_is_damage_and_what_stands_before_it_can_be_read(position) -> None:
    for bit in range(8):
        changed = bytearray(JOURNAL)
        changed[position] ^= 1 << bit
        records, damage = readable_part(bytes(changed))
        line = 1 if position < len(LINES[0]) else 2
        assert damage is not None
        assert (damage.line, records) == (line, RECORDS[: line - 1])


@every_row("nuls", [1, 2, 4096])
def test_p3_a_tail_of_nul_bytes_is_damage_wherever_it_begins(nuls) -> None:
    for length in range(len(JOURNAL) + 1):
        whole = JOURNAL[:length].count(b"\n")
        for rest in (b"", JOURNAL[length + nuls :]):
            data = JOURNAL[:length] + bytes(nuls) + rest
            with pytest.raises(JournalDamage, match="NUL bytes") as caught:
                read_lines(data)
            assert caught.value.line == whole + 1
            records, damage = readable_part(data)
            assert (records, damage and damage.line) == (RECORDS[:whole], whole + 1)


def test_p3_a_line_that_is_missing_or_comes_twice_is_damage() -> None:
    with pytest.raises(JournalDamage, match="line 1 is out of order"):
        read_lines(LINES[1])
    with pytest.raises(JournalDamage, match="line 2 is out of order"):
        read_lines(LINES[0] + LINES[0])


def test_a_line_with_a_right_checksum_and_no_record_is_damage() -> None:
    for body in (b'{"a":1', b"[1", b'{"seq":0'):
        line = b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))
        assert str(readable_part(line)[1]) == "line 1 is not a record"


@given(st.dictionaries(names.filter(str.isascii), json_values, max_size=3))
def test_a_line_has_the_time_at_which_it_was_written_whatever_its_record_contains(fields) -> None:
    record = UnknownRecord("of_tomorrow", fields)
    line = line_of(0, record, 1764012345.6789)
    assert written_at(line) == written_at(line[:-1]) == 1764012345.679
    assert read_lines(line).records == read_lines(line_of(0, record)).records, (
        "the time is not a part of the record"
    )
