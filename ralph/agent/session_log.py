"""The one writer of a session's state: a record goes into the journal, then into the state, and nothing else changes it.

An append that fails leaves the state as it was. A run without a journal applies its records too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.conversation.session import Session, apply

if TYPE_CHECKING:
    from ralph.agent.ports import Journal
    from ralph.conversation.records import Record


class SessionLog:
    def __init__(self, journal: Journal, session: Session) -> None:
        """`session`: the state that the journal's records have led to so far."""
        self._journal = journal
        self.session = session

    def record(self, *records: Record, sync: bool = True) -> None:
        """Write them, whole or not at all, and take them into the state. Raises JournalError.

        `sync`: they survive a power cut.
        """
        if not records:
            return
        self._journal.append(*records, sync=sync)
        for record in records:
            self.session = apply(self.session, record)
