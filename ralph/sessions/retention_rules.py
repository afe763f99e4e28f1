"""Chooses the old journals to remove: by age, and the oldest ones while all together are too large. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

_DAY_S = 86_400
_MB = 1_000_000


class KeptJournal(Struct, frozen=True):
    path: str
    size_bytes: int
    age_s: float
    """Seconds since the last write."""


def too_many(
    journals: Iterable[KeptJournal], *, keep_days: int, keep_mb: int, are_all: bool = True
) -> list[KeptJournal]:
    """The journals to remove, the oldest first. 0 days or megabytes: no limit.

    If the list is incomplete (`are_all` false), only age counts: a journal that is not listed may be older.
    """
    oldest_first = sorted(journals, key=lambda journal: -journal.age_s)
    excess_bytes = sum(journal.size_bytes for journal in oldest_first) - keep_mb * _MB
    removed = []
    for journal in oldest_first:
        is_too_old = bool(keep_days) and journal.age_s > keep_days * _DAY_S
        is_too_much = bool(keep_mb) and are_all and excess_bytes > 0
        if not (is_too_old or is_too_much):
            break
        removed.append(journal)
        excess_bytes -= journal.size_bytes
    return removed
