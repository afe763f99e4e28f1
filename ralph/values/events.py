"""The events of a run and of a loop. `output/` turns them into JSON lines and into sentences.

This module prints nothing. An event is emitted once, by the code that first knows the fact. `output/stream_json.py`
has the names that the events have in stream-json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.values.models import ModelFacts
    from ralph.values.outcome import Outcome
    from ralph.values.report import Report
    from ralph.values.tool_calls import Block, ToolCall, ToolResult
    from ralph.values.usage import RunUsage, TokenUsage


class DeadEnd(Struct, frozen=True):
    """The reason why ralph ended a run that made no progress: repeated calls, or malformed calls in a row."""

    name: str
    """The name of the guard or rule that refused the calls: one of `guards.GUARDS` or `call_rules.NAMES`."""
    call: ToolCall
    """The last of the refused calls."""
    error: str
    """The reason for the end of the run, written for people."""


class RunStarted(Struct, frozen=True):
    cwd: str
    model: str
    tools: tuple[str, ...]
    api_key_source: str
    """The environment variable that the API key comes from, or "none" if there is no key."""
    targets: tuple[str, ...] = ()
    """The names of all targets of the run, in the order in which ralph tries them. Empty if there is only one
    target."""
    permission_mode: str = "bypassPermissions"
    """The value of a `permission_mode.PermissionMode`."""
    sandbox: str = "none"
    """The level of the sandbox in which commands run: "namespaces", "landlock" or "none"."""
    protections: Mapping[str, bool] = field(default_factory=dict)
    """For each protection of the sandbox, by name, whether it is in force."""
    memory: Mapping[str, str] = field(default_factory=dict)
    """The files whose instructions are in the system prompt. It maps each absolute path to a short form for people."""
    commands: tuple[str, ...] = ()
    """The names of the commands that a prompt can call. Skills are among them."""
    skills: tuple[str, ...] = ()
    """The names of the skills that the system prompt lists."""
    mcp_servers: tuple[str, ...] = ()
    """The names of the MCP servers. All of them are connected."""


class StreamReceived(Struct, frozen=True):
    """One stream event of an answer, as the server sent it. The answer may still turn out to be incomplete."""

    event: dict[str, Any]


class AnswerAccepted(Struct, frozen=True):
    """A complete assistant message has become part of the conversation."""

    message: dict[str, Any]
    """The API's message object with id, type, role, model, content, stop_reason, stop_sequence and usage."""
    request_id: str | None = None


class ToolStarted(Struct, frozen=True):
    call: ToolCall


class ToolFinished(Struct, frozen=True):
    call: ToolCall
    result: ToolResult
    took_s: float


class UserMessageCommitted(Struct, frozen=True):
    """A user message that ralph made has become part of the conversation.

    It holds tool results, or a text that ralph adds for the model, such as a request to continue. The user's own
    prompts have no such event.
    """

    content: tuple[Block, ...]


class AttemptEnded(Struct, frozen=True):
    """One attempt has ended: with an answer, with an error, or because it was interrupted.

    An attempt is one call of `send_message()`. An error is reported even if no retry follows.
    """

    turn: int
    """The number of the turn within the run, counted from 1."""
    attempt: int
    """The number of the attempt within the turn, counted from 1. Retries, requests to other targets, synthetic
    retries, continuations and summaries are all counted."""
    target: str
    model: str
    latency_s: float
    tokens: TokenUsage
    """The token counts for which the server bills the attempt. If the server gave no count, or the answer broke off,
    they may be ralph's estimates."""
    facts: ModelFacts | None = None
    """The known facts of the target's model, including its price. None if the model is unknown."""
    status: int | None = None
    """The HTTP status of an error answer, or None if there was no such answer."""
    kind: str | None = None
    """The value of a `FailureKind`, or "interrupted". None if the attempt was answered."""
    error: str | None = None
    """The text of the error, or None if the attempt was answered."""
    wait_s: float = 0.0
    """The seconds that ralph waits before the next attempt. 0 if no attempt or no wait follows."""


class TurnAsked(Struct, frozen=True):
    """A turn in which at least one request was sent has ended.

    `took_s` is the number of seconds that the turn's requests took, including the waits between them.
    """

    turn: int
    attempts: int
    """The number of attempts in the turn, counted as in `AttemptEnded`."""
    took_s: float


class RetryScheduled(Struct, frozen=True):
    """A retry will follow after `wait_s` seconds, which may be 0.

    `attempt` is the number of the retry among the retries of one request, counted from 1. `max_retries` is the number
    of retries that the policy allows.
    """

    attempt: int
    max_retries: int
    wait_s: float
    status: int | None
    error_class: str
    """The name of the class of the error, one of the five in `values/errors.py`."""
    kind: str
    """The value of a `FailureKind`."""
    message: str
    requested_wait_s: float | None = None
    """Equal to `wait_s` if the server requested a wait, which the policy may have shortened. None if ralph computed
    the wait itself."""
    restarts_response: bool = False
    """True if the failed answer had status 2xx, so that parts of it may have been streamed. The retry requests the
    whole answer again."""
    turn: int = 1
    target: str = ""
    """The name of the target that reported the error."""


class RetryRecovered(Struct, frozen=True):
    """A request was answered after at least one retry."""

    retries: int
    total_wait_s: float
    turn: int = 1
    attempt: int = 1
    """The number of the attempt that was answered. It is counted as in `AttemptEnded`, here and in the next four
    events."""


class RetryExhausted(Struct, frozen=True):
    """A request failed for good, or was interrupted, after a retry was announced."""

    retries: int
    total_wait_s: float
    error: str
    turn: int = 1
    attempt: int = 1


class ModelFallback(Struct, frozen=True):
    """Ralph has changed to another target. The next request goes to that target."""

    from_target: str
    to_target: str
    reason: str
    """The value of the `FailureKind` that caused the change, or "cooldown" if no error in this turn caused the
    change."""
    turn: int
    attempt: int
    """The number of the attempt that failed, or 0 if no attempt in this turn failed."""


class ModelFallbackSucceeded(Struct, frozen=True):
    """A fallback target has given its first answer since ralph changed to it.

    Every target except the preferred one, which is usually the first, is a fallback target.
    """

    target: str
    turn: int
    attempt: int


class ModelFallbackRecovered(Struct, frozen=True):
    """The preferred target has answered a request again, after a fallback target had replaced it."""

    target: str
    turn: int
    attempt: int


class ResponseDiscarded(Struct, frozen=True):
    """An answer, complete or not, has been discarded. Readers must ignore the parts of it that were streamed."""

    message_id: str


class ClockFired(Struct, frozen=True):
    """A time limit of an answer was reached, so the request was given up."""

    clock: str
    """The name of the time limit, as in `api/clocks.py`."""
    after_s: float


class Heartbeat(Struct, frozen=True):
    """Ralph is still waiting. `since_s` is the number of seconds since the last output for a reader."""

    waiting_for: str
    since_s: float


class TurnStarted(Struct, frozen=True):
    """A turn has started. The turn lasts until the model has completed an answer and the calls in the answer have
    results.
    """

    turn: int
    """The number of the turn within the run, counted from 1."""


class SyntheticRetry(Struct, frozen=True):
    """Ralph sends a new request after a useless answer.

    If the useless answer has no tool calls, it does not become part of the conversation.
    """

    turn: int
    number: int
    """The number of the synthetic retry within the turn, counted from 1."""
    reason: str
    """One of `next_step.FAILURES`. It is not sent to the API."""


class MalformedCallRefused(Struct, frozen=True):
    """A tool call was refused because it could not be run as the model wrote it.

    Its input is incomplete or not JSON, its arguments are wrong, or the tool is unknown. A call of the report tool
    whose report was not accepted counts too.
    """

    turn: int
    tool: str
    why: str
    """The error message that the model gets."""


class GuardTripped(Struct, frozen=True):
    """A guard has refused a call because the run makes no progress with it."""

    turn: int
    guard: str
    """The name of the guard, one of `guards.GUARDS`."""
    call: ToolCall
    refusals: int
    """The number of refusals in a row, including this one."""


class FinalTurnEntered(Struct, frozen=True):
    """The final turn has begun. From now on ralph accepts only a report or a closing answer."""

    turn: int
    reason: str
    """One of `finishing.FORCES`."""


class TurnsCollapsed(Struct, frozen=True):
    """Ralph has lowered the turn limit because a report failed or is missing."""

    turn: int
    reason: str
    """"report_failed" after a report that was not accepted, "no_report" after too many answers without a report."""
    old_max_turns: int | None
    """The turn limit before the change, or None if there was no limit."""
    new_max_turns: int


class ReportAccepted(Struct, frozen=True):
    """The run has its final report."""

    source: str
    """One of "tool_call", "text" or "synthetic"."""
    status: str
    """One of `report.STATUSES`, which are "success" and "failure"."""
    turn: int
    """The turn in which the model gave the report. For a synthetic report, the last turn that ralph requested."""
    attempts: int
    """The number of the model's attempts at a report in this run, including the one that was accepted. Calls of the
    report tool are counted, and so are plain texts that the model gave instead."""
    forced_reason: str | None = None
    """The reason for the final turn, one of `finishing.FORCES`. None if the run was not in its final turn."""


class ContextCompacted(Struct, frozen=True):
    """A shorter context has replaced the old one."""

    trigger: str
    """The reason for the compaction. "threshold": the context was nearly full. "overflow": the server refused the
    request as too large. "window_exceeded": the window became full during an answer."""
    source: str
    """"model" if the new context contains a new summary by the model, "cut" if it contains the end of the history
    instead."""
    pre_tokens: int
    """The estimated number of tokens before the compaction. `post_tokens` is the number afterwards."""
    post_tokens: int


class PermissionModeChanged(Struct, frozen=True):
    """A driver has changed the permission mode during the run."""

    mode: str


class HookStarted(Struct, frozen=True):
    """A hook's command begins. The event is emitted only if the user asked for hook events."""

    hook_id: str
    name: str
    """The event of the hook, followed by the tool's name if the event concerns a call: `PreToolUse:Bash`."""
    event: str


class HookEnded(Struct, frozen=True):
    """A hook's command has ended, or could not be run."""

    hook_id: str
    name: str
    event: str
    output: str = ""
    errors: str = ""
    """The beginning of the command's standard error, or the reason why it has no exit code."""
    status: int | None = None
    """The exit code of the command, or None if it has none."""


class MessageTaken(Struct, frozen=True):
    """Ralph begins to work on a driver's message. The event is emitted only if the driver asked for its messages
    back.
    """

    content: str | tuple[Block, ...]
    uuid: str | None = None
    """The driver's own id of the message, or None."""


class SessionStateChanged(Struct, frozen=True):
    """The run begins to work, to wait for the driver's decision, or to wait for a message. The event is emitted only
    if the driver asked for it. Such a driver keeps ralph's input open until `idle`.
    """

    state: str
    """"running", "requires_action" while the driver is asked about a call, or "idle"."""


class Notice(Struct, frozen=True):
    """A message for the people who read the output of a run or a loop."""

    text: str
    is_vital: bool = False
    """True if `--quiet` does not hide the notice. In a run, such a notice says that ralph left out some of the user's
    input."""


class LoopEvent(Struct, frozen=True):
    """An event of a loop itself, and not of one of its runs. `loop/events.py` defines the kinds."""


class PromptCalled(Struct, frozen=True):
    """A tool call that the prompt's command file requests is about to run. The model did not request it."""

    command: str
    """The command as it is called, such as `/fix`."""
    tool: str
    argument: str
    """The argument to show: the command line of Bash, or the path of a file."""


class PromptCallEnded(Struct, frozen=True):
    """A tool call that the prompt's command file requested has ended. Its output is part of the prompt."""

    command: str
    tool: str
    argument: str
    is_error: bool
    took_s: float


class SessionOpened(Struct, frozen=True):
    """The session is open. All later events belong to it."""

    session_id: str


class SessionTotal(Struct, frozen=True):
    """The totals of the runs of a session so far."""

    turns: int = 0
    cost_usd: float | None = 0.0
    """The cost of all runs in USD, or None if the cost of any of them is unknown."""

    def plus(self, ended: RunEnded) -> SessionTotal:
        known = (self.cost_usd, ended.usage.cost_usd)
        cost_usd = None if known[0] is None or known[1] is None else known[0] + known[1]
        return SessionTotal(self.turns + ended.num_turns, cost_usd)


class RunEnded(Struct, frozen=True):
    """A run has ended. The event has all facts of the `result` object."""

    outcome: Outcome
    exit_code: int
    result: str | None
    """The text of the result: the model's final answer, or the summary of the final report. None if there is
    neither."""
    errors: tuple[str, ...]
    stop_reason: str | None
    num_turns: int
    """The number of turns in which the model answered or was interrupted. A turn is counted even if its answer was
    not used."""
    duration_s: float
    api_s: float
    """The seconds spent in `send_message()`. Retries are included, but not the waits before them."""
    usage: RunUsage
    retries: int = 0
    waited_s: float = 0.0
    api_failure: str | None = None
    """The value of the `FailureKind` that ended the run, or None if no failure of the API ended it."""
    api_error_status: int | None = None
    retry_after_s: float | None = None
    hints: tuple[str, ...] = ()
    """Advice for the reader, one text per cause."""
    notices: tuple[str, ...] = ()
    """Remarks about parts of the user's input that ralph left out."""
    limit: str | None = None
    """The user's limit that ended the run: "max_turns", "max_budget_usd" or "context". None if none of these limits
    ended it."""
    report: Report | None = None
    """The final report, written by the model or by ralph. If no report was required, it is None unless ralph wrote
    one because an answer is missing."""
    dead_end: DeadEnd | None = None
    """The calls without progress that ended the run, or None if the run ended for another reason."""
    denied: tuple[ToolCall, ...] = ()
    """The calls that the permission mode refused, or to which the sandbox denied something."""
    session_total: SessionTotal = field(default_factory=SessionTotal)
    """The totals of all runs of the session, including this run."""
    sandbox: str | None = None
    """The level of the sandbox, as in RunStarted. None if the run ended before it was known."""
    protections: Mapping[str, bool] = field(default_factory=dict)
    """The protections of the sandbox, as in RunStarted."""


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
    | PromptCalled
    | PromptCallEnded
    | HookStarted
    | HookEnded
    | MessageTaken
    | SessionStateChanged
    | Notice
    | LoopEvent
    | SessionOpened
    | RunEnded
)

SHOWABLE = (RunStarted, AnswerAccepted, ToolStarted, ToolFinished, AttemptEnded, RetryScheduled, Notice)
"""The events that are output for a reader. `Heartbeats` takes them, and the text of an answer that is arriving, as
signs that the reader has seen output."""
