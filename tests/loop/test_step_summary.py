from __future__ import annotations

import os

import pytest

from ralph.loop.step_summary import append_text


def test_it_is_appended_and_names_that_are_no_text_do_no_harm(tmp_path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    append_text(str(path), "z\udcff\n", ())
    assert path.read_text() == "before\nz?\n"


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        append_text(str(tmp_path / "pipe"), "x", ())


def test_one_that_somebody_reads_is_refused(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="no regular file"):
        append_text(str(tmp_path / "pipe"), "x", ())
    os.close(reader)
