"""Events, as values. Output turns them into JSON lines and into sentences; nothing here prints.

Every event is emitted once, where it is known first. `output/stream_json.py` holds their names on the wire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from ralph.values.models import ModelFacts
    from ralph.values.outcome import Outcome
    from ralph.values.report import Report
    from ralph.values.tool_calls import Block, ToolCall, ToolResult
    from ralph.values.usage import RunUsage, TokenUsage


class DeadEnd(Struct, frozen=True):
    """The call that a model repeated until the run ended because of it."""

    name: str
    """One of `guards.GUARDS`, or of `call_rules.NAMES`."""
    call: ToolCall
    """The last such call."""
    error: str
    """Why the run ends, for people."""


class RunStarted(Struct, frozen=True):
    cwd: str
    model: str
    tools: tuple[str, ...]
    api_key_source: str
    """The source of the credential: a variable's name, or "none"."""
    targets: tuple[str, ...] = ()
    """The names of all targets of the run, beginning with the first; empty if there is only one."""
    permission_mode: str = "bypassPermissions"
    """One of `permission_mode.PermissionMode`."""


class StreamReceived(Struct, frozen=True):
    """One event of the answer as the server sent it, before it is known whether the answer will be whole."""

    event: dict[str, Any]


class AnswerAccepted(Struct, frozen=True):
    """A whole assistant message, committed."""

    message: dict[str, Any]
    """The API's message object: id, type, role, model, content, stop_reason, stop_sequence, usage."""
    request_id: str | None = None


class ToolStarted(Struct, frozen=True):
    call: ToolCall


class ToolFinished(Struct, frozen=True):
    call: ToolCall
    result: ToolResult
    took_s: float


class UserMessageCommitted(Struct, frozen=True):
    """Tool results, or a message ralph adds for the model (a continuation, a notice)."""

    content: tuple[Block, ...]


class AttemptEnded(Struct, frozen=True):
    """The end of one attempt, which is one `send_message()`, with an answer or an error.

    An error is shown even if no retry follows.
    """

    turn: int
    """1-based, within the run."""
    attempt: int
    """The number of the attempt within the turn, from 1.

    Retries, requests to other targets, synthetic retries, continuations and summaries all count.
    """
    target: str
    model: str
    latency_s: float
    tokens: TokenUsage
    """The server's token counts; for an answer that broke off, the counts up to that point."""
    facts: ModelFacts | None = None
    """The known facts of the target's model, above all its price."""
    status: int | None = None
    """The HTTP status of an error answer."""
    kind: str | None = None
    """A `FailureKind`, or "interrupted"; None: the attempt was answered."""
    error: str | None = None
    wait_s: float = 0.0
    """Seconds of waiting before the next attempt."""


class TurnAsked(Struct, frozen=True):
    """The end of a turn, with the number of attempts for its answers and the seconds that they took, with waits."""

    turn: int
    attempts: int
    """The number of all attempts of the turn, counted as in `AttemptEnded`."""
    took_s: float


class RetryScheduled(Struct, frozen=True):
    """The announcement of a retry, even of one without a wait. `attempt` counts retries from 1."""

    attempt: int
    max_retries: int
    wait_s: float
    status: int | None
    error_class: str
    kind: str
    """The value of a `FailureKind`."""
    message: str
    requested_wait_s: float | None = None
    """The wait that the server requested; None: ralph computed the wait itself."""
    restarts_response: bool = False
    """The answer broke off in the stream; the retry requests it again from the beginning."""
    turn: int = 1
    target: str = ""
    """The target that the error came from."""


class RetryRecovered(Struct, frozen=True):
    retries: int
    total_wait_s: float
    turn: int = 1
    attempt: int = 1
    """The attempt that was answered, counted as in `AttemptEnded`. The next four events count alike."""


class RetryExhausted(Struct, frozen=True):
    retries: int
    total_wait_s: float
    error: str
    turn: int = 1
    attempt: int = 1


class ModelFallback(Struct, frozen=True):
    """A change to another target: it gets the requests from now on."""

    from_target: str
    to_target: str
    reason: str
    """The `FailureKind` of the error that caused the change, or "cooldown" if no error of this turn caused it."""
    turn: int
    attempt: int
    """The attempt that failed; 0: none of this turn did."""


class ModelFallbackSucceeded(Struct, frozen=True):
    """A fallback target, any target but the first, has given its first answer."""

    target: str
    turn: int
    attempt: int


class ModelFallbackRecovered(Struct, frozen=True):
    """The first target answers again."""

    target: str
    turn: int
    attempt: int


class ResponseDiscarded(Struct, frozen=True):
    """The end of a partial answer that is thrown away: its streamed parts do not count."""

    message_id: str


class ClockFired(Struct, frozen=True):
    clock: str
    after_s: float


class Heartbeat(Struct, frozen=True):
    waiting_for: str
    since_s: float


class TurnStarted(Struct, frozen=True):
    """The start of a turn: one accepted answer and the results of its tools."""

    turn: int
    """1-based, within the run."""


class SyntheticRetry(Struct, frozen=True):
    """A new request after a useless answer. Neither that answer nor the notice about it is kept."""

    turn: int
    number: int
    """1-based, within the turn."""
    reason: str
    """One of `next_step.FAILURES`; the API never sees it."""


class MalformedCallRefused(Struct, frozen=True):
    """A tool call that could not be run as it was written: cut, no JSON, an unknown tool, wrong arguments."""

    turn: int
    tool: str
    why: str
    """The error message for the model."""


class GuardTripped(Struct, frozen=True):
    """The refusal of a call that makes no progress."""

    turn: int
    guard: str
    """One of `guards.GUARDS`."""
    call: ToolCall
    refusals: int
    """Refusals in a row, this one included."""


class FinalTurnEntered(Struct, frozen=True):
    """The final turn has begun: only a report or a closing answer is taken from now on."""

    turn: int
    reason: str
    """One of `finishing.FORCES`."""


class TurnsCollapsed(Struct, frozen=True):
    """A failed report has shortened the rest of the run."""

    turn: int
    reason: str
    old_max_turns: int | None
    """The previous limit of turns; None: there was none."""
    new_max_turns: int


class ReportAccepted(Struct, frozen=True):
    """The run's final report is known."""

    source: str
    """One of "tool_call", "text" or "synthetic"."""
    status: str
    """One of `report.STATUSES`: "success" or "failure"."""
    turn: int
    """The turn that gave the report; for a synthetic report, the last turn that was requested."""
    attempts: int
    """Attempts at a report in this run, this one included: calls of the tool, and plain text in its place."""
    forced_reason: str | None = None
    """Why the run was in its final turn; None: it was not."""


class ContextCompacted(Struct, frozen=True):
    """A fresh context takes the place of the old one."""

    trigger: str
    """One of "threshold", "overflow" or "window_exceeded"."""
    source: str
    """The source of the fresh context: "model" (the model's summary), or "cut" (the history, cut without a summary)."""
    pre_tokens: int
    """Estimated tokens of the context before the change; `post_tokens` are those after it."""
    post_tokens: int


class PermissionModeChanged(Struct, frozen=True):
    """A driver has set the mode in the middle of the run."""

    mode: str


class Notice(Struct, frozen=True):
    """A sentence for the people who read a run's or a loop's messages."""

    text: str
    is_vital: bool = False
    """True: `--quiet` does not hide the notice. In a run it tells that some of the user's input is left out."""


class LoopEvent(Struct, frozen=True):
    """An event of a loop, around its runs. `loop/events.py` has the kinds."""


class SessionOpened(Struct, frozen=True):
    """The session is open: all following events belong to it."""

    session_id: str


class SessionTotal(Struct, frozen=True):
    turns: int = 0
    cost_usd: float | None = 0.0
    """The cost of all runs; None: the cost of one of them is unknown."""

    def plus(self, ended: RunEnded) -> SessionTotal:
        known = (self.cost_usd, ended.usage.cost_usd)
        cost_usd = None if known[0] is None or known[1] is None else known[0] + known[1]
        return SessionTotal(self.turns + ended.num_turns, cost_usd)


class RunEnded(Struct, frozen=True):
    """The end of a run, with all facts of the `result` object."""

    outcome: Outcome
    exit_code: int
    result: str | None
    """The model's final answer; None: it gave none."""
    errors: tuple[str, ...]
    stop_reason: str | None
    num_turns: int
    """Turns in which the model answered or was interrupted, even if the answer was not used."""
    duration_s: float
    api_s: float
    """Seconds spent in `send_message()`; retries count, the waits before them do not."""
    usage: RunUsage
    retries: int = 0
    waited_s: float = 0.0
    api_failure: str | None = None
    """The `FailureKind` of the API's failure that ended the run; None: something else did."""
    api_error_status: int | None = None
    retry_after_s: float | None = None
    hints: tuple[str, ...] = ()
    """Advice for the reader, one sentence each."""
    notices: tuple[str, ...] = ()
    """Parts of the user's input that were left out, one sentence each."""
    limit: str | None = None
    """The user's limit that ended the run: "max_turns", "max_budget_usd" or "context"; None: none of these."""
    report: Report | None = None
    """The final report, the model's or a synthetic one; None: no report was required, and the run ended with an answer.
    """
    dead_end: DeadEnd | None = None
    """The call that was repeated too often."""
    denied: tuple[ToolCall, ...] = ()
    """Calls that the permission mode did not let run."""
    session_total: SessionTotal = field(default_factory=SessionTotal)
    """Totals of all runs of the session, this one included."""


Event = (
    RunStarted
    | StreamReceived
    | AnswerAccepted
    | ToolStarted
    | ToolFinished
    | UserMessageCommitted
    | AttemptEnded
    | TurnAsked
    | RetryScheduled
    | RetryRecovered
    | RetryExhausted
    | ModelFallback
    | ModelFallbackSucceeded
    | ModelFallbackRecovered
    | ResponseDiscarded
    | ClockFired
    | Heartbeat
    | TurnStarted
    | SyntheticRetry
    | MalformedCallRefused
    | GuardTripped
    | FinalTurnEntered
    | TurnsCollapsed
    | ReportAccepted
    | ContextCompacted
    | PermissionModeChanged
    | Notice
    | LoopEvent
    | SessionOpened
    | RunEnded
)

SHOWABLE = (RunStarted, AnswerAccepted, ToolStarted, ToolFinished, AttemptEnded, RetryScheduled, Notice)
"""Events that show a reader a sign of life. Text deltas count too; see `Heartbeats`."""
