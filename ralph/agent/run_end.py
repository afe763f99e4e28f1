"""Builds the end of a run from the facts at that time. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.agent.finishing import FORCES
from ralph.values.classify import failure_kind
from ralph.values.errors import HttpError
from ralph.values.events import AttemptEnded, DeadEnd, Event, RetryExhausted, RetryRecovered, RunEnded
from ralph.values.outcome import Outcome
from ralph.values.usage import RunUsage, TokenUsage

if TYPE_CHECKING:
    from ralph.values.errors import AgentError
    from ralph.values.report import Report, ReportDesk

_OWES_AN_ANSWER = frozenset(
    {Outcome.LIMIT_REACHED, Outcome.TIMED_OUT, Outcome.NO_PROGRESS, Outcome.TASK_FAILED}
)
"""Outcomes of a run that had begun its work: its result always has an answer, if only a synthetic report."""

_BY_THE_API = frozenset({Outcome.API_REJECTED, Outcome.API_UNAVAILABLE, Outcome.AUTH})
_FORCED = frozenset({Outcome.LIMIT_REACHED, Outcome.TIMED_OUT})
_REASONS = {Outcome.TIMED_OUT: "max_time", Outcome.TASK_FAILED: "no_report"}


LAST_WORDS = "{summary}\n\nThe model's last words were:\n\n{words}"
_WERE_ASKED = frozenset({None, "interrupted"})
"""The kinds of attempts that count as a turn: None, the kind of an answered attempt, and "interrupted"."""


class Ending(Struct, frozen=True):
    """The reason why the loop stopped, before it is recorded."""

    outcome: Outcome
    result: str | None = None
    stop_reason: str | None = None
    error: str | None = None
    cause: AgentError | None = None
    signal_number: int = 0
    limit: str | None = None
    """The user's limit that ended the run: "max_turns", "max_budget_usd" or "context"; None: no limit ended it."""
    report: Report | None = None
    dead_end: DeadEnd | None = None

    def lacks_answer(self, *, needs_report: bool) -> bool:
        """Whether a synthetic report must take the place of an answer."""
        if self.report is not None:
            return False
        return needs_report or (self.result is None and self.outcome in _OWES_AN_ANSWER)

    @property
    def is_forced(self) -> bool:
        """Whether a limit ended the run, perhaps in the middle of good work."""
        return self.outcome in _FORCED

    def stand_in(self, desk: ReportDesk | None, turns: int, last_stop_reason: str | None) -> Report:
        """The synthetic report after `turns` turns. `desk` took the run's reports; None: no report was required."""
        from ralph.values.report import synthetic_report  # noqa: PLC0415 - most runs have an answer

        error = self.error
        if desk is not None and self._is_for_want_of_report:
            error = desk.last_problem or error
        return synthetic_report(
            reason=self.reason,
            turns_completed=turns,
            attempts=desk.attempts if desk is not None else 0,
            last_stop_reason=last_stop_reason,
            last_error=error,
        )

    @property
    def _is_for_want_of_report(self) -> bool:
        """Whether the run ended because its final turn gave no report: the last report's problem is then the error."""
        return self.outcome is Outcome.TASK_FAILED or (self.limit in FORCES and self.cause is None)

    @property
    def reason(self) -> str:
        """Why there is no answer, for the synthetic report."""
        return self.limit or _REASONS.get(self.outcome, self.outcome.value)

    @property
    def retry_after_s(self) -> float | None:
        is_for_later = self.outcome is Outcome.API_UNAVAILABLE
        return self.cause.retry_after if is_for_later and isinstance(self.cause, HttpError) else None

    def told(self, tally: Tally, duration_s: float, hints: tuple[str, ...]) -> RunEnded:
        report = self.report
        return RunEnded(
            outcome=self.outcome,
            exit_code=self.outcome.exit_code(self.signal_number),
            result=self._words,
            errors=(self.error,) if self.error else (),
            stop_reason=self.stop_reason,
            num_turns=tally.counted_turns,
            duration_s=duration_s,
            api_s=tally.api_s,
            usage=tally.usage,
            retries=tally.retries,
            waited_s=tally.waited_s,
            api_failure=self._api_failure,
            api_error_status=self.cause.status if isinstance(self.cause, HttpError) else None,
            retry_after_s=self.retry_after_s,
            hints=hints,
            limit=self.limit,
            report=report,
            dead_end=self.dead_end,
        )

    @property
    def _api_failure(self) -> str | None:
        """The API failure that ended the run; None: something else ended it."""
        if self.cause is None or (self.outcome not in _BY_THE_API and self.limit != "context"):
            return None
        return failure_kind(self.cause).value

    @property
    def _words(self) -> str | None:
        """The text of the result. A synthetic report is followed by the model's own last text."""
        if self.report is None:
            return self.result
        if self.report.source != "synthetic" or self.result is None:
            return self.report.summary
        return LAST_WORDS.format(summary=self.report.summary, words=self.result)


class Tally:
    """An `Events` sink with the sums of a run."""

    def __init__(self) -> None:
        self.usage = RunUsage()
        self.retries = 0
        self.waited_s = 0.0
        self.api_s = 0.0
        """Seconds inside `send_message()`."""
        self.turns = 0
        """Completed turns: those with an accepted answer and the results of its tools."""
        self._asked_turns = 0

    @property
    def counted_turns(self) -> int:
        """The number of turns in the result.

        A turn whose answers were useless or cut off counts; one with only failed requests does not, because a resumed
        session repeats it.
        """
        return max(self.turns, self._asked_turns)

    def emit(self, event: Event) -> None:
        match event:
            case AttemptEnded():
                if event.kind in _WERE_ASKED:
                    self._asked_turns = event.turn
                # A broken answer is billed too, for the tokens that the server had counted.
                if event.tokens != TokenUsage():
                    self.usage = self.usage.plus(event.model, event.tokens, event.facts)
                self.api_s += event.latency_s
            case RetryRecovered() | RetryExhausted():
                # Each of these events closes a chain, with the time that it really took.
                self.retries += event.retries
                self.waited_s += event.total_wait_s
