"""Old journals are removed, and nothing else."""

from __future__ import annotations

import os
import time
import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.machine.waiter import SystemClock
from ralph.sessions.journal import FileJournal
from ralph.sessions.store import KeptJournal, SessionStore, remove_journal, remove_old_journals, too_many
from tests.fakes import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

DAY_S = 86_400
MB = 1024 * 1024


class OldStore:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = SessionStore(root)
        self.own = self.add("own", days=0)

    def add(self, cwd: str, *, days: float, megabytes: float = 0) -> Path:
        journal = self.store.create(str(uuid.uuid4()), self.root / cwd)
        journal.close()
        os.truncate(journal.path, int(megabytes * MB))
        return aged(journal.path, days)

    def tidy(self, keep_days: int = 30, keep_mb: int = 1000) -> None:
        remove_old_journals(self.own, keep_days=keep_days, keep_mb=keep_mb, clock=SystemClock())


class Ticking(FakeClock):
    """A clock on which each look takes two milliseconds."""

    def now_s(self) -> float:
        self.seconds += 0.002
        return self.seconds


def aged(path: Path, days: float) -> Path:
    moment_s = time.time() - days * DAY_S
    os.utime(path, (moment_s, moment_s))
    return path


@pytest.fixture
def kept(tmp_path: Path) -> OldStore:
    return OldStore(tmp_path / "sessions")


def test_an_old_journal_goes_with_its_torn_end_and_its_empty_directory(kept) -> None:
    old, young = kept.add("a", days=31), kept.add("b", days=29)
    old.with_suffix(".torn").write_bytes(b"{")
    kept.tidy()
    assert not old.parent.exists()
    assert young.exists()
    assert kept.own.exists()


def test_the_oldest_go_first_where_all_are_too_large(kept) -> None:
    paths = [kept.add("a", days=days, megabytes=1) for days in (3, 1, 2)]
    kept.tidy(keep_mb=2)
    assert [path.exists() for path in paths] == [False, True, True]


def test_a_journal_that_is_open_stays(kept) -> None:
    old = kept.add("a", days=99)
    journal = FileJournal.open(old)
    kept.tidy()
    journal.close()
    assert old.exists()


def test_a_journal_that_a_run_has_written_to_since_the_look_stays(kept) -> None:
    old = kept.add("a", days=31)
    remove_journal(old, 32 * DAY_S)
    assert old.exists()
    remove_journal(old, 30 * DAY_S)
    assert not old.exists()


def test_the_journal_of_this_run_stays_however_large(kept) -> None:
    os.truncate(kept.own, 3 * MB)
    aged(kept.own, 99)
    kept.tidy(keep_mb=1)
    assert kept.own.exists()


@pytest.mark.parametrize(
    "name",
    [
        "logs/3f2a9c1e-0000-4000-8000-000000000001.jsonl",
        "logs-0123456789ab/events.jsonl",
        "logs-0123456789ab/3f2a9c1e-0000-4000-8000-000000000001.json",
        "3f2a9c1e-0000-4000-8000-000000000001.jsonl",
    ],
)
def test_what_has_not_the_name_of_a_journal_of_ours_stays(kept, name) -> None:
    path = kept.root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    aged(path, 9999)
    kept.tidy()
    assert path.exists()


def test_a_link_is_not_followed(kept, tmp_path) -> None:
    target = tmp_path / "elsewhere" / kept.add("a", days=99).name
    target.parent.mkdir()
    target.write_text("{}")
    aged(target, 99)
    (kept.root / "b-0123456789ab").symlink_to(target.parent)
    kept.tidy()
    assert target.exists()


def test_it_gives_up_after_50_ms_and_never_fails(kept) -> None:
    old = [kept.add("a", days=99) for _ in range(20)]
    clock = Ticking()
    remove_old_journals(kept.own, keep_days=30, keep_mb=1000, clock=clock)
    assert clock.seconds < 0.06
    assert not all(journal.exists() for journal in old)
    kept.root.rename(kept.root.with_name("gone"))
    kept.tidy()


journals = st.lists(
    st.builds(KeptJournal, st.just("x"), st.integers(0, 3 * MB), st.floats(0, 100 * DAY_S)), max_size=12
)


def ages(*days: float, size_bytes: int = MB) -> list[KeptJournal]:
    return [KeptJournal(f"{day}", size_bytes, day * DAY_S) for day in days]


def removed(
    kept: list[KeptJournal], keep_days: int = 0, keep_mb: int = 0, *, are_all: bool = True
) -> list[str]:
    gone = too_many(kept, keep_days=keep_days, keep_mb=keep_mb, are_all=are_all)
    return [journal.path for journal in gone]


def test_of_a_part_only_age_decides() -> None:
    assert removed(ages(1, 31), keep_days=30, keep_mb=1, are_all=False) == ["31"]
    assert removed(ages(1, 2), keep_days=30, keep_mb=1, are_all=False) == []


@given(journals, st.integers(0, 60), st.integers(0, 10))
def test_what_stays_is_within_both_limits_and_younger_than_what_goes(kept, keep_days, keep_mb) -> None:
    gone = too_many(kept, keep_days=keep_days, keep_mb=keep_mb)
    stays = [journal for journal in kept if not any(journal is one for one in gone)]
    assert not keep_mb or sum(journal.size_bytes for journal in stays) <= keep_mb * MB
    assert not keep_days or all(journal.age_s <= keep_days * DAY_S for journal in stays)
    assert all(one.age_s >= journal.age_s for one in gone for journal in stays)
