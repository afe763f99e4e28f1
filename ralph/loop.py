"""One task: send, run the tools, repeat, until an outcome. It owns the conversation and nothing else does.

It decides what an answer means for the run. How to retry, how to run tools and how to talk to the world are
other rooms' business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ralph.core.answer import with_sendable_calls
from ralph.core.bug_report import describe_bug
from ralph.core.classify import outcome_of
from ralph.core.controls import RunControls
from ralph.core.conversation import (
    Conversation,
    assistant_message,
    recover_conversation,
    text_blocks,
    user_message,
)
from ralph.core.errors import AgentError, HttpError
from ralph.core.events import (
    AnswerAccepted,
    Event,
    ModelFallback,
    Notice,
    RetryScheduled,
    RunEnded,
    UserMessageCommitted,
)
from ralph.core.hints import come_back_hint, hints_for
from ralph.core.next_step import CONTINUE, Continue, End, RunTools, TurnState, next_step
from ralph.core.outcome import Outcome
from ralph.core.session_entries import (
    assistant_entry,
    ended_entry,
    queued_entry,
    result_entry,
    user_entry,
)
from ralph.core.tally import Tally
from ralph.core.target_log import TargetLog
from ralph.core.tool_calls import ToolResult
from ralph.ports import Interrupted, JournalError, WorkingDirectoryGoneError
from ralph.retry import CallSite, send_with_retry
from ralph.tool_turn import ToolTurn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ralph.core.answer import Answer
    from ralph.core.backoff import RetryPolicy
    from ralph.core.roster import Roster
    from ralph.core.session import Session
    from ralph.core.session_entries import Entry
    from ralph.core.tool_calls import Block
    from ralph.ports import Client, Clock, Events, Journal, Toolbox, Waiter

    Prompt = str | Sequence[Block]


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
    """One session's loop, task after task. `conversation` is valid to resume whenever `run()` has returned."""

    def __init__(
        self,
        roster: Roster,
        policy: RetryPolicy,
        *,
        client: Client,
        toolbox: Toolbox,
        waiter: Waiter,
        clock: Clock,
        journal: Journal,
        events: Events,
        controls: RunControls | None = None,
        session: Session | None = None,
    ) -> None:
        """`session`: where an earlier run of it has got to; None: a new one, whose first task has a prompt."""
        self._roster = roster
        self._controls = controls or RunControls()
        self._site = CallSite(roster, policy, self._controls, client, waiter, clock, self)
        self._toolbox = toolbox
        self._clock = clock
        self._journal = journal
        self._sink = events
        self._tally = Tally()
        self._target_log = TargetLog(roster)
        self._queued: tuple[Block, ...] = session.queued if session else ()
        self._was_refused = session is not None and session.has_ended_as(Outcome.API_REJECTED)
        self._call_ids = set(session.call_ids) if session else set()
        self._answer = session.answer if session else None
        self._turn_state = session.turn_state if session else TurnState()
        self._turn: ToolTurn | None = None
        self._session = session
        shape = roster.first_shape
        self.conversation = session.conversation.under(shape) if session else Conversation.start(shape)

    def emit(self, event: Event) -> None:
        """An `Events` port of its own: everything that happens in a run is counted on its way out."""
        self._tally.saw(event)
        if isinstance(event, ModelFallback | RetryScheduled):
            self._record_target()  # whoever is killed from here on leaves it behind
        self._sink.emit(event)

    def run(self, prompt: Prompt | None, *opening: Entry) -> RunEnded:
        """Go on until an outcome; None: with what the session has pending. `opening`: the records that begin the run.

        Never raises: what the API, a tool, a signal or a bug does is an outcome.
        """
        started_s = self._clock.now_s()
        self._tally = Tally()
        self._roster.forgive()
        self._target_log = TargetLog(self._roster)
        try:
            ending = self._turns(prompt, opening)
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
        self._was_refused = ended.outcome is Outcome.API_REJECTED
        try:
            self._recover()
            self._journal.append(*self._target_entries(), ended_entry(ended))
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

    def _turns(self, prompt: Prompt | None, opening: Sequence[Entry]) -> _Ending:
        self._begin(prompt, (*opening, *self._target_entries()))
        state = self._turn_state
        while True:
            answer, self._answer = self._answer or self._ask(), None
            state, step = next_step(state, answer)
            match step:
                case RunTools():
                    self._run_tools(answer)
                case Continue():
                    if self.conversation.messages[-1].role == "assistant":
                        self._say(text_blocks(CONTINUE))
                        self.emit(UserMessageCommitted(self.conversation.messages[-1].content))
                case End():
                    self._tally.turns += 1
                    if step.notice is not None:
                        self.emit(Notice(step.notice))
                    return _Ending(step.outcome, step.result, answer.stop_reason, step.error)

    def _begin(self, prompt: Prompt | None, opening: Sequence[Entry]) -> None:
        """Add the prompt, in one write with the run's record. What an earlier run left pending is finished before."""
        blocks = (*self._queued, *_blocks(prompt))
        if not blocks:
            self._journal.append(*opening)
            return
        self._turn_state = TurnState()
        if self._answer is not None:
            self._queued = blocks  # the calls may take long, and nothing that was said may be lost meanwhile
            self._journal.append(*opening, queued_entry(blocks))
            opening = ()
            if self._answer.calls:
                self._run_tools(self._answer)
            self._recover()  # calls that must not run need a result too
            self._answer = None
        self._say(blocks, *opening)
        self._queued = ()

    def _say(self, blocks: Sequence[Block], *opening: Entry) -> None:
        """A user message of ours. One that nothing has answered yet grows by it: roles alternate."""
        messages = self.conversation.messages
        if messages and messages[-1].role == "user":
            message = user_message([*self._presentable(messages[-1].content), *blocks])
            self._journal.append(*opening, user_entry(message, amends=True))
            self.conversation = self.conversation.amended(message)
        else:
            message = user_message(blocks)
            self._journal.append(*opening, user_entry(message))
            self.conversation = self.conversation.plus(message)

    def _presentable(self, unanswered: Sequence[Block]) -> Sequence[Block]:
        """A request that was refused may have been so for an image of the user's: every further one would be too."""
        kept = [block for block in unanswered if not self._was_refused or block.get("type") != "image"]
        if len(kept) < len(unanswered):
            self.emit(Notice("the API refused the last message: its images are left out from here on"))
        return kept

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
        self.take_model_wish()
        answer = send_with_retry(self.conversation, self._site, self._tally.turns + 1)
        answer = with_sendable_calls(answer, self._call_ids)
        self._call_ids.update(answer.call_ids)
        self._record_target()
        self._journal.append(assistant_entry(answer))
        message = assistant_message(answer.content, self._roster.shape.author)
        if message is not None:
            self.conversation = self.conversation.plus(message)
        self.emit(AnswerAccepted(answer.message, answer.request_id))
        for warning in answer.warnings:
            self.emit(Notice(warning))
        return answer

    def take_model_wish(self) -> None:
        """A driver's, from the next request on."""
        wish = self._controls.take_model_wish()
        if wish is not None:
            target = self._roster.prefer(wish)
            self.emit(Notice(f"from here on with {target.name}"))

    def _record_target(self) -> None:
        if entries := self._target_entries():
            self._journal.append(*entries)

    def _target_entries(self) -> list[Entry]:
        """Whoever goes on with this session goes on with whom it asks, and lets those cool down who do."""
        before = self._target_log.target
        entries = self._target_log.entries(self._roster, self._clock.now_s(), self._clock.utc_now())
        if self._target_log.target != before:
            self.conversation = self.conversation.under(self._roster.shape)
        return entries

    def _ended(self, ending: _Ending, duration_s: float) -> RunEnded:
        tally, cause = self._tally, ending.cause
        http = cause if isinstance(cause, HttpError) else None
        retry_after_s = http.retry_after if http and ending.outcome is Outcome.API_UNAVAILABLE else None
        return RunEnded(
            outcome=ending.outcome,
            exit_code=ending.outcome.exit_code(ending.signal_number),
            result=ending.result,
            errors=(ending.error,) if ending.error else (),
            stop_reason=ending.stop_reason,
            num_turns=tally.turns,
            duration_s=duration_s,
            api_s=tally.api_s,
            usage=tally.usage,
            retries=tally.retries,
            waited_s=tally.waited_s,
            api_error_status=http.status if http else None,
            retry_after_s=retry_after_s,
            hints=tuple(self._hints(cause, retry_after_s)),
        )

    def _hints(self, cause: AgentError | None, retry_after_s: float | None) -> Iterator[str]:
        target = self._roster.target
        if retry_after_s:
            yield come_back_hint(retry_after_s, self._clock.utc_now())
        if cause is not None:
            keys = target.credentials
            source = keys[self._roster.state.route.key].source if keys else "ANTHROPIC_API_KEY is not set"
            yield from hints_for(cause, model=target.model, endpoint=target.base_url, credential=source)


def _blocks(prompt: Prompt | None) -> Sequence[Block]:
    if prompt is None:
        return ()
    return text_blocks(prompt) if isinstance(prompt, str) else prompt
