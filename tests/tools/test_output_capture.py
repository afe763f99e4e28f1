from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.machine.files import trees
from ralph.machine.files.trees import SpillDirectory
from ralph.machine.running_command import OutputCapture, StreamRedaction, readable_text
from ralph.values.redaction import Redactor
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "geheim-ß-123"


class Counting(Redactor):
    """Counts the characters in which it looks for a secret."""

    looked_at = 0

    def redact(self, text: str) -> str:
        Counting.looked_at += len(text)
        return super().redact(text)


@pytest.fixture
def spill() -> Iterator[SpillDirectory]:
    directory = SpillDirectory()
    yield directory
    directory.remove()


def captured(data: list[bytes], max_bytes: int, spill: SpillDirectory) -> str:
    capture = OutputCapture(
        max_bytes=max_bytes, spill_bytes=10**9, spill=spill, redaction=StreamRedaction(Redactor())
    )
    for chunk in data:
        capture.feed(chunk)
    capture.close()
    return capture.text()


@pytest.mark.parametrize(("size", "is_cut"), [(99, False), (100, False), (101, True)])
def test_output_is_cut_only_above_its_bound(spill, size, *, is_cut) -> None:
    assert ("left out" in captured([b"x" * size], 100, spill)) is is_cut


def test_characters_are_never_cut_in_two(spill) -> None:
    for size in range(100, 110):
        assert "\ufffd" not in captured([b"." * (size % 4) + "€".encode() * 300], size, spill)


def test_only_the_newest_files_are_kept(spill) -> None:
    for _ in range(15):
        captured([b"x" * 50], 10, spill)
    assert spill.path is not None
    assert len(list(spill.path.iterdir())) == 10


def test_a_spill_that_cannot_be_written_is_said(spill, monkeypatch) -> None:
    monkeypatch.setattr(trees, "_new_directory", lambda _: "/no/such")
    assert "the whole could not be kept: No such file or directory" in captured([b"x" * 50], 10, spill)


@given(st.text(alphabet="abgß-1\n"), st.text(alphabet="xyz\n"), st.data())
def test_a_credential_is_found_however_the_stream_is_split(before, after, data) -> None:
    whole = f"{before}{SECRET}{after}{SECRET}".encode()
    redaction = StreamRedaction(Redactor([SECRET]))
    out = b""
    while whole:
        size = data.draw(st.integers(1, len(whole)))
        out += redaction.feed(whole[:size])
        whole = whole[size:]
    out += redaction.end()
    assert out.decode() == f"{before}[redacted]{after}[redacted]"


@pytest.mark.parametrize("known", [[], ["short-one"]])
def test_a_longer_credential_that_is_learned_meanwhile_is_found(known) -> None:
    redactor = Redactor(known)
    redaction = StreamRedaction(redactor)
    out = redaction.feed(b"before ")
    redactor.learn([SECRET])
    for byte in f"{SECRET} after".encode():
        out += redaction.feed(bytes([byte]))
    assert (out + redaction.end()).decode() == "before [redacted] after"


@pytest.mark.parametrize("at", range(1, len(SECRET.encode())))
def test_a_credential_is_found_across_a_cut_of_output_that_does_not_pause(spill, at) -> None:
    secret = SECRET.encode()
    first = OutputCapture(
        max_bytes=1_000, spill_bytes=10**9, spill=spill, redaction=StreamRedaction(Redactor([SECRET]))
    )
    first.feed(b"begin " + secret[:at])
    second = first.cut(is_quiet=False)
    assert second.has_output
    second.feed(secret[at:] + b" middle, and much more")
    third = second.cut(is_quiet=True)
    assert not third.has_output
    third.feed(b" end")
    third.close()
    assert first.text() + second.text() + third.text() == "begin [redacted] middle, and much more end"


def test_a_stream_of_single_bytes_is_looked_at_a_few_times_not_once_a_byte() -> None:
    Counting.looked_at = 0
    redaction = StreamRedaction(Counting(["s" * 1000]))
    data = b"".join(redaction.feed(b"x") for _ in range(20_000)) + redaction.end()
    assert data == b"x" * 20_000
    assert 0 < Counting.looked_at < 3 * len(data)


@given(st.lists(st.binary(max_size=60)), st.integers(2, 80))
def test_the_file_holds_every_byte_and_the_text_is_bounded(chunks, max_bytes) -> None:
    spill = SpillDirectory()
    try:
        text = captured(chunks, max_bytes, spill)
        text.encode()
        if "; whole output: " in text:
            path = text.partition("; whole output: ")[2].partition(" ...]")[0]
            assert Path(path).read_bytes() == b"".join(chunks)
            assert len(text.encode()) <= 3 * max_bytes + 300
    finally:
        spill.remove()


def test_a_cleared_temporary_directory_is_made_again(spill) -> None:
    captured([b"x" * 50], 10, spill)
    assert spill.path is not None
    shutil.rmtree(spill.path)
    assert "; whole output: " in captured([b"x" * 50], 10, spill)


@every_row(
    ("data", "text"),
    [
        (b"plain\ttext\n", "plain\ttext\n"),
        (b"\x1b[1;31mred\x1b[0m \x1b[38;5;12mblue\x1b[m", "red blue"),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        (b"\x1bPdevice\x1b\\x\x1b(By\x1b=z\x1b7", "xyz"),
        (b"10%\r50%\r100%\n", "100%\n"),
        (b"10%\r100%\r\nnext\r\r\n", "100%\nnext\n"),
        (b"gone\r\x1b[K\rlast\r", "last"),
        (b"N\x08Na\x08am\x08me", "Name"),
        (b"a\0b\x07c\x7fd\x0be", "abcde"),
        ("é\u0085€".encode(), "é€"),
        (b"", ""),
    ],
)
def test_what_a_terminal_would_act_on_is_gone(data, text) -> None:
    assert readable_text(data) == (text, 0)


def test_invalid_bytes_are_counted_and_a_run_shows_once() -> None:
    assert readable_text(b"a\xff\xfe\xfdb\xc3") == ("a\ufffdb\ufffd", 4)


@given(st.binary())
def test_any_bytes_become_encodable_text_without_controls(data) -> None:
    text, _ = readable_text(data)
    text.encode()
    assert not set(text) & {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))}
