"""The events of a run and of a loop. `output/` turns these events into JSON lines and into sentences.

This module prints nothing. The code that first knows a fact emits the event about it, and emits it once.
`output/stream_json.py` defines the names of the events in stream-json. `EventStream` passes each event on to
sinks. A sink is an object that prints, counts or records events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ralph.values.usage import RunUsage, TokenUsage, total_usd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.values.answer import Block, ToolCall, ToolResult
    from ralph.values.outcome import Outcome
    from ralph.values.ports import Events
    from ralph.values.report import Report
    from ralph.values.servers import ModelFacts


class Event(Struct, frozen=True):
    """The base class of everything that a run or a loop tells its sinks."""


class DeadEnd(Struct, frozen=True):
    """Why ralph ended a run without progress: the model repeated the same calls, or all calls in several answers in
    a row were malformed.
    """

    name: str
    call: ToolCall
    """The last of the refused calls."""
    error: str


SOCKETS_IN_FILES = "sockets in the file system"
"""The name of the sandbox's protection against connections to Unix sockets of other programs."""


class RunStarted(Event, frozen=True):
    cwd: str
    model: str
    tools: tuple[str, ...]
    api_key_source: str
    """The name of the environment variable that holds the API key, or "none" if there is no key."""
    targets: tuple[str, ...] = ()
    """The names of all targets, in the order in which ralph tries them. Empty if there is only one."""
    permission_mode: str = "bypassPermissions"
    sandbox: str = "none"
    """The level of the sandbox in which commands run: "namespaces", "landlock" or "none"."""
    protections: Mapping[str, bool] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    memory: Mapping[str, str] = field(default_factory=dict)
    """The files whose instructions are in the system prompt. It maps each absolute path to a short form for people."""
    commands: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    mcp_servers: tuple[str, ...] = ()


class RequestSent(Event, frozen=True):
    """A request has been given to the thread that sends it, and ralph is about to wait for the answer."""


class StreamReceived(Event, frozen=True):
    """One stream event of an answer, as the server sent it. The answer may never become complete."""

    event: dict[str, Any]


class AnswerAccepted(Event, frozen=True):
    """A complete answer of the model was added to the conversation."""

    message: dict[str, Any]
    """The API's message object with id, type, role, model, content, stop_reason, stop_sequence and usage."""
    request_id: str | None = None


class ToolStarted(Event, frozen=True):
    call: ToolCall


class ToolFinished(Event, frozen=True):
    call: ToolCall
    result: ToolResult
    took_s: float


class BackgroundStarted(Event, frozen=True):
    id: str
    """The id by which the model names it, such as `bash_1`. Unique in a session."""
    command: str
    """The command line in one line, without known credentials."""
    call_id: str = ""


class BackgroundEnded(Event, frozen=True):
    """A command in the background has ended: none of its processes is left."""

    id: str
    command: str
    call_id: str = ""
    exit_code: int | None = None
    stopped_by: str = ""
    """Who stopped the command: "model" (a tool call), "run" (the end of the run) or "limit" (on processes or
    memory). Empty if it ended by itself."""
    took_s: float = 0.0

    @property
    def status(self) -> str:
        """The status in the words of Claude Code."""
        if self.stopped_by:
            return "stopped"
        return "completed" if self.exit_code == 0 else "failed"


class Background(Struct, frozen=True):
    count: int = 0
    running: Mapping[str, str] = field(default_factory=dict)


class UserMessageCommitted(Event, frozen=True):
    """A user message that ralph made was added to the conversation: tool results, or a text for the model, such as
    a request to continue. There is no such event for the user's own prompts.
    """

    content: tuple[Block, ...]


class AttemptEnded(Event, frozen=True):
    """An attempt, which is one call of `send_message()`, has ended with an answer or an error, or was interrupted.
    Emitted whether or not a retry follows.
    """

    turn: int
    attempt: int
    """The number of the attempt within the turn, counted from 1. Every request counts: retries, other targets,
    synthetic retries, continuations and summaries."""
    target: str
    model: str
    latency_s: float
    tokens: TokenUsage
    """The tokens for which the server bills the attempt. Ralph's estimates if it gave no count, or if the answer
    broke off."""
    facts: ModelFacts | None = None
    status: int | None = None
    kind: str | None = None
    error: str | None = None
    wait_s: float = 0.0
    """The seconds that ralph waits before the next attempt. 0 if ralph does not wait, or if no attempt follows."""
    api: str = "anthropic"


class TurnAsked(Event, frozen=True):
    """A turn has ended in which at least one request was sent. `took_s` is the number of seconds spent on its
    requests and on the waits between them.
    """

    turn: int
    attempts: int
    took_s: float


class RetryScheduled(Event, frozen=True):
    """Ralph will retry a request after `wait_s` seconds, which may be 0. `attempt` is the number of this retry of
    the request, counted from 1. `max_retries` is the number that the policy allows.
    """

    attempt: int
    max_retries: int
    wait_s: float
    status: int | None
    error_class: str
    kind: str
    message: str
    requested_wait_s: float | None = None
    """If the server requested a wait, this is `wait_s`. The policy may have shortened the requested wait. None if
    the server requested no wait."""
    turn: int = 1
    target: str = ""


class ResponseRestarted(Event, frozen=True):
    """An answer with status 2xx failed, perhaps after parts of it were streamed. The next request, to the same
    target or to another, asks for the whole answer again.
    """


class RetryRecovered(Event, frozen=True):
    """A request was answered after at least one retry."""

    retries: int
    total_wait_s: float
    turn: int = 1
    attempt: int = 1
    """The number of the attempt that was answered, counted as in `AttemptEnded`. The next four events count in the
    same way."""


class RetryExhausted(Event, frozen=True):
    """Retries of a request were announced, but the request finally failed or was interrupted."""

    retries: int
    total_wait_s: float
    error: str
    turn: int = 1
    attempt: int = 1


class ModelFallback(Event, frozen=True):
    """Ralph has changed to another target. It sends the next request to that target."""

    from_target: str
    to_target: str
    reason: str
    """The value of the `FailureKind` that caused the change. "cooldown" if no error in this turn caused the change."""
    turn: int
    attempt: int
    """The number of the attempt that failed, or 0 if no attempt in this turn failed."""


class ModelFallbackSucceeded(Event, frozen=True):
    """A fallback target has given its first answer since ralph changed to it. Fallback targets are all but the
    preferred one, which is usually the first in the settings.
    """

    target: str
    turn: int
    attempt: int


class ModelFallbackRecovered(Event, frozen=True):
    """The preferred target has answered again. Before that, a fallback target had replaced it."""

    target: str
    turn: int
    attempt: int


class ResponseDiscarded(Event, frozen=True):
    """Ralph has discarded an answer, which may be incomplete. Readers must ignore the parts of it that were
    streamed.
    """

    message_id: str


class ClockFired(Event, frozen=True):
    """A time limit for an answer was reached, and ralph gave up the request."""

    clock: str
    after_s: float


class Heartbeat(Event, frozen=True):
    """Ralph is still waiting. `since_s` is the number of seconds since ralph last wrote output that a reader sees."""

    waiting_for: str
    since_s: float


class TurnStarted(Event, frozen=True):
    """A turn has begun. In a turn, the model completes an answer, and the tool calls in the answer get results."""

    turn: int


class SyntheticRetry(Event, frozen=True):
    """Ralph sends a new request after a useless answer. A useless answer without tool calls is not added to the
    conversation.
    """

    turn: int
    number: int
    reason: str
    """One of `next_step.FAILURES`. The API does not receive it."""


class MalformedCallRefused(Event, frozen=True):
    """Ralph refused a tool call that it could not run as the model wrote it: the input is incomplete or not JSON,
    the arguments are wrong, or the tool is unknown.

    There is also such an event for a call of the report tool if the report was not accepted.
    """

    turn: int
    tool: str
    why: str


class GuardTripped(Event, frozen=True):
    """A guard has refused a tool call, because the call continues a loop without progress."""

    turn: int
    guard: str
    call: ToolCall
    refusals: int
    """The number of consecutive refusals, including this one."""


class FinalTurnEntered(Event, frozen=True):
    """The final turn has begun. From now on ralph accepts only a report or a closing answer."""

    turn: int
    reason: str


class TurnsCollapsed(Event, frozen=True):
    """Ralph has lowered the turn limit because a report failed or is missing."""

    turn: int
    reason: str
    """"report_failed" if the model's report was not accepted. "no_report" after too many answers without a report."""
    old_max_turns: int | None
    new_max_turns: int


class ReportAccepted(Event, frozen=True):
    """The run has a final report. Either a report of the model was accepted, or ralph wrote a synthetic report."""

    source: str
    """One of "tool_call", "text" or "synthetic"."""
    status: str
    turn: int
    """The number of the turn in which the model gave the report. For a synthetic report, that of the last turn with
    a request."""
    attempts: int
    """How often the model tried to report in this run, including the accepted report. Each call of the report tool
    counts, and each answer of plain text in place of a call."""
    forced_reason: str | None = None
    """The reason for the final turn, one of `agent.run_end.FORCES`. None if the run was not in its final turn."""


class ContextCompacted(Event, frozen=True):
    """Ralph has compacted the context: a shorter context has replaced the old one."""

    trigger: str
    """The reason: "threshold" if the context was nearly full, "overflow" if the server refused the request as too
    large, "window_exceeded" if the context window became full during an answer."""
    source: str
    """"model" if the new context contains a new summary by the model. "cut" if it contains the end of the history
    instead."""
    pre_tokens: int
    """The estimated number of tokens before the compaction. `post_tokens` is the number afterwards."""
    post_tokens: int


class PermissionModeChanged(Event, frozen=True):
    """A driver has changed the permission mode during the run."""

    mode: str


class HookStarted(Event, frozen=True):
    """The command of a hook begins. The event is emitted only if the user requested events about hooks."""

    hook_id: str
    name: str
    """The event of the hook, followed by the tool's name if the event concerns a call: `PreToolUse:Bash`."""
    event: str


class HookEnded(Event, frozen=True):
    """The command of a hook has ended, or could not be run."""

    hook_id: str
    name: str
    event: str
    output: str = ""
    errors: str = ""
    """The beginning of the command's standard error. If the command has no exit code, the reason for that."""
    status: int | None = None


class MessageTaken(Event, frozen=True):
    """Ralph begins to work on a message of the driver. Emitted only if the driver requested that its messages are
    repeated in the output.
    """

    content: str | tuple[Block, ...]
    uuid: str | None = None


class SessionStateChanged(Event, frozen=True):
    """The run begins to work, or begins to wait for a decision or a message of the driver. Emitted only if the
    driver requested this event. Such a driver keeps ralph's input open until the state is "idle".
    """

    state: str
    """"running": the run works. "requires_action": the driver is asked about a tool call. "idle": the run waits for
    a message."""


class Notice(Event, frozen=True):
    """A message for the people who read the output of a run or a loop."""

    text: str
    is_vital: bool = False
    """True if `--quiet` does not hide the notice. In a run, such a notice says that ralph left out some of the
    user's input."""


class LoopEvent(Event, frozen=True):
    """The base class of the events of `ralph loop` itself, which `loop/events.py` defines. Events of the runs in
    the loop have other classes.
    """


class PromptCalled(Event, frozen=True):
    """Ralph is about to run a tool call that the prompt or its command file requests. The model did not request it."""

    command: str
    """The command as a prompt calls it, such as `/fix`. Empty if the prompt itself names a file."""
    tool: str
    argument: str
    """The argument of the call that is shown: the command line of Bash, or the path of a file."""


class PromptCallEnded(Event, frozen=True):
    """A tool call that the prompt or its command file requested has ended. Its output becomes part of the prompt."""

    command: str
    tool: str
    argument: str
    is_error: bool
    took_s: float


class SessionOpened(Event, frozen=True):
    """A session was opened. All later events belong to this session."""

    session_id: str


class SessionTotal(Struct, frozen=True):
    """The totals of all runs of a session so far."""

    turns: int = 0
    cost_usd: float | None = 0.0

    def plus(self, ended: RunEnded) -> SessionTotal:
        cost_usd = total_usd((self.cost_usd, ended.usage.cost_usd))
        return SessionTotal(self.turns + ended.num_turns, cost_usd)


class RunEnded(Event, frozen=True):
    """A run has ended. The event contains all facts of the `result` object."""

    outcome: Outcome
    exit_code: int
    result: str | None
    """The text of the result: the model's final answer or the summary of the final report. None if there is no such
    text."""
    errors: tuple[str, ...]
    stop_reason: str | None
    num_turns: int
    """The number of turns in which the model answered or was interrupted, including turns in which no answer was
    used."""
    duration_s: float
    api_s: float
    """The seconds spent on calls of `send_message()`, including retries. The waits before retries are not included."""
    usage: RunUsage
    retries: int = 0
    waited_s: float = 0.0
    api_failure: str | None = None
    api_error_status: int | None = None
    retry_after_s: float | None = None
    is_short: bool = False
    hints: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    limit: str | None = None
    """The user's limit that ended the run: "max_turns", "max_budget_usd" or "context". Else None."""
    report: Report | None = None
    """The final report, written by the model or by ralph, or None. If none is required, ralph writes one only if an
    answer is missing."""
    dead_end: DeadEnd | None = None
    denied: tuple[ToolCall, ...] = ()
    """The tool calls that the permission mode refused, and the calls in which the sandbox denied an operation."""
    session_total: SessionTotal = field(default_factory=SessionTotal)
    background_stopped: int = 0
    sandbox: str | None = None
    protections: Mapping[str, bool] = field(default_factory=dict)


SHOWABLE = (RunStarted, AnswerAccepted, ToolStarted, ToolFinished, AttemptEnded, RetryScheduled, Notice)
"""Classes of events that become output for a reader. `Heartbeats` takes these as signs that the reader has seen
output, and also the text of an arriving answer."""


class EventStream:
    """Passes each event on to every sink, in order."""

    def __init__(self, *sinks: Events) -> None:
        self._sinks = sinks

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink.emit(event)
