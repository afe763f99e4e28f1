"""A file that the user named is judged by what was opened, and not by what a command puts in its place a moment later."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from ralph.machine.files.paths import followed_link
from ralph.machine.own_process import SHARED_MEMORY
from ralph.output.result_file import result_file_problem, write_result_file
from ralph.prompt.judged_file import read_named_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Exchanging(list[str]):
    """Directories that commands may write. When they are looked at, after the file was opened, a command is faster."""

    def __init__(self, directory: Path, exchange: Callable[[], object]) -> None:
        super().__init__([str(directory)])
        self._exchange = exchange

    def __iter__(self) -> Iterator[str]:
        self._exchange()
        return super().__iter__()


def test_a_link_that_is_a_file_again_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    (tmp_path / "key").write_text("secret")
    for name in ("prompt", "sub/prompt"):
        (work / name).symlink_to(tmp_path / "key")

        def exchange(file: Path = work / name) -> None:
            file.unlink()
            file.write_text("harmless")

        with pytest.raises(OSError, match="leads out of its repository") as raised:
            read_named_file(str(work / name), Exchanging(work, exchange), 100)
        assert raised.value.errno == errno.EPERM
        assert read_named_file(str(work / name), (work,), 100) == b"harmless"


def test_a_directory_that_is_no_link_any_more_after_it_was_opened_is_not_written(tmp_path: Path) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.mkdir()
    link = work / "sub"
    link.symlink_to(outside)

    def exchange() -> None:
        link.unlink()
        link.mkdir()

    with pytest.raises(OSError, match="leads out of its repository"):
        write_result_file(str(link / "r"), b"x", Exchanging(work, exchange))
    assert not [*outside.iterdir(), *link.iterdir()]


def test_a_pipe_behind_a_planted_link_is_not_written(tmp_path: Path) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.mkdir()
    os.mkfifo(outside / "r")
    reading = os.open(outside / "r", os.O_RDONLY | os.O_NONBLOCK)
    (work / "sub").symlink_to(outside)
    with pytest.raises(OSError, match="leads out of its repository"):
        write_result_file(str(work / "sub/r"), b"x", (work,))
    assert not os.read(reading, 10)
    os.close(reading)


def test_a_link_where_all_commands_may_write_is_a_commands(tmp_path: Path, monkeypatch) -> None:
    """A command of another run may have made or exchanged it."""
    (tmp_path / "key").write_text("secret")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    caches = tmp_path / "home/.cache/ralph/packages/x"
    caches.mkdir(parents=True)
    with ExitStack() as opened:
        memory = Path(opened.enter_context(TemporaryDirectory(dir=SHARED_MEMORY)))
        for place in (caches, memory):
            (place / "prompt").symlink_to(tmp_path / "key")
            (place / "out").symlink_to(tmp_path)
            with pytest.raises(OSError, match="is a link that leads out"):
                read_named_file(str(place / "prompt"), (tmp_path / "work",), 100)
            with pytest.raises(OSError, match="is a link that leads out"):
                write_result_file(str(place / "out/result"), b"x", (tmp_path / "work",))
            assert "is a link that leads out" in (result_file_problem(str(place / "out/result")) or "")
    assert not (tmp_path / "result").exists()


def test_a_way_of_the_user_through_the_work_is_no_link_of_a_command(tmp_path: Path) -> None:
    work, mine = tmp_path / "work", tmp_path / "mine"
    work.mkdir()
    mine.write_text("mine")
    (tmp_path / "link").symlink_to(mine)
    tops = (str(work),)
    for path in (f"{work}/../mine", f"{work}/../link", str(tmp_path / "link")):
        assert followed_link(path, str(mine), tops) == (None, "")
    assert followed_link(str(work / "gone"), str(mine), tops) == (str(work / "gone"), "")
    assert followed_link(str(work / "gone"), str(work / "x"), tops) == (str(work / "gone"), str(work))
