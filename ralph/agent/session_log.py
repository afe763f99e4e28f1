"""Records what happens in a session. Writes each record to the journal, and then applies the record to the session's
state.

If the journal cannot be written, the state does not change. In a run without a journal, records are applied too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.conversation.session import Session, apply

if TYPE_CHECKING:
    from ralph.agent.ports import Journal
    from ralph.conversation.records import Record


class SessionLog:
    def __init__(self, journal: Journal, session: Session) -> None:
        """`session` is the state of the session after all records that the journal already contains."""
        self._journal = journal
        self.session = session

    def record(self, *records: Record, sync: bool = True) -> None:
        """Writes all of the records to the journal and applies them to the state. If they cannot be written, applies
        none of them. Raises JournalError. If `sync` is True, the records survive a power failure.
        """
        if not records:
            return
        self._journal.append(*records, sync=sync)
        for record in records:
            self.session = apply(self.session, record)
