"""The only writer of a session's state: a record is written to the journal and then applied to the state.

An append that fails leaves the state unchanged. A run without a journal applies its records too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.conversation.session import Session, apply

if TYPE_CHECKING:
    from ralph.agent.ports import Journal
    from ralph.conversation.records import Record


class SessionLog:
    def __init__(self, journal: Journal, session: Session) -> None:
        """`session`: the state after the journal's records so far."""
        self._journal = journal
        self.session = session

    def record(self, *records: Record, sync: bool = True) -> None:
        """Writes the records, all or none, and applies them.

        Raises JournalError. With `sync`, the records survive a power cut.
        """
        if not records:
            return
        self._journal.append(*records, sync=sync)
        for record in records:
            self.session = apply(self.session, record)
