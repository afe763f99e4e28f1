"""One task: send, run the tools, repeat, until an outcome. It owns the conversation and nothing else does.

It decides what an answer means for the run. How to retry, how to run tools and how to talk to the world are
other rooms' business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ralph.core.classify import outcome_of
from ralph.core.conversation import (
    Conversation,
    Message,
    RequestShape,
    assistant_message,
    recover_conversation,
    user_message,
)
from ralph.core.errors import AgentError, HttpError
from ralph.core.events import AnswerAccepted, Event, Notice, RunEnded, UserMessageCommitted
from ralph.core.hints import hints_for
from ralph.core.outcome import Outcome
from ralph.core.tally import Tally
from ralph.ports import Interrupted
from ralph.retry import send_with_retry
from ralph.tool_turn import run_tool_turn

if TYPE_CHECKING:
    from ralph.core.backoff import RetryPolicy
    from ralph.core.stream import Answer
    from ralph.core.tool_calls import ToolResult
    from ralph.ports import Client, Clock, Events, Toolbox, Waiter

MOST_CONTINUATIONS = 3
"""Answers in a row that `max_tokens` may cut before the run ends."""
MOST_PAUSES = 10
"""`pause_turn` answers in a row that are sent back as they are; the API's own server-tool limit is 10 too."""

CONTINUE = (
    "Your answer was cut off at its length limit. Go on exactly where it stopped, without repeating it."
)


@dataclass(frozen=True)
class Task:
    """What to do, and with what: everything that is fixed before the first request."""

    prompt: str
    shape: RequestShape
    policy: RetryPolicy
    endpoint: str
    """The base URL, for messages to people."""
    credential: str
    """Where the key came from, for messages to people."""


@dataclass(frozen=True)
class _Ending:
    """Why the loop stopped, before it is written down."""

    outcome: Outcome
    result: str | None = None
    stop_reason: str | None = None
    error: str | None = None
    cause: AgentError | None = None
    signal_number: int = 0


class Run:
    """One invocation's loop. `conversation` is valid to resume whenever `run()` has returned."""

    def __init__(
        self, task: Task, *, client: Client, toolbox: Toolbox, waiter: Waiter, clock: Clock, events: Events
    ) -> None:
        self._task = task
        self._client = client
        self._toolbox = toolbox
        self._waiter = waiter
        self._clock = clock
        self._sink = events
        self._tally = Tally(task.shape.model)
        self._api_s = 0.0
        self._continuations = 0
        self._pauses = 0
        self._said = ""  # the parts of an answer that max_tokens cut
        self.conversation = Conversation.start(task.shape).plus(user_message(task.prompt))

    def emit(self, event: Event) -> None:
        """An `Events` port of its own: everything that happens in a run is counted on its way out."""
        self._tally.saw(event)
        self._sink.emit(event)

    def run(self) -> RunEnded:
        """Go on until an outcome; never raises for what the API, a tool or a signal does."""
        started_s = self._clock.now_s()
        finished: dict[str, ToolResult] = {}
        try:
            ending = self._turns(finished)
        except AgentError as error:
            ending = _Ending(outcome_of(error), error=str(error), cause=error)
        except Interrupted as interrupted:
            ending = _Ending(
                Outcome.INTERRUPTED, error="stopped by a signal", signal_number=interrupted.signal_number
            )
        self.conversation = recover_conversation(self.conversation, finished)
        return self._ended(ending, self._clock.now_s() - started_s)

    def _turns(self, finished: dict[str, ToolResult]) -> _Ending:
        while True:
            answer = self._ask()
            ending = self._after(answer)
            if ending is not None:
                return ending
            if answer.calls:
                finished.clear()
                results = run_tool_turn(answer.calls, finished, toolbox=self._toolbox, events=self)
                self._commit_user(user_message(result.as_block() for result in results))
                self._tally.turns += 1

    def _ask(self) -> Answer:
        """One accepted answer, committed, with however many attempts the policy allows."""
        asked_s, waited_s = self._clock.now_s(), self._tally.waited_s
        try:
            answer = send_with_retry(
                self.conversation.request_body(),
                client=self._client,
                policy=self._task.policy,
                waiter=self._waiter,
                events=self,
            )
        finally:
            self._api_s += self._clock.now_s() - asked_s - (self._tally.waited_s - waited_s)
        message = assistant_message(answer.content)
        if message is not None:
            self._commit(message)
        self.emit(AnswerAccepted(answer.message, answer.request_id))
        for warning in answer.warnings:
            self.emit(Notice(warning))
        return answer

    def _after(self, answer: Answer) -> _Ending | None:
        """What the answer means for the run; None when it goes on."""
        stop = answer.stop_reason
        self._continuations = self._continuations + 1 if stop == "max_tokens" else 0
        self._pauses = self._pauses + 1 if stop == "pause_turn" else 0
        match stop:
            case "refusal":
                return _Ending(Outcome.NO_PROGRESS, answer.text.strip() or None, stop, _refusal(answer))
            case "max_tokens" if self._continuations > MOST_CONTINUATIONS:
                error = f"the answer reached max_tokens {self._continuations} times in a row"
                return _Ending(Outcome.LIMIT_REACHED, answer.text.strip() or None, stop, error)
            case "max_tokens":
                if not answer.calls:
                    self._said += answer.text
                    self._commit_user(user_message(CONTINUE))
                return None
            case "pause_turn" if self._pauses > MOST_PAUSES:
                return _Ending(
                    Outcome.NO_PROGRESS,
                    answer.text.strip() or None,
                    stop,
                    f"paused {MOST_PAUSES} times in a row",
                )
            case "pause_turn":
                return None
            case "model_context_window_exceeded":
                error = "the model's context window is full"
                return _Ending(Outcome.LIMIT_REACHED, answer.text.strip() or None, stop, error)
        if not answer.calls:
            return self._final(answer)
        self._said = ""
        return None

    def _final(self, answer: Answer) -> _Ending:
        """The model ended its turn. An answer without text is no result, whatever it claims."""
        if answer.stop_reason not in ("end_turn", "stop_sequence", "tool_use"):
            self.emit(Notice(f"unknown stop reason {answer.stop_reason!r}, taken as end_turn"))
        self._tally.turns += 1
        text = (self._said + answer.text).strip()
        if not text:
            return _Ending(Outcome.NO_PROGRESS, None, answer.stop_reason, "the model's last answer was empty")
        return _Ending(Outcome.COMPLETED, text, answer.stop_reason)

    def _commit_user(self, message: Message) -> None:
        self._commit(message)
        self.emit(UserMessageCommitted(message.content))

    def _commit(self, message: Message) -> None:
        self.conversation = self.conversation.plus(message)

    def _ended(self, ending: _Ending, duration_s: float) -> RunEnded:
        task, cause = self._task, ending.cause
        http = cause if isinstance(cause, HttpError) else None
        return RunEnded(
            outcome=ending.outcome,
            exit_code=ending.outcome.exit_code(ending.signal_number),
            result=ending.result,
            errors=(ending.error,) if ending.error else (),
            stop_reason=ending.stop_reason,
            num_turns=self._tally.turns,
            duration_s=duration_s,
            api_s=max(0.0, self._api_s),
            usage=self._tally.usage,
            retries=self._tally.retries,
            waited_s=self._tally.waited_s,
            api_error_status=http.status if http else None,
            retry_after_s=http.retry_after if http and ending.outcome is Outcome.API_UNAVAILABLE else None,
            hints=hints_for(cause, model=task.shape.model, endpoint=task.endpoint, credential=task.credential)
            if cause
            else (),
        )


def _refusal(answer: Answer) -> str:
    details = answer.message.get("stop_details")
    explanation = details.get("explanation") if isinstance(details, dict) else None
    return f"the model refused: {explanation}" if explanation else "the model refused to answer"
