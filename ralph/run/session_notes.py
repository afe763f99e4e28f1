"""Writes events that are not part of the conversation, such as retries, to the session's journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.conversation.records import EventRecord
from ralph.output.system_events import journal_fields
from ralph.values.events import SessionOpened
from ralph.values.ports import JournalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.agent.session_log import SessionLog
    from ralph.conversation.records import Record
    from ralph.values.events import Event


class SessionNotes:
    """An `Events` sink that records events from the opening of the session until `close` is called."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self._is_open = False
        self._log: SessionLog | None = None
        """The log of the session during a task. Between two tasks it is None, and events are kept until the next
        task."""
        self._waiting: list[Record] = []

    def emit(self, event: Event) -> None:
        """Records an event if the session is open and the event belongs in the journal.

        Raises JournalError the first time that the journal cannot be written. Later events are then ignored.
        """
        if isinstance(event, SessionOpened):
            self._is_open = True
        fields = journal_fields(event) if self._is_open else None
        if fields is None:
            return
        record = EventRecord(event={name: self._shown(value) for name, value in fields.items()})
        if self._log is None:
            self._waiting.append(record)
            return
        try:
            self._log.record(record, sync=False)
        except JournalError:
            self.close()
            raise

    def begin_task(self, log: SessionLog) -> list[Record]:
        """Returns a record of each event that has arrived since the previous task. From then on, each event is
        written to `log` at once.
        """
        self._log = log
        waiting, self._waiting = self._waiting, []
        return waiting

    def end_task(self) -> None:
        self._log = None

    def close(self) -> None:
        """Stops recording. Later events, such as a signal during the delivery of the result, are ignored."""
        self._is_open = False

    def _shown(self, value: object) -> object:
        return self._redact(value) if isinstance(value, str) else value
