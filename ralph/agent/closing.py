"""Handles the end of a task: the final turn, the final report, and the synthetic report that ralph writes if the
model writes none. It sends no request and runs no tool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.agent.run_end import Ending, Finishing, Tally
from ralph.conversation.notices import final_turn
from ralph.values.answer import describe_bug
from ralph.values.classify import FailureKind, failure_kind, outcome_of
from ralph.values.errors import AgentError
from ralph.values.events import DeadEnd, FinalTurnEntered, Notice, ReportAccepted
from ralph.values.outcome import Outcome
from ralph.values.ports import BudgetSpent, Events, Interrupted
from ralph.values.screen_text import counted
from ralph.values.shortage import line_with_advice, shortage_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.conversation.next_step import End, NoUsableAnswer
    from ralph.values.report import Report, ReportForm, ReportReceiver


class Closing:
    """Manages the final turn and the reports of one task, and builds the `Ending` of the task."""

    def __init__(self, max_turns: int | None, form: ReportForm | None, tally: Tally, events: Events) -> None:
        """`form` is the form of the final report, or None if no report is required."""
        self._max_turns = max_turns
        self._form = form
        self._tally = tally
        self._events = events
        self.finishing = Finishing(max_turns)
        self.receiver = self._new_receiver()
        """Checks the final report. None if no report is required."""
        self.last_stop_reason: str | None = None
        """The stop reason of the last answer, or None if there was no answer."""
        self._last_words: str | None = None
        """The model's last text that was not accepted as an answer, or None if there is no such text. Either the
        answer with the text was discarded, or the answer came in the final turn and contained tool calls."""
        self._is_text_dropped = False
        """True if the answer with the model's last text was discarded. The next request tells the model that it was
        discarded."""

    def _new_receiver(self) -> ReportReceiver | None:
        return self._form.receiver() if self._form is not None else None

    def forget_reports(self) -> None:
        """Discards all reports that were received before. Must be called when another task begins."""
        self.receiver = self._new_receiver()

    @property
    def needs_report(self) -> bool:
        return self._form is not None

    @property
    def is_final(self) -> bool:
        return self.finishing.is_final

    def enter_final_turn(self, reason: str) -> str:
        """Begins the final turn, and returns the notice for the model. `reason` is one of `run_end.FORCES`."""
        self.finishing.reason = reason
        self._events.emit(FinalTurnEntered(self._tally.turns + 1, reason))
        return self._final_notice(reason)

    def final_notice(self) -> str | None:
        """The notice for the model that this is the final turn, or None if the current turn is not the final one."""
        reason = self.finishing.reason
        return None if reason is None else self._final_notice(reason)

    def _final_notice(self, reason: str) -> str:
        return final_turn(reason, needs_report=self.needs_report, turns=counted(self._max_turns or 0, "turn"))

    def collapse(self, reason: str) -> None:
        """Lowers the turn limit, because a report has failed or is missing. `reason` is a value of
        `TurnsCollapsed.reason`.
        """
        collapsed = self.finishing.collapse(self._tally.turns + 1, reason)
        if collapsed is not None:
            self._events.emit(collapsed)

    # --- Reports

    def take_text(self, text: str) -> bool:
        """Looks for a report in the text of an answer that was discarded. Returns whether it found one. If it finds a
        report, it stores the report in the receiver's cache.
        """
        self._last_words = text.strip() or self._last_words
        if text.strip():
            self._is_text_dropped = True
        return self.receiver is not None and self.receiver.take_text(text)

    def take_final_words(self, text: str) -> None:
        """Stores the text of an answer that came in the final turn and contains tool calls. If the model gives no
        closing answer, this text becomes the result.

        If the text contains a report, the report is cached. A cached report is accepted if the final turn ends and
        the model has written no other report and no other text.
        """
        self._last_words = text.strip() or self._last_words
        if text.strip():
            self._is_text_dropped = False
        if self.receiver is not None:
            self.receiver.look_at_text(text)

    def forget_text(self) -> None:
        """Discards the report in the model's last text if the answer with this text was discarded. Must be called
        after each request, because the model learns only from a request that its answer was discarded.
        """
        if self.receiver is not None and self._is_text_dropped:
            self.receiver.forget_text()

    def forget_words(self) -> None:
        """Discards the model's last text. Must be called when tools have run after that text."""
        self._last_words = None

    def was_reported(self, arguments: Mapping[str, Any]) -> Report | None:
        """Restores a report that an earlier process accepted, and returns it. Returns None if no report is required."""
        return self.receiver.restored(arguments) if self.receiver is not None else None

    @property
    def reported(self) -> Report | None:
        """The accepted report, or None if no report was accepted. A report that is only cached is not returned."""
        return self.receiver.accepted if self.receiver is not None else None

    def report(self) -> Report | None:
        """The accepted report, or None if there is none. In the final turn, this call accepts a cached report, which
        is a report that the model wrote as text.
        """
        if self.receiver is None:
            return None
        return self.receiver.accept_cached() if self.is_final else self.receiver.accepted

    def accepted(self, report: Report) -> Ending:
        """The end of a task whose report was accepted."""
        self._tally.turns += 1
        return self._reported(report)

    def _reported(self, report: Report) -> Ending:
        self._tell(report)
        if report.status == "success":
            return Ending(Outcome.COMPLETED, stop_reason=self.last_stop_reason, report=report)
        error = "the model reports that the task failed"
        return Ending(Outcome.TASK_FAILED, stop_reason=self.last_stop_reason, error=error, report=report)

    def _tell(self, report: Report) -> None:
        turn = max(self._tally.counted_turns, 1)
        attempts = self.receiver.attempts if self.receiver is not None else 0
        reason = self.finishing.reason
        self._events.emit(ReportAccepted(report.source, report.status, turn, attempts, reason))

    # --- Ends

    def ended_by(self, step: End, stop_reason: str) -> Ending:
        """The end of a task that an answer ends. The answer completes the task, or it is the closing answer of the
        final turn, or the task cannot continue after it (for example after a refusal).
        """
        self._tally.turns += 1
        if step.notice is not None:
            self._events.emit(Notice(step.notice))
        if step.outcome in {Outcome.COMPLETED, Outcome.LIMIT_REACHED} and self.is_final:
            return replace(self.forced(), result=step.result)
        return Ending(step.outcome, step.result, stop_reason, step.error)

    def forced(self, reason: str | None = None) -> Ending:
        """The end of a task that ralph stops because of a limit, or because the report failed or is missing. `reason`
        is one of `run_end.FORCES`. It may be None in the final turn, or if the turn limit ends the task.
        """
        words = None if self.needs_report else self._last_words
        end = self.finishing.forced_end(reason)
        return replace(end, result=words, stop_reason=self.last_stop_reason)

    def gave_up(self, step: NoUsableAnswer) -> Ending | None:
        """The end of a task after too many useless answers in one turn. Returns None if the task gets a final turn
        instead, in which the model can still report.
        """
        if self.is_final:
            known = self.report()
            return self.forced() if known is None else self.accepted(known)
        if not self.needs_report or step.reason in {"empty", "thinking_only"}:
            return Ending(Outcome.NO_PROGRESS, stop_reason=self.last_stop_reason, error=step.error)
        self.collapse(step.reason)
        return None

    def stuck(self, dead_end: DeadEnd) -> Ending:
        """The end of a task that ralph stops because the model makes no progress."""
        stop = self.last_stop_reason
        return Ending(Outcome.NO_PROGRESS, stop_reason=stop, error=dead_end.error, dead_end=dead_end)

    def with_report(self, ending: Ending) -> Ending:
        """Adds a report to `ending` if a report is required or an answer is missing. Returns the new `Ending`. If the
        model gave no report, the added report is a synthetic one.
        """
        if not ending.lacks_answer(needs_report=self.needs_report):
            return ending
        # A limit may have ended the run after a report was accepted, or when one was cached in the final turn.
        if ending.is_forced and (known := self.report()) is not None:
            return self._reported(known)
        report = self.reported or ending.stand_in(self.receiver, self._tally, self.last_stop_reason)
        self._tell(report)
        return replace(ending, report=report, result=ending.result or self._last_words)


def ended_by_error(error: AgentError) -> Ending:
    is_full = failure_kind(error) is FailureKind.CONTEXT_OVERFLOW
    return Ending(outcome_of(error), error=str(error), cause=error, limit="context" if is_full else None)


def ended_by_exception(error: Exception) -> Ending:
    """The end of a task that an unexpected exception has ended. Such an exception is a bug in ralph, unless the
    machine is short of a resource such as memory.
    """
    shortage = shortage_of(error)
    if shortage is not None:
        return Ending(Outcome.API_UNAVAILABLE, error=line_with_advice(shortage), is_short=True)
    return Ending(Outcome.INTERNAL_ERROR, error=describe_bug(error))


def ended_by_stop(stop: Interrupted) -> Ending:
    failure = stop.__cause__ if isinstance(stop.__cause__, AgentError) else None
    text = f"{stop}, after: {failure}" if failure is not None else str(stop)
    limit = "max_budget_usd" if isinstance(stop, BudgetSpent) else None
    return Ending(stop.outcome, error=text, cause=failure, signal_number=stop.signal_number, limit=limit)
