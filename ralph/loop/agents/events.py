"""Reads the events that agents print, a JSON object a line, and judges how a run of an agent ended. No I/O happens
here.

The exit code of no agent is enough: some exit with 0 after a refused request, a cut answer or no answer. So a run is
good only if its exit code, its last event and its answer all say so. Measured with claude 2.1.332, codex 0.171.0,
opencode 1.18.33 and pi 0.73.1.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ralph.values.outcome import Outcome
from ralph.values.servers.refusals import exhausted_account

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Event = Mapping[str, Any]
    Reader = Callable[["AgentRun", Event], None]


_MOST_USD = 1e6  # a number above it is not a cost


class AgentRun:
    """The events of one process of an agent so far."""

    def __init__(self, before_usd: float = 0.0) -> None:
        """`before_usd` is what the session that the process resumes has cost before it."""
        self._before_usd = before_usd
        self.session = ""
        """The agent's own id of the session. Empty if it is not known yet."""
        self.turns = 0
        self.cost_usd: float | None = None
        """The cost of this process in US dollars. None if no event contained one."""
        self.answer = ""
        self.has_ended_well = False
        self.failure = ""
        """The agent's own words about its failure. Empty if there are none."""
        self.status: int | None = None
        """The HTTP status of the failed request, if an event has it as a number."""
        self.has_events = False

    def add_cost(self, value: object) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_USD:
            self.cost_usd = (self.cost_usd or 0.0) + value

    def set_session_cost(self, value: object) -> None:
        """An event reports the cost of the whole session, or only of this process if that is less than the session had
        cost before.
        """
        self.cost_usd = None
        self.add_cost(value)
        if self.cost_usd is not None and self.cost_usd >= self._before_usd:
            self.cost_usd -= self._before_usd


# --- Readers, one for each agent


def read_claude(run: AgentRun, event: Event) -> None:
    run.session = _text(event, "session_id") or run.session
    if event.get("type") == "assistant":
        run.turns += 1
    if event.get("type") != "result":
        return
    # `--resume` counts on from what the session's file says.
    run.set_session_cost(event.get("total_cost_usd"))
    run.answer = _text(event, "result")
    run.has_ended_well = event.get("subtype") == "success" and event.get("is_error") is False
    run.status = _number(event.get("api_error_status"))
    why = [*map(str, _listed(event, "errors")), _text(event, "terminal_reason"), _text(event, "subtype")]
    run.failure = "" if run.has_ended_well else run.answer or "; ".join(filter(None, why))


def read_codex(run: AgentRun, event: Event) -> None:
    match event.get("type"):
        case "thread.started":
            run.session = _text(event, "thread_id")
        case "turn.started":
            run.has_ended_well, run.failure = False, ""
        case "item.completed":
            item = _object(event, "item")
            kind = _text(item, "type")
            if kind == "agent_message":
                run.answer = _text(item, "text")
            run.turns += kind in {"agent_message", "command_execution", "file_change"}
        case "turn.completed":
            run.has_ended_well = True  # without a message before it, it is a refusal or an empty answer
        case "turn.failed":
            run.failure = _text(_object(event, "error"), "message") or "the turn failed"
        case "error":
            run.failure = _text(event, "message") or run.failure
        case _:
            pass


def read_opencode(run: AgentRun, event: Event) -> None:
    run.session = _text(event, "sessionID") or run.session
    part = _object(event, "part")
    match event.get("type"):
        case "text":
            run.answer = _text(part, "text")
        case "step_finish":
            run.turns += 1
            run.add_cost(part.get("cost"))
            reason = _text(part, "reason")
            run.has_ended_well = reason == "stop"
            run.failure = "" if run.has_ended_well else f"its last step ended with {reason or 'no reason'}"
        case "error":
            error = _object(event, "error")
            data = _object(error, "data")
            run.has_ended_well = False
            run.failure = _text(data, "message") or _text(error, "name") or "an error"
            run.status = _number(data.get("statusCode"))
        case _:
            pass


def read_pi(run: AgentRun, event: Event) -> None:
    match event.get("type"):
        case "session":
            run.session = _text(event, "id")
        case "message_end":
            message = _object(event, "message")
            if message.get("role") != "assistant":
                return
            run.turns += 1
            run.add_cost(_object(_object(message, "usage"), "cost").get("total"))
            run.answer = "".join(
                _text(part, "text") for part in _listed(message, "content") if isinstance(part, dict)
            )
            stop = _text(message, "stopReason")
            run.has_ended_well = stop == "stop"
            run.failure = (
                "" if run.has_ended_well else _text(message, "errorMessage") or f"it stopped: {stop}"
            )
        case _:
            pass


# --- The judgement

_LIMIT = re.compile(
    r"(?i)insufficient_quota|quota exceeded|usage limit|credit balance|billing|limit reached|spend limit|\b402\b"
)
_AUTH = re.compile(
    r"(?i)\b40[13]\b|unauthorized|invalid api key|not logged in|please run /login|authentication"
)
_AWAY = re.compile(
    r"(?i)\b(?:429|5\d\d)\b|high demand|at capacity|overloaded|rate.?limit|disconnected|connection (?:refused|reset|error)"
    r"|econnre|enotfound|etimedout|fetch failed|timed? ?out|network|unable to connect|api connection"
)

_NO_SESSION = re.compile(
    r"(?i)\bno (?:session|conversation|rollout|thread)\b|\b(?:session|conversation|rollout|thread)\b.{0,60}not f(?:ou|i)nd"
)


def is_session_unknown(run: AgentRun, reason: str) -> bool:
    """Whether the reason for the end says that the agent does not know the session that it was to resume. An agent
    that was killed soon after its start may have reported a session that it had not stored yet.
    """
    return run.turns == 0 and bool(_NO_SESSION.search(reason))


def outcome_of_run(run: AgentRun, exit_code: int, said: str) -> tuple[Outcome, str]:
    """How a process of an agent ended by itself, and why. `exit_code` is 0-255. `said` is its last line that is no event."""
    if exit_code == 0 and run.has_ended_well and run.answer.strip():
        return Outcome.COMPLETED, ""
    if not run.has_events:
        why = f"it ended with exit {exit_code} and without any event{': ' if said else ''}{said}"
        outcome = _by_words(said)
        # The next process would end in the same way, as with a wrong option.
        return Outcome.CONFIG if outcome is Outcome.TASK_FAILED else outcome, why
    why = run.failure or ("it gave no answer" if exit_code == 0 else f"it ended with exit {exit_code}")
    return _by_account(why) or _by_status(run.status) or _by_words(why), why


def _by_account(why: str) -> Outcome | None:
    """The outcome if the words say that the account is exhausted, which only a person can change. Some vendors send
    that as 429.
    """
    account = exhausted_account((), why)
    return None if account is None or account.is_refilled else Outcome.API_REJECTED


def _by_status(status: int | None) -> Outcome | None:
    if status is None:
        return None
    if status in {401, 403}:
        return Outcome.AUTH
    if status == 402:
        return Outcome.API_REJECTED
    return Outcome.API_UNAVAILABLE if status == 429 or status >= 500 else None


def _by_words(why: str) -> Outcome:
    if _LIMIT.search(why):
        return Outcome.API_REJECTED
    if _AUTH.search(why):
        return Outcome.AUTH
    return Outcome.API_UNAVAILABLE if _AWAY.search(why) else Outcome.TASK_FAILED


def _object(event: Event, name: str) -> Event:
    value = event.get(name)
    return value if isinstance(value, dict) else {}


def _listed(event: Event, name: str) -> list[Any]:
    value = event.get(name)
    return value if isinstance(value, list) else []


def _text(event: Event, name: str) -> str:
    value = event.get(name)
    return value if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
