"""Only one loop may work on a checkout. Uses real locks and real processes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ralph.git.answer import CheckoutError
from ralph.loop import checkout as lock_module
from ralph.loop.checkout import CheckoutLock, PlainDirectory
from ralph.values.outcome import Outcome
from tests.git.repositories import CLOCK, Repository
from tests.processes.descriptors import open_descriptors, wait_until_closed

ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)


@pytest.fixture
def plain(tmp_path: Path) -> PlainDirectory:
    (tmp_path / "place").mkdir()
    return PlainDirectory(
        tmp_path, plan_file="P", waiter=Repository(tmp_path, tmp_path / "h").waiter, clock=CLOCK
    )


def locked(checkout) -> CheckoutLock:
    return CheckoutLock(checkout, Path("/the/first"), NOW, place=checkout.top / "place")


def test_the_second_loop_is_told_of_the_first(repository: Repository) -> None:
    first = locked(repository.checkout())
    assert first.notice is None
    assert first.path == repository.top / ".git/ralph-loop.lock"
    with pytest.raises(
        CheckoutError, match=rf"process {os.getpid()}, since 2026-11-2\d \d\d:\d\d:00 in /the/first"
    ):
        locked(repository.checkout("dir"))
    first.close()
    first.close()
    locked(repository.checkout()).close()
    assert repository.git("status", "--porcelain") == ""


def test_outside_of_git_the_directory_is_locked(plain: PlainDirectory) -> None:
    first = locked(plain)
    assert first.path == plain.top / "place/lock"
    with pytest.raises(CheckoutError, match="another loop"):
        locked(plain)
    first.close()


def test_a_git_directory_that_is_not_its_own_is_not_written(repository: Repository, tmp_path) -> None:
    other = tmp_path / "other.git"
    (repository.top / ".git").rename(other)
    (repository.top / ".git").write_text(f"gitdir: {other}\n")
    before = sorted(path.name for path in other.iterdir())
    (tmp_path / "own").mkdir()
    lock = CheckoutLock(repository.checkout(), repository.top, NOW, place=tmp_path / "own")
    assert sorted(path.name for path in other.iterdir()) == before
    assert lock.path.parent == tmp_path / "own"
    lock.close()


def test_two_working_trees_have_two_locks(repository: Repository) -> None:
    repository.git("worktree", "add", "-q", "../linked", "-b", "linked")
    linked = Repository(repository.top.parent / "linked", repository.top.parent / "home")
    first, second = locked(repository.checkout()), locked(linked.checkout())
    assert first.path != second.path
    first.close()
    second.close()


def test_an_iteration_that_outlives_its_loop_holds_the_lock(plain: PlainDirectory, monkeypatch) -> None:
    monkeypatch.setattr(lock_module, "_AFTER_KILL_S", 0.1)
    with subprocess.Popen(["true"]) as ended:
        pass
    lock = locked(plain)
    with subprocess.Popen(["sleep", "99"], pass_fds=[lock.descriptor]) as iteration:
        lock.path.write_text(json.dumps({"pid": ended.pid, "directory": "/d", "started_at": "then"}))
        lock.close()
        with pytest.raises(
            CheckoutError, match=rf"process {ended.pid}, since then in /d, has ended, but a process"
        ):
            locked(plain)
        iteration.kill()
    locked(plain).close()


def test_an_iteration_that_is_ending_is_waited_for(plain: PlainDirectory) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    lock = locked(plain)
    with subprocess.Popen(["sleep", "0.2"], pass_fds=[lock.descriptor]):
        lock.path.write_text(json.dumps({"pid": ended.pid, "directory": "/d", "started_at": "then"}))
        lock.close()
        locked(plain).close()


def test_a_process_that_was_not_given_the_lock_does_not_hold_it(plain: PlainDirectory) -> None:
    lock = locked(plain)
    with subprocess.Popen(["sleep", "99"], close_fds=False) as other:
        lock.close()
        locked(plain).close()
        other.kill()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"pid": "x"}', "\0" * 20_000, '{"pid": 99999999999999999999}']
)
def test_a_file_that_says_nothing_useful_is_no_obstacle_and_no_crash(
    plain: PlainDirectory, text: str
) -> None:
    lock = locked(plain)
    lock.path.write_text(text)
    with pytest.raises(CheckoutError, match="loop"):
        locked(plain)
    lock.close()
    again = locked(plain)
    assert json.loads(again.path.read_text()) == {
        "pid": os.getpid(),
        "directory": "/the/first",
        "started_at": f"{NOW.astimezone():%Y-%m-%d %H:%M:%S}",
    }
    again.close()


PLANTED = {
    "a link": lambda place, victim: (place / "lock").symlink_to(victim),
    "a link to nothing": lambda place, victim: (place / "lock").symlink_to(victim.with_name("new")),
    "a second name": lambda place, victim: (place / "lock").hardlink_to(victim),
    "a pipe": lambda place, _victim: os.mkfifo(place / "lock"),
    "a directory": lambda place, _victim: (place / "lock").mkdir(),
    "a link above": lambda place, victim: (place.rmdir(), place.symlink_to(victim.parent)),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_what_is_in_the_files_place_is_not_written_to(plain: PlainDirectory, plant) -> None:
    outside = plain.top / "outside"
    outside.mkdir()
    victim = outside / "victim"
    victim.write_text("precious")
    plant(plain.top / "place", victim)
    before = open_descriptors()
    with pytest.raises(CheckoutError, match=r"place/lock "):
        locked(plain)
    assert victim.read_text() == "precious"
    assert [path.name for path in outside.iterdir()] == ["victim"]
    wait_until_closed(before)


def test_a_full_disk_is_a_failure_of_the_disk_and_not_of_the_settings(
    plain: PlainDirectory, monkeypatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(CheckoutError, match="lock cannot be written: No space left") as caught:
        locked(plain)
    assert caught.value.outcome is Outcome.IO_ERROR


def test_a_file_system_without_locks_is_resumed_and_told(plain: PlainDirectory, monkeypatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = locked(plain)
    assert lock.notice is not None
    assert "does not support locks" in lock.notice
    lock.close()


ASK_WITHOUT_END = """
import os, sys
from pathlib import Path
from ralph.loop.checkout import holder_of
place, last = Path(sys.argv[1]), -1
while True:
    answer = holder_of(place, place / "place") or 0
    if answer != last:
        os.write(1, b"%d\\n" % answer)
    last = answer
"""


def test_a_status_that_looks_without_end_never_refuses_a_loop_that_starts(plain: PlainDirectory) -> None:
    """A shared lock that is taken only for a moment would refuse one of these loops."""
    command = [sys.executable, "-c", ASK_WITHOUT_END, str(plain.top)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as status:
        assert status.stdout is not None
        try:
            assert status.stdout.readline() == b"0\n"
            first = locked(plain)
            assert status.stdout.readline() == b"%d\n" % os.getpid()
            first.close()
            assert status.stdout.readline() == b"0\n"
            for _ in range(600):  # a status that locks for a moment refuses one of the first few hundred
                locked(plain).close()
        finally:
            status.kill()
