"""One task: send, run the tools, repeat, until an outcome. It owns the conversation and nothing else does.

It decides what an answer means for the run. How to retry, how to run tools and how to talk to the world are
other rooms' business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ralph.core.answer import with_unique_call_ids
from ralph.core.bug_report import describe_bug
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
from ralph.core.next_step import Continue, End, RunTools, TurnState, next_step
from ralph.core.outcome import Outcome
from ralph.core.tally import Tally
from ralph.ports import Interrupted
from ralph.retry import send_with_retry
from ralph.tool_turn import run_tool_turn

if TYPE_CHECKING:
    from ralph.core.answer import Answer
    from ralph.core.backoff import RetryPolicy
    from ralph.core.tool_calls import ToolResult
    from ralph.ports import Client, Clock, Events, Toolbox, Waiter

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
        self._call_ids: set[str] = set()
        self.conversation = Conversation.start(task.shape).plus(user_message(task.prompt))

    def emit(self, event: Event) -> None:
        """An `Events` port of its own: everything that happens in a run is counted on its way out."""
        self._tally.saw(event)
        self._sink.emit(event)

    def run(self) -> RunEnded:
        """Go on until an outcome. Never raises: what the API, a tool, a signal or a bug does is an outcome."""
        started_s = self._clock.now_s()
        finished: dict[str, ToolResult] = {}
        try:
            ending = self._turns(finished)
        except AgentError as error:
            ending = _Ending(outcome_of(error), error=str(error), cause=error)
        except Interrupted as stop:
            failure = stop.__cause__ if isinstance(stop.__cause__, AgentError) else None
            text = f"{stop}, after: {failure}" if failure is not None else str(stop)
            ending = _Ending(stop.outcome, error=text, cause=failure, signal_number=stop.signal_number)
        except Exception as error:  # noqa: BLE001 - what was done and paid so far must still be told
            ending = _Ending(Outcome.INTERNAL_ERROR, error=describe_bug(error))
        self._recover(finished)
        return self._ended(ending, self._clock.now_s() - started_s)

    def _recover(self, finished: dict[str, ToolResult]) -> None:
        """Leave a conversation that can be resumed, and tell readers of the results that this adds."""
        before = len(self.conversation.messages)
        self.conversation = recover_conversation(self.conversation, finished)
        for message in self.conversation.messages[before:]:
            self.emit(UserMessageCommitted(message.content))

    def _turns(self, finished: dict[str, ToolResult]) -> _Ending:
        state = TurnState()
        while True:
            answer = self._ask()
            state, step = next_step(state, answer)
            match step:
                case RunTools():
                    finished.clear()
                    results = run_tool_turn(answer.calls, finished, toolbox=self._toolbox, events=self)
                    self._commit_user(user_message(result.as_block() for result in results))
                    self._tally.turns += 1
                case Continue():
                    if self.conversation.messages[-1].role == "assistant":
                        self._commit_user(user_message(CONTINUE))
                case End():
                    self._tally.turns += 1
                    if step.notice is not None:
                        self.emit(Notice(step.notice))
                    return _Ending(step.outcome, step.result, answer.stop_reason, step.error)

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
        answer = with_unique_call_ids(answer, self._call_ids)
        self._call_ids.update(call.id for call in answer.calls)
        message = assistant_message(answer.content)
        if message is not None:
            self._commit(message)
        self.emit(AnswerAccepted(answer.message, answer.request_id))
        for warning in answer.warnings:
            self.emit(Notice(warning))
        return answer

    def _commit_user(self, message: Message) -> None:
        self._commit(message)
        self.emit(UserMessageCommitted(message.content))

    def _commit(self, message: Message) -> None:
        self.conversation = self.conversation.plus(message)

    def _ended(self, ending: _Ending, duration_s: float) -> RunEnded:
        task, cause = self._task, ending.cause
        http = cause if isinstance(cause, HttpError) else None
        hints: tuple[str, ...] = ()
        if cause is not None:
            hints = hints_for(
                cause, model=task.shape.model, endpoint=task.endpoint, credential=task.credential
            )
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
            hints=hints,
        )
