"""One task: send, run the tools, repeat, until an outcome. It owns the conversation and nothing else does.

It decides what an answer means for the run. How to retry, how to run tools and how to talk to the world are
other rooms' business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ralph.core.answer import with_unique_call_ids
from ralph.core.bug_report import describe_bug
from ralph.core.classify import outcome_of
from ralph.core.conversation import (
    Conversation,
    RequestShape,
    assistant_message,
    recover_conversation,
    user_message,
)
from ralph.core.errors import AgentError, HttpError
from ralph.core.events import AnswerAccepted, Event, Notice, RunEnded, UserMessageCommitted
from ralph.core.hints import hints_for
from ralph.core.next_step import CONTINUE, Continue, End, RunTools, TurnState, next_step
from ralph.core.outcome import Outcome
from ralph.core.session import assistant_entry, ended_entry, result_entry, user_entry
from ralph.core.tally import Tally
from ralph.core.tool_calls import ToolResult
from ralph.ports import Interrupted, JournalError, WorkingDirectoryGoneError
from ralph.retry import send_with_retry
from ralph.tool_turn import ToolTurn

if TYPE_CHECKING:
    from ralph.core.answer import Answer
    from ralph.core.backoff import RetryPolicy
    from ralph.core.session import Session
    from ralph.ports import Client, Clock, Events, Journal, Toolbox, Waiter


@dataclass(frozen=True)
class Task:
    """What to do, and with what: everything that is fixed before the first request."""

    prompt: str | None
    """None: go on with what the session has pending."""
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
        self,
        task: Task,
        *,
        client: Client,
        toolbox: Toolbox,
        waiter: Waiter,
        clock: Clock,
        journal: Journal,
        events: Events,
        session: Session | None = None,
    ) -> None:
        """`session`: where an earlier run of it has got to; None: a new one, for which the task has a prompt."""
        self._task = task
        self._client = client
        self._toolbox = toolbox
        self._waiter = waiter
        self._clock = clock
        self._journal = journal
        self._sink = events
        self._tally = Tally(task.shape.model)
        self._api_s = 0.0
        self._call_ids = set(session.call_ids) if session else set()
        self._answer = session.answer if session else None
        self._turn_state = session.turn_state if session else TurnState()
        self._turn: ToolTurn | None = None
        self._session = session
        self.conversation = _resumed(session, task.shape) if session else Conversation.start(task.shape)

    def emit(self, event: Event) -> None:
        """An `Events` port of its own: everything that happens in a run is counted on its way out."""
        self._tally.saw(event)
        self._sink.emit(event)

    def run(self) -> RunEnded:
        """Go on until an outcome. Never raises: what the API, a tool, a signal or a bug does is an outcome."""
        started_s = self._clock.now_s()
        try:
            ending = self._turns()
        except AgentError as error:
            ending = _Ending(outcome_of(error), error=str(error), cause=error)
        except (JournalError, WorkingDirectoryGoneError) as error:
            ending = _Ending(Outcome.IO_ERROR, error=str(error))
        except Interrupted as stop:
            failure = stop.__cause__ if isinstance(stop.__cause__, AgentError) else None
            text = f"{stop}, after: {failure}" if failure is not None else str(stop)
            ending = _Ending(stop.outcome, error=text, cause=failure, signal_number=stop.signal_number)
        except Exception as error:  # noqa: BLE001 - what was done and paid so far must still be told
            ending = _Ending(Outcome.INTERNAL_ERROR, error=describe_bug(error))
        return self._sealed(self._ended(ending, self._clock.now_s() - started_s))

    def _sealed(self, ended: RunEnded) -> RunEnded:
        """The end, written down. Where that fails, that is how the run ended."""
        try:
            self._recover()
            self._journal.append(ended_entry(ended))
        except JournalError as error:
            if ended.outcome is not Outcome.IO_ERROR:
                outcome = Outcome.IO_ERROR
                errors = (*ended.errors, str(error))
                ended = replace(ended, outcome=outcome, exit_code=outcome.exit_code(), errors=errors)
        return ended

    def _recover(self) -> None:
        """Leave a conversation that can be resumed, and tell readers of the results that this adds."""
        finished = self._turn.finished if self._turn is not None else {}
        written = self._turn.written if self._turn is not None else set()
        self._turn = None
        before = len(self.conversation.messages)
        self.conversation = recover_conversation(self.conversation, finished)
        for message in self.conversation.messages[before:]:
            results = [block for block in message.content if block["tool_use_id"] not in written]
            self._journal.append(*(result_entry(ToolResult.of_block(block)) for block in results))
            self.emit(UserMessageCommitted(message.content))

    def _turns(self) -> _Ending:
        self._begin()
        state = self._turn_state
        while True:
            answer, self._answer = self._answer or self._ask(), None
            state, step = next_step(state, answer)
            match step:
                case RunTools():
                    self._run_tools(answer)
                case Continue():
                    if self.conversation.messages[-1].role == "assistant":
                        self._say(CONTINUE)
                        self.emit(UserMessageCommitted(self.conversation.messages[-1].content))
                case End():
                    self._tally.turns += 1
                    if step.notice is not None:
                        self.emit(Notice(step.notice))
                    return _Ending(step.outcome, step.result, answer.stop_reason, step.error)

    def _begin(self) -> None:
        """Add the prompt, where there is one. What an earlier run left pending is finished before."""
        if self._task.prompt is None:
            return
        self._turn_state = TurnState()
        if self._answer is not None:
            if self._answer.calls:
                self._run_tools(self._answer)
            self._recover()  # calls that must not run need a result too
            self._answer = None
        self._say(self._task.prompt)

    def _say(self, text: str) -> None:
        """A user message of ours. One that nothing has answered yet grows by it: roles alternate."""
        messages = self.conversation.messages
        if messages and messages[-1].role == "user":
            message = user_message([*messages[-1].content, {"type": "text", "text": text}])
            self._journal.append(user_entry(message, amends=True))
            self.conversation = self.conversation.amended(message)
        else:
            message = user_message(text)
            self._journal.append(user_entry(message))
            self.conversation = self.conversation.plus(message)

    def _run_tools(self, answer: Answer) -> None:
        self._turn = ToolTurn(answer.calls, self._toolbox, self._journal, self)
        if self._session is not None:
            self._turn.go_on_from(self._session)
            self._session = None
        results = self._turn.run()
        self._turn = None
        message = user_message(result.as_block() for result in results)
        self.conversation = self.conversation.plus(message)
        self.emit(UserMessageCommitted(message.content))
        self._tally.turns += 1

    def _ask(self) -> Answer:
        """One accepted answer, committed, with however many attempts the policy allows."""
        self._session = None  # what was pending in it is settled
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
        self._journal.append(assistant_entry(answer))
        message = assistant_message(answer.content)
        if message is not None:
            self.conversation = self.conversation.plus(message)
        self.emit(AnswerAccepted(answer.message, answer.request_id))
        for warning in answer.warnings:
            self.emit(Notice(warning))
        return answer

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


def _resumed(session: Session, shape: RequestShape) -> Conversation:
    same_model = shape.model == session.shape.model
    return (session.conversation if same_model else session.conversation.without_thinking()).under(shape)
