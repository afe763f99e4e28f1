"""A directory with everything in it is removed and looked through, however deep a command has made it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from ralph.machine.files import trees
from ralph.machine.files.paths import entries_in
from ralph.machine.files.trees import (
    OwnDirectory,
    SpillDirectory,
    entries_below,
    remove_left_over,
    remove_tree,
)
from tests.patience import PATIENCE_S, wait_until


def deep(top: Path, levels: int, name: str) -> None:
    """Makes directories that are in each other, with a file in the last one."""
    top.mkdir()
    here = os.open(top, os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        above, here = here, os.open(name, os.O_DIRECTORY, dir_fd=here)
        os.close(above)
    os.close(os.open("end", os.O_CREAT, dir_fd=here))
    os.close(here)


@pytest.mark.parametrize(("levels", "name"), [(3, "d"), (1_050, "d"), (60, "d" * 200)])
def test_a_directory_of_any_depth_is_removed(tmp_path, levels, name) -> None:
    """One is deeper than Python's stack. The last one has a longer path than the kernel takes."""
    top = tmp_path / "top"
    deep(top, levels, name)
    found = len(name) > 1 or [entry.name for entry in entries_below(str(top))]
    remove_tree(top)
    assert found in (True, [name] * levels + ["end"])
    assert not top.exists()


@pytest.mark.ordinary_user
@pytest.mark.parametrize("mode", [0o000, 0o500, 0o300])
def test_a_directory_that_its_owner_may_not_change_is_removed(tmp_path, mode) -> None:
    closed = tmp_path / "top" / "closed"
    (closed / "sub").mkdir(parents=True)
    (closed / "file").touch()
    for path in (closed / "sub", closed):
        path.chmod(mode)
    remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_no_link_is_followed_that_is_named_with_a_slash(tmp_path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "link").symlink_to("kept")
    remove_tree(f"{tmp_path}/link/")
    assert (tmp_path / "kept/file").exists()
    assert not (tmp_path / "link").is_symlink()


def test_no_link_is_followed(tmp_path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o500)
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(kept)
    remove_tree(top)
    assert not top.exists()
    assert kept.stat().st_mode & 0o777 == 0o500
    (tmp_path / "link").symlink_to(kept)
    remove_tree(tmp_path / "link")
    assert kept.is_dir()
    assert not (tmp_path / "link").is_symlink()


def test_what_cannot_be_removed_is_told_and_the_rest_is_gone(tmp_path, monkeypatch) -> None:
    (tmp_path / "top" / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (tmp_path / "top" / name).touch()
    unlink = os.unlink

    def unlink_all_but_a(path: str, **given: int) -> None:
        if path == "a":
            raise PermissionError(1, "not this one", path)
        unlink(path, **given)

    monkeypatch.setattr(os, "unlink", unlink_all_but_a)
    with pytest.raises(PermissionError, match="not this one"):
        remove_tree(tmp_path / "top")
    assert [path.name for path in (tmp_path / "top").iterdir()] == ["a"]


def test_only_what_is_deep_is_moved_because_a_full_disk_has_no_room_for_it(tmp_path, monkeypatch) -> None:
    top = tmp_path / "top"
    for one in range(3):
        (top / str(one) / "/".join("abcdef")).mkdir(parents=True)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    remove_tree(top)
    assert not top.exists()


def test_an_entry_that_cannot_be_looked_at_hides_no_other(tmp_path) -> None:
    for number in range(20):  # in an order of the file system's own
        (tmp_path / f"circle{number}").symlink_to(f"circle{number}")
        (tmp_path / f"file{number}").touch()
    found = entries_in(str(tmp_path), lambda entry: entry.is_file())
    assert {entry.name for entry in found} == {f"file{number}" for number in range(20)}
    assert entries_in(str(tmp_path / "missing")) == []


OTHER = """
import sys, time
from ralph.machine.files.trees import OwnDirectory
own = OwnDirectory("ralph-tmp-")
print(own.path, flush=True)
time.sleep(20)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_directory_of_a_killed_ralph_is_removed_by_a_later_one_and_not_before(place) -> None:
    with subprocess.Popen([sys.executable, "-c", OTHER], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        (left / "x").mkdir()
        remove_left_over(str(place), "ralph-tmp-")
        assert (left / "x").is_dir(), "its owner lives"
        other.kill()
    own = OwnDirectory("ralph-tmp-")
    wait_until(lambda: not left.exists())
    assert list(place.iterdir()) == [Path(own.path)]
    own.remove()
    assert list(place.iterdir()) == []


def test_a_run_does_not_wait_for_a_directory_that_takes_long_to_remove(place, monkeypatch) -> None:
    goes_on, is_done = Event(), Event()

    def remove(path: str) -> None:
        goes_on.wait()
        remove_tree(path)
        is_done.set()

    monkeypatch.setattr(trees, "remove_tree_if_possible", remove)
    monkeypatch.setattr(trees, "_REMOVE_WITHIN_S", 0.01)
    own = OwnDirectory("ralph-tmp-")
    own.remove()
    assert list(place.iterdir()) == [Path(own.path)]
    goes_on.set()
    assert is_done.wait(PATIENCE_S)
    assert list(place.iterdir()) == []


def test_only_ralphs_own_directories_are_removed(place) -> None:
    elsewhere = place / "elsewhere"
    (elsewhere / "x").mkdir(parents=True)
    (place / "ralph-tmp-link").symlink_to(elsewhere)
    (place / "ralph-tmp-file").write_text("")
    (place / "ralph-other").mkdir()
    (place / "ralph-tmp-left").mkdir()
    remove_left_over(str(place), "ralph-tmp-")
    left = sorted(path.name for path in place.iterdir())
    assert left == "elsewhere ralph-other ralph-tmp-file ralph-tmp-link".split()
    assert (elsewhere / "x").is_dir()


def test_a_directory_that_was_removed_before_it_was_locked_is_made_again(place, monkeypatch) -> None:
    made: list[Path] = []

    def make(begins: str) -> str:
        path = Path(f"{begins}{len(made)}")
        made.append(path)
        path.mkdir()
        if len(made) == 1:
            with suppress(FileNotFoundError):  # the thread that removes what is left over was first
                path.rmdir()
        return str(path)

    monkeypatch.setattr(trees, "_new_directory", make)
    own = OwnDirectory("ralph-tmp-")
    assert own.path != str(made[0])
    assert Path(own.path).is_dir()
    own.remove()


def test_long_outputs_have_a_directory_again_after_a_command_removed_it(place) -> None:
    spill = SpillDirectory()
    _, first = spill.new_file()
    first.unlink()
    first.parent.rmdir()
    _, second = spill.new_file()
    assert second.exists()
    spill.remove()
    assert spill.path is None
    assert not second.parent.exists()
