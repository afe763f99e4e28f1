"""`.ralph/stop` and its directory, which must exist when it is needed, be ignored by git, and never be somewhere
else.
"""

from __future__ import annotations

import os
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from ralph.loop.check import StopFileBelow

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / ".ralph"


def test_its_place_is_made_private_and_git_ignores_it(tmp_path, place) -> None:
    stop = StopFileBelow(tmp_path)
    stop.make_room()
    stop.path.write_text("done")
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    git = ["git", "-C", str(tmp_path), "status", "--porcelain", "--untracked-files=all"]
    assert subprocess.run(git, capture_output=True, check=True).stdout == b""


@pytest.mark.parametrize(
    ("found", "left"), [(None, "*\n"), ("", "*\n"), ("*\n", "*\n"), ("*\n!notes\n", "*\n!notes\n")]
)
def test_its_gitignore_comes_back_and_one_that_people_changed_stays(tmp_path, place, found, left) -> None:
    place.mkdir()
    if found is not None:
        (place / ".gitignore").write_text(found)
    StopFileBelow(tmp_path).make_room()
    assert (place / ".gitignore").read_text() == left


@pytest.mark.parametrize("kind", ["file", "link to a directory", "link to nothing"])
@pytest.mark.parametrize("act", [StopFileBelow.make_room, StopFileBelow.remove])
def test_what_is_no_directory_is_refused_and_says_so(tmp_path, place, kind, act) -> None:
    elsewhere = tmp_path / "elsewhere"
    if kind == "file":
        place.write_text("")
    else:
        place.symlink_to(elsewhere)
    if kind == "link to a directory":
        elsewhere.mkdir()
        (elsewhere / "stop").touch()
    with pytest.raises(NotADirectoryError) as caught:
        act(StopFileBelow(tmp_path))
    assert caught.value.strerror == "is not a directory (a link does not count): move it out of the way"
    assert caught.value.filename == str(place)
    assert not elsewhere.exists() or [path.name for path in elsewhere.iterdir()] == ["stop"]


def test_without_the_checkout_nothing_is_made(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        StopFileBelow(tmp_path / "gone").make_room()
    assert not (tmp_path / "gone").exists()


def test_a_stop_file_of_any_kind_is_there_until_it_is_removed(tmp_path, place) -> None:
    stop = StopFileBelow(tmp_path)
    assert not stop.is_there()
    stop.remove()
    assert not place.exists()
    stop.make_room()
    for put in (stop.path.touch, lambda: stop.path.symlink_to("nowhere"), lambda: os.mkfifo(stop.path)):
        put()
        assert stop.is_there()
        stop.remove()
        assert not stop.is_there()


def test_where_the_place_is_no_directory_there_is_no_stop_file(tmp_path, place) -> None:
    place.write_text("")
    assert not StopFileBelow(tmp_path).is_there()


def test_a_directory_is_no_stop_file(tmp_path) -> None:
    stop = StopFileBelow(tmp_path)
    (stop.path / "x").mkdir(parents=True)
    assert not stop.is_there()
