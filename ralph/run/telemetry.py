"""The metrics and traces of a run, for programs that watch many runs. Both are off unless they are configured.

If the metrics or traces cannot be opened, the run is refused before it spends any money. After that, a failure of
metrics or traces causes one notice, and the run continues. `SessionNotes`
writes events that are not part of the conversation, such as retries, to the session's journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph import __version__
from ralph.conversation.records import EventRecord, Record
from ralph.output.stream_json import journal_fields
from ralph.values.events import Event, Notice, SessionOpened
from ralph.values.outcome import CannotError, Outcome
from ralph.values.ports import Clock, Events, JournalError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.agent.session_log import SessionLog
    from ralph.output.metrics_file import MetricsFile
    from ralph.output.tracing_spans import Tracing


# Losing some traces is better than delaying the end of the run.
_TRACES_LEAVE_S = 2.0
_TRACES_LEAVE_AFTER_STOP_S = 0.5


def open_metrics(path: str, clock: Clock, directories: Sequence[str]) -> MetricsFile:
    """Opens the metrics file and writes it for the first time.

    `directories` are the directory where ralph was called and the working directory. Raises CannotError, with one
    line of text, if the file cannot be written.
    """
    from ralph.output.metrics_file import MetricsFile  # noqa: PLC0415 - its library is slow to load

    metrics = MetricsFile(path, clock, directories)
    try:
        metrics.open()
    except OSError as error:
        raise CannotError(metrics.problem(error), Outcome.IO_ERROR) from error
    return metrics


class Telemetry:
    """An `Events` sink that updates metrics and traces."""

    def __init__(self, clock: Clock, metrics: MetricsFile | None) -> None:
        self._clock = clock
        self._metrics = metrics
        self._tracing: Tracing | None = None
        self._last_words: list[str] = []

    def open_traces(
        self, session_id: str, environment: Mapping[str, str], *, redact: Callable[[str], str]
    ) -> None:
        """Opens the traces.

        Raises CannotError, with one line of text, if that is impossible. Raises ShortageError if the machine is
        short of a resource; the run then continues without traces.
        """
        from ralph.output.tracing import TracingError, open_tracing  # noqa: PLC0415 - an extra, slow to load

        try:
            self._tracing = open_tracing(
                session_id, environment, version=__version__, tell=self._last_words.append, redact=redact
            )
        except TracingError as error:
            raise CannotError(str(error)) from error

    def emit(self, event: Event) -> None:
        if self._metrics is not None:
            self._metrics.emit(event)
        if self._tracing is not None:
            self._tracing.emit(event)

    def look(self, events: Events) -> None:
        """Writes the metrics file if it is time to do so. It is called several times a second.

        The first failure to write is reported as a notice.
        """
        problem = self._metrics.tick(self._clock.now_s()) if self._metrics is not None else None
        if problem is not None:
            events.emit(Notice(problem))

    def close(self, exit_code: int, *, was_stopped: bool) -> list[Event]:
        """Closes the metrics and the traces. Returns their last problems as events.

        `was_stopped` is True if a signal or a limit stopped the run, so that closing must be quick.
        """
        if self._metrics is not None:
            try:
                self._metrics.close(exit_code)
            except OSError as error:
                self._last_words.append(self._metrics.problem(error))
        if self._tracing is not None:
            self._tracing.close(_TRACES_LEAVE_AFTER_STOP_S if was_stopped else _TRACES_LEAVE_S)
        return [Notice(text) for text in self._last_words]


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
        shown = {name: self._redact(one) if isinstance(one, str) else one for name, one in fields.items()}
        record = EventRecord(event=shown)
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
