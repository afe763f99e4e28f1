"""Progress outside of git: by the content of files."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from ralph.loop.git import plain_directory
from ralph.loop.git.plain_directory import PlainDirectory
from ralph.loop.ports import CheckoutError
from ralph.tools.search import ignore_rules
from ralph.values.ports import SignalReceived
from tests.loop.git.repositories import CLOCK, Repository

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "a").write_text("a")
    (tmp_path / ".gitignore").write_text("ignored*\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plain(here: Path, told: list[str] | None = None) -> PlainDirectory:
    waiter = Repository(here, here / ".ralph").waiter
    warn = print if told is None else told.append
    return PlainDirectory(here, plan_file="ignored-plan", waiter=waiter, clock=CLOCK, warn=warn)


@pytest.mark.parametrize(
    ("act", "files"),
    [
        (lambda d: (d / "a").write_text("b"), ("a",)),
        (lambda d: (d / "a").unlink(), ("a",)),
        (lambda d: (d / "a").rename(d / "b"), ("a", "b")),
        (lambda d: (d / "a").chmod(0o700), ("a",)),
        (lambda d: (d / "ignored-plan").write_text("1"), ("ignored-plan",)),
        (lambda d: os.close(os.open(os.fsencode(d) + b"/\xff", os.O_CREAT)), ("\udcff",)),
        (lambda d: None, None),
        (lambda d: os.utime(d / "a"), None),
        (lambda d: (d / "ignored").write_text("1"), None),
        (lambda d: (d / ".ralph/loop.json").write_text("1"), None),
        (lambda d: os.mkfifo(d / "fifo"), None),
    ],
)
def test_content_is_progress_and_nothing_else(here: Path, act, files) -> None:
    checkout = plain(here)
    before = checkout.snapshot()
    act(here)
    after = checkout.snapshot()
    assert (before.digest == after.digest) == (files is None)
    assert checkout.changes(before, after).files == (files or ())
    assert (after.head, checkout.changes(before, after).commits) == ("", 0)


def test_there_is_nothing_to_commit_to_and_nothing_to_push(here: Path) -> None:
    checkout = plain(here)
    with pytest.raises(CheckoutError, match="in no git checkout"):
        checkout.commit("x")
    with pytest.raises(CheckoutError, match="in no git checkout"):
        checkout.push()
    assert checkout.unpushed() is None


def test_a_directory_that_is_gone_is_told(here: Path) -> None:
    gone = here / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(CheckoutError, match="No such file"):
        plain(here).snapshot()


def test_a_signal_ends_the_look(here: Path) -> None:
    for number in range(100):
        (here / str(number)).touch()
    checkout = plain(here)
    checkout._waiter.note_signal(signal.SIGTERM)  # type: ignore[attr-defined]
    with pytest.raises(SignalReceived):
        checkout.snapshot()


def test_more_than_is_read_in_one_look_is_told_by_size_and_time_from_then_on(here: Path, monkeypatch) -> None:
    monkeypatch.setattr(plain_directory, "MOST_READ_OF_ALL_BYTES", 100)
    told: list[str] = []
    checkout = plain(here, told)
    checkout.snapshot()
    (here / "b").write_bytes(b"x" * 100)
    before = checkout.snapshot()
    assert len(told) == 1
    assert "progress is told by size and time of each" in told[0]
    assert checkout.snapshot().digest == before.digest
    os.utime(here / "a", (1, 1))
    after = checkout.snapshot()
    assert checkout.changes(before, after).files == ("a",)
    assert len(told) == 1


def test_of_too_many_files_it_is_known_that_something_changed_and_not_what(here: Path, monkeypatch) -> None:
    monkeypatch.setattr(plain_directory, "MOST_FILES_TOLD_APART", 1)
    checkout = plain(here)
    before = checkout.snapshot()
    assert (before.files, before.digest) == (None, checkout.snapshot().digest)
    (here / "a").write_text("b")
    after = checkout.snapshot()
    assert before.digest != after.digest
    assert checkout.changes(before, after).files == ()


def test_a_directory_that_is_too_full_to_be_listed_is_told_by_its_own_time(here: Path, monkeypatch) -> None:
    monkeypatch.setattr(ignore_rules, "MOST_ENTRIES", 10)
    (here / "full").mkdir()
    for number in range(11):
        (here / "full" / str(number)).touch()
    told: list[str] = []
    checkout = plain(here, told)
    before = checkout.snapshot()
    assert told == ["full: it has more than 10 entries"]
    (here / "full" / "1").write_text("more")
    assert checkout.snapshot().digest == before.digest
    os.utime(here / "full", (1, 1))
    assert checkout.changes(before, checkout.snapshot()).files == ("full",)
    assert len(told) == 1
