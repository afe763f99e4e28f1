from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ralph.sessions.retention_rules import KeptJournal, too_many

DAY_S = 86_400
MB = 1_000_000
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


def test_what_is_older_than_the_days_goes() -> None:
    assert removed(ages(29, 31, 30, 90), keep_days=30) == ["90", "31"]


def test_the_oldest_go_until_the_rest_fits() -> None:
    assert removed(ages(1, 3, 2, 4), keep_mb=2) == ["4", "3"]
    assert removed(ages(1, 3, 2, 4), keep_mb=4) == []


def test_0_is_no_limit() -> None:
    assert removed(ages(1, 1000, size_bytes=10**12)) == []


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
