"""What happened, as values. Output turns them into JSON lines and into sentences; nothing here prints.

Every event is emitted once, by the one who knows. `output/stream_json.py` holds their names on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ralph.core.outcome import Outcome
    from ralph.core.tool_calls import Block, ToolCall, ToolResult
    from ralph.core.usage import RunUsage, TokenUsage


@dataclass(frozen=True)
class RunStarted:
    cwd: str
    model: str
    tools: tuple[str, ...]
    api_key_source: str
    """Where the credential came from: a variable's name, or "none"."""


@dataclass(frozen=True)
class StreamReceived:
    """One event of the answer as the server sent it, before it is known whether the answer will be whole."""

    event: dict[str, Any]


@dataclass(frozen=True)
class AnswerAccepted:
    """A whole assistant message, committed."""

    message: dict[str, Any]
    """The API's message object: id, type, role, model, content, stop_reason, stop_sequence, usage."""
    request_id: str | None = None


@dataclass(frozen=True)
class ToolStarted:
    call: ToolCall


@dataclass(frozen=True)
class ToolFinished:
    call: ToolCall
    result: ToolResult
    took_s: float


@dataclass(frozen=True)
class UserMessageCommitted:
    """Tool results, or a message ralph adds for the model (a continuation, a notice)."""

    content: tuple[Block, ...]


@dataclass(frozen=True)
class AttemptFailed:
    """One `send_message()` ended in an error. Shown at every attempt, also when nothing is retried."""

    text: str


@dataclass(frozen=True)
class RetryScheduled:
    """Emitted before each retry, zero waits included. `attempt` is 1-based and counts retries."""

    attempt: int
    max_retries: int
    wait_s: float
    status: int | None
    error_class: str
    kind: str
    """`FailureKind` value."""
    message: str
    server_wish_s: float | None = None
    """Set when the server's wish decided the wait."""
    restarts_response: bool = False
    """A broken stream is asked again from the beginning."""


@dataclass(frozen=True)
class RetryRecovered:
    retries: int
    total_wait_s: float


@dataclass(frozen=True)
class RetryExhausted:
    retries: int
    total_wait_s: float
    error: str


@dataclass(frozen=True)
class ResponseDiscarded:
    """A partial answer was thrown away; whatever was streamed of it does not count."""

    message_id: str
    tokens: TokenUsage
    """What the server had counted of it: thrown away, but billed."""


@dataclass(frozen=True)
class ClockFired:
    clock: str
    after_s: float


@dataclass(frozen=True)
class Heartbeat:
    waiting_for: str
    since_s: float


@dataclass(frozen=True)
class Notice:
    """A sentence for the people who read the run."""

    text: str


@dataclass(frozen=True)
class RunEnded:
    """The last word. Everything the `result` object says comes from here."""

    outcome: Outcome
    exit_code: int
    result: str | None
    """The model's final answer, None when there was none."""
    errors: tuple[str, ...]
    stop_reason: str | None
    num_turns: int
    duration_s: float
    api_s: float
    """Seconds inside `send_message()`, retries included, waits not."""
    usage: RunUsage
    retries: int = 0
    waited_s: float = 0.0
    api_error_status: int | None = None
    retry_after_s: float | None = None
    hints: tuple[str, ...] = field(default=())
    """What the reader can do about it, one sentence each."""


Event = (
    RunStarted
    | StreamReceived
    | AnswerAccepted
    | ToolStarted
    | ToolFinished
    | UserMessageCommitted
    | AttemptFailed
    | RetryScheduled
    | RetryRecovered
    | RetryExhausted
    | ResponseDiscarded
    | ClockFired
    | Heartbeat
    | Notice
    | RunEnded
)

SHOWABLE = (RunStarted, AnswerAccepted, ToolStarted, ToolFinished, AttemptFailed, RetryScheduled, Notice)
"""Events after which a reader has just seen a sign of life. (Text deltas count too; see `Heartbeats`.)"""
