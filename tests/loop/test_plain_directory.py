"""Progress in a directory outside git, which is found by the content of files."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from ralph.git.answer import CheckoutError
from ralph.loop import checkout as checkout_module
from ralph.loop.checkout import PlainDirectory
from ralph.machine import ripgrep
from ralph.values.outcome import Outcome
from ralph.values.ports import SignalReceived
from tests.git.repositories import CLOCK, Repository

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


def test_a_directory_that_is_gone_is_told(here: Path) -> None:
    gone = here / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(CheckoutError, match="No such file") as caught:
        plain(here).snapshot()
    assert caught.value.outcome is Outcome.IO_ERROR


def test_a_signal_ends_the_look(here: Path) -> None:
    for number in range(100):
        (here / str(number)).touch()
    checkout = plain(here)
    checkout._waiter.inbox.note_signal(signal.SIGTERM)  # type: ignore[attr-defined]
    with pytest.raises(SignalReceived):
        checkout.snapshot()


def test_a_signal_ends_a_listing_that_comes_to_no_end(here: Path, monkeypatch) -> None:
    monkeypatch.setattr(checkout_module, "SILENCE_S", 0.5)
    (here / ".gitignore").unlink()
    os.mkfifo(here / ".gitignore")
    told: list[str] = []
    checkout = plain(here, told)
    checkout._waiter.inbox.note_signal(signal.SIGTERM)  # type: ignore[attr-defined]
    with pytest.raises(SignalReceived):
        checkout.snapshot()
    assert told == [], "it was heard before the rules were given up"


def test_more_than_is_read_in_one_look_is_told_by_size_and_time_from_then_on(here: Path, monkeypatch) -> None:
    monkeypatch.setattr(checkout_module, "MOST_READ_OF_ALL_BYTES", 100)
    told: list[str] = []
    checkout = plain(here, told)
    checkout.snapshot()
    (here / "b").write_bytes(b"x" * 100)
    before = checkout.snapshot()
    assert len(told) == 1
    assert "progress is judged by size and time of each" in told[0]
    assert checkout.snapshot().digest == before.digest
    os.utime(here / "a", (1, 1))
    after = checkout.snapshot()
    assert checkout.changes(before, after).files == ("a",)
    assert len(told) == 1


def test_of_too_many_files_it_is_known_that_something_changed_and_not_what(here: Path, monkeypatch) -> None:
    monkeypatch.setattr(checkout_module, "MOST_FILES_TOLD_APART", 1)
    checkout = plain(here)
    before = checkout.snapshot()
    assert (before.files, before.digest) == (None, checkout.snapshot().digest)
    (here / "a").write_text("b")
    after = checkout.snapshot()
    assert before.digest != after.digest
    assert checkout.changes(before, after).files == ()


def test_a_pipe_in_the_place_of_rules_is_not_waited_for_and_what_rules_name_counts_then(
    here: Path, monkeypatch
) -> None:
    monkeypatch.setattr(checkout_module, "SILENCE_S", 0.2)
    (here / "sub").mkdir()
    os.mkfifo(here / "sub/.gitignore")
    told: list[str] = []
    checkout = plain(here, told)
    before = checkout.snapshot()
    assert checkout.snapshot().digest == before.digest
    (here / "ignored").write_text("1")
    assert checkout.changes(before, checkout.snapshot()).files == ("ignored",)
    assert len(told) == 1
    assert "cannot be listed by its .gitignore files" in told[0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere ripgrep has no limit of memory")
def test_rules_that_take_too_much_memory_are_given_up_and_what_they_name_counts_then(
    here: Path, monkeypatch
) -> None:
    monkeypatch.setattr(ripgrep, "_MOST_MEMORY_BYTES", 64 * 1024**2)
    (here / "sub").mkdir()
    with (here / "sub/.gitignore").open("wb") as rules:
        rules.truncate(1024**3)  # a sparse file, which ripgrep reads as one line
    told: list[str] = []
    checkout = plain(here, told)
    before = checkout.snapshot()
    (here / "ignored").write_text("1")
    assert checkout.changes(before, checkout.snapshot()).files == ("ignored",)
    assert len(told) == 1
    assert "cannot be listed by its .gitignore files" in told[0]


def test_a_directory_that_cannot_be_listed_is_told_by_what_it_is(here: Path) -> None:
    """The path is too long to be listed. Missing permissions would not stop root."""
    held = os.open(here, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=held)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=held)
        os.close(held)
        held = below
    os.close(held)
    checkout = plain(here)
    before = checkout.snapshot()
    assert before.files is not None
    [(path, digest)] = [one for one in before.files.items() if one[1].startswith("unreadable: ")]
    assert path.startswith("d" * 250 + "/")
    assert digest.startswith(f"unreadable: {errno.ENAMETOOLONG}")
    assert checkout.snapshot().digest == before.digest


def test_complaints_of_ripgrep_are_paths_and_errors() -> None:
    complaints = [
        b"./closed: IO error for operation on ./closed: Permission denied (os error 13)",
        b"./\xff: Permission denied (os error 13)",
        b"./.gitignore: line 1: error parsing glob '[z-a]'",
        b"error building NFA",
    ]
    found = [(path, error.errno) for path, error in checkout_module._unlisted(complaints)]
    assert found == [("closed", 13), ("\udcff", 13)]
