"""The end of a task: the final turn, the final report, and the synthetic report that ralph writes if the model writes
none. Sends no request and runs no tool.
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
    def __init__(self, max_turns: int | None, form: ReportForm | None, tally: Tally, events: Events) -> None:
        """`form` is the form of the final report, or None if no report is required."""
        self._max_turns = max_turns
        self._form = form
        self._tally = tally
        self._events = events
        self.finishing = Finishing(max_turns)
        self.receiver = self._new_receiver()
        """None if no report is required."""
        self.last_stop_reason: str | None = None
        """The last answer's. None before the first one."""
        self._last_words: str | None = None
        """The model's last text that was no accepted answer: it was discarded, or it came with calls in the final
        turn."""
        self._is_text_dropped = False
        """Whether the answer with `_last_words` was discarded, which the next request tells the model."""

    def _new_receiver(self) -> ReportReceiver | None:
        return self._form.receiver() if self._form is not None else None

    def forget_reports(self) -> None:
        """Must be called when another task begins."""
        self.receiver = self._new_receiver()

    @property
    def needs_report(self) -> bool:
        return self._form is not None

    @property
    def is_final(self) -> bool:
        return self.finishing.is_final

    def enter_final_turn(self, reason: str) -> str:
        """Begins the final turn for one of `run_end.FORCES`, and returns the notice for the model."""
        self.finishing.reason = reason
        self._events.emit(FinalTurnEntered(self._tally.turns + 1, reason))
        return self._final_notice(reason)

    def final_notice(self) -> str | None:
        """The notice for the model that this is the final turn. None in any other turn."""
        reason = self.finishing.reason
        return None if reason is None else self._final_notice(reason)

    def _final_notice(self, reason: str) -> str:
        return final_turn(reason, needs_report=self.needs_report, turns=counted(self._max_turns or 0, "turn"))

    def collapse(self, reason: str) -> None:
        """Lowers the turn limit after a failed or missing report. `reason` is as in `TurnsCollapsed`."""
        collapsed = self.finishing.collapse(self._tally.turns + 1, reason)
        if collapsed is not None:
            self._events.emit(collapsed)

    # --- Reports

    def take_text(self, text: str) -> bool:
        """Caches the report in the text of a discarded answer. Returns whether there is one."""
        self._last_words = text.strip() or self._last_words
        if text.strip():
            self._is_text_dropped = True
        return self.receiver is not None and self.receiver.take_text(text)

    def take_final_words(self, text: str) -> None:
        """Keeps the text of an answer with tool calls in the final turn: it becomes the result if no closing answer
        follows. Caches a report in it.
        """
        self._last_words = text.strip() or self._last_words
        if text.strip():
            self._is_text_dropped = False
        if self.receiver is not None:
            self.receiver.look_at_text(text)

    def forget_text(self) -> None:
        """Drops the report in the text of a discarded answer. Must be called after each request, because a request
        tells the model that its answer was discarded.
        """
        if self.receiver is not None and self._is_text_dropped:
            self.receiver.forget_text()

    def forget_words(self) -> None:
        """Must be called when tools have run after the model's last text."""
        self._last_words = None

    def was_reported(self, arguments: Mapping[str, Any]) -> Report | None:
        """Restores and returns a report that an earlier process accepted. None if no report is required."""
        return self.receiver.restored(arguments) if self.receiver is not None else None

    @property
    def reported(self) -> Report | None:
        """The accepted report, not one that is only cached. None if there is none."""
        return self.receiver.accepted if self.receiver is not None else None

    def report(self) -> Report | None:
        """The accepted report, or None. In the final turn, accepts a cached one."""
        if self.receiver is None:
            return None
        return self.receiver.accept_cached() if self.is_final else self.receiver.accepted

    def accepted(self, report: Report) -> Ending:
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
        """The end of a task by an answer that completes it, closes the final turn, or lets nothing follow, such as a
        refusal.
        """
        self._tally.turns += 1
        if step.notice is not None:
            self._events.emit(Notice(step.notice))
        if step.outcome in {Outcome.COMPLETED, Outcome.LIMIT_REACHED} and self.is_final:
            return replace(self.forced(), result=step.result)
        return Ending(step.outcome, step.result, stop_reason, step.error)

    def forced(self, reason: str | None = None) -> Ending:
        """The end by a limit, or by a failed or missing report. `reason` is one of `run_end.FORCES`. It may be None in
        the final turn and for the turn limit.
        """
        words = None if self.needs_report else self._last_words
        end = self.finishing.forced_end(reason)
        return replace(end, result=words, stop_reason=self.last_stop_reason)

    def gave_up(self, step: NoUsableAnswer) -> Ending | None:
        """The end after too many useless answers in one turn. None if a final turn follows, in which the model can
        still report.
        """
        if self.is_final:
            known = self.report()
            return self.forced() if known is None else self.accepted(known)
        if not self.needs_report or step.reason in {"empty", "thinking_only"}:
            return Ending(Outcome.NO_PROGRESS, stop_reason=self.last_stop_reason, error=step.error)
        self.collapse(step.reason)
        return None

    def stuck(self, dead_end: DeadEnd) -> Ending:
        stop = self.last_stop_reason
        return Ending(Outcome.NO_PROGRESS, stop_reason=stop, error=dead_end.error, dead_end=dead_end)

    def with_report(self, ending: Ending) -> Ending:
        """The ending with a report if one is required or an answer is missing: the model's, or else a synthetic one."""
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
    """An unexpected exception is a bug in ralph, unless the machine is short of a resource such as memory."""
    shortage = shortage_of(error)
    if shortage is not None:
        return Ending(Outcome.API_UNAVAILABLE, error=line_with_advice(shortage), is_short=True)
    return Ending(Outcome.INTERNAL_ERROR, error=describe_bug(error))


def ended_by_stop(stop: Interrupted) -> Ending:
    failure = stop.__cause__ if isinstance(stop.__cause__, AgentError) else None
    text = f"{stop}, after: {failure}" if failure is not None else str(stop)
    limit = "max_budget_usd" if isinstance(stop, BudgetSpent) else None
    return Ending(stop.outcome, error=text, cause=failure, signal_number=stop.signal_number, limit=limit)
