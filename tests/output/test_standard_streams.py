from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ralph.output.standard_streams import ReaderLeftError, complain, print_lines


def test_lines_are_printed_and_names_that_are_no_text_do_no_harm(capfdbinary) -> None:
    print_lines(["a", "b\udcff"])
    assert capfdbinary.readouterr() == (b"a\nb?\n", b"")


def test_a_complaint_is_one_line_on_standard_error(capfd) -> None:
    complain("what\n\x1b[2Jfailed  twice")
    assert capfd.readouterr() == ("", "ralph: what failed twice\n")


def test_a_reader_that_left_is_an_error_of_its_own_and_a_full_disk_is_the_callers(monkeypatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:  # noqa: PTH123 - a descriptor
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(ReaderLeftError):
            print_lines(["x" * 100_000])
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)
    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full:  # noqa: PTH123 - monkeypatch needs an open file
            monkeypatch.setattr(sys, "stdout", full)
            with pytest.raises(OSError, match="No space"):
                print_lines(["x"])
            os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
