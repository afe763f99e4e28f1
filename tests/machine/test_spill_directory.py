"""A killed ralph's temporary directories are removed by a later one, and those in use are not."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from ralph.machine.files import own_directory
from ralph.machine.files.own_directory import OwnDirectory, SpillDirectory, remove_left_over
from ralph.machine.files.trees import remove_tree
from tests.patience import PATIENCE_S, wait_until

OTHER = """
import sys, time
from ralph.machine.files.own_directory import OwnDirectory
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

    monkeypatch.setattr(own_directory, "remove_tree_if_possible", remove)
    monkeypatch.setattr(own_directory, "_REMOVE_WITHIN_S", 0.01)
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

    monkeypatch.setattr(own_directory, "_new_directory", make)
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
