"""Works on one task: sends a request, runs the calls in the answer, and repeats this until the task ends. Decides what
each answer means for the run. Retries, tools, compaction and output belong to other modules.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.agent.asking import Asking
from ralph.agent.call_rules import CallRules, StopBlocks
from ralph.agent.run_end import (
    Closing,
    Ending,
    Tally,
    come_back_hint,
    ended_by_error,
    ended_by_exception,
    ended_by_stop,
    hints_for,
)
from ralph.agent.session_log import SessionLog
from ralph.agent.tool_turn import PromptCalls, PromptRefusedError, ToolTurn, note_background
from ralph.conversation.messages import Conversation, text_blocks
from ralph.conversation.next_step import (
    CONTINUE,
    GONE_COMMANDS,
    LIMIT_LIFTED,
    RUNNING_COMMANDS,
    AskAgain,
    Continue,
    End,
    MakeRoom,
    NoUsableAnswer,
    RunTools,
    Step,
    TurnState,
    about_commands,
    asked_again,
    is_bound,
    moved,
    near_limit,
    next_step,
    no_use,
)
from ralph.conversation.records import QueuedRecord, Record, background_record, ended_record
from ralph.conversation.session import Session, asking
from ralph.retry.loop import send_with_retry
from ralph.retry.step import CallSite, Client, TurnRequests, WindowTooSmallError
from ralph.retry.targets import Roster, TargetLog
from ralph.values.answer import COMMANDS, Answer, Block
from ralph.values.controls import RunControls
from ralph.values.errors import AgentError, FailureKind, failure_kind
from ralph.values.events import (
    AttemptEnded,
    Event,
    ModelFallback,
    Notice,
    ResponseDiscarded,
    RetryScheduled,
    RunEnded,
    StreamReceived,
    SyntheticRetry,
    TurnAsked,
    TurnStarted,
    UserMessageCommitted,
)
from ralph.values.limits import Budget, LimitSettings
from ralph.values.outcome import Outcome
from ralph.values.ports import Interrupted, JournalError, NoTurnLock, WorkingDirectoryGoneError
from ralph.values.servers import KEY_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ralph.agent.compaction import Trigger
    from ralph.agent.session_log import Journal
    from ralph.agent.tool_turn import Gate, PromptMaker, Toolbox
    from ralph.retry.backoff import RetryPolicy
    from ralph.values.ports import Clock, Events, TurnLock, Waiter
    from ralph.values.report import ReportForm

    Prompt = str | Sequence[Block]


# Tried for every event, and a union would be made anew each time.
_CHANGES_TARGET = (ModelFallback, RetryScheduled)


class AgentLoop:
    """The agent loop of one session, one task after another. After `run()` the conversation can be resumed."""

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
        limits: LimitSettings | None = None,
        report_form: ReportForm | None = None,
        gate: Gate,
        turn_lock: TurnLock | None = None,
    ) -> None:
        """`turn_lock` is held while tools or hooks run, until the journal has their results. `session` is the state
        that an earlier process left. Without it, the first task must have a prompt. `report_form` is None if no
        report is required.
        """
        self._roster = roster
        self._controls = controls or RunControls()
        self._limits = limits or LimitSettings()
        self._budget = Budget(self._limits.max_budget_usd)
        self._report_form = report_form
        self._gate = gate
        self._toolbox = toolbox
        self._turn_lock: TurnLock = turn_lock or NoTurnLock()
        self._clock = clock
        self._waiter = waiter
        state = asking(session or Session(), roster.first.name, roster.first_shape)
        self.log = SessionLog(journal, state, events)
        """Writes every record of this run."""
        self._site = CallSite(
            roster, policy, self._controls, self._budget, client, waiter, clock, self, self.log
        )
        self._turn_state = session.turn_state if session else TurnState()
        self._tool_turn: ToolTurn | None = None
        self._begin_task()

    def _begin_task(self) -> None:
        """Resets all counts and limits."""
        self._tally = Tally()
        self._roster.forgive()
        self._target_log = TargetLog(self._roster)
        self._closing = Closing(self._limits.max_turns, self._report_form, self._tally, self)
        self._rules = self._fresh_rules()
        self._asking = Asking(self._site, self.log)
        self._requests = TurnRequests(1)
        self._blocks = StopBlocks()
        """The refused ends of this task."""

    def _fresh_rules(self) -> CallRules:
        closing = self._closing
        tools, finishing = self._toolbox.definitions, closing.finishing
        return CallRules(tools, finishing, closing.receiver, self, self._gate)

    @property
    def conversation(self) -> Conversation:
        return self.log.conversation

    @property
    def has_messages(self) -> bool:
        """Without a message, the session cannot be resumed."""
        return bool(self.conversation.messages)

    @property
    def _turn(self) -> int:
        return self._tally.turns + 1

    def emit(self, event: Event) -> None:
        """Counts an event and passes it on. All parts of a run use this as their `Events` port."""
        if isinstance(event, StreamReceived):  # these come by the thousand, and change no count
            self.log.emit(event)
            return
        self._tally.emit(event)
        self._budget.emit(event)
        if isinstance(event, AttemptEnded):
            self._closing.forget_text()
        if isinstance(event, _CHANGES_TARGET):
            # Recorded now, because the process may be killed during the wait that follows.
            self.log.record(*self._target_records())
        self.log.emit(event)

    def run(self, prompt: Prompt | PromptMaker | None, *opening: Record) -> RunEnded:
        """Works until the task ends. `prompt` is the new task, or makes it; None resumes unfinished work. `opening`
        are the records that begin the run. Raises nothing: errors, signals and bugs become outcomes.
        """
        started_s = self._clock.now_s()
        self._begin_task()
        if (background := self._toolbox.background).running:
            opening = (*opening, background_record(background))
        try:
            ending = self._turns(prompt, opening)
        except AgentError as error:
            ending = ended_by_error(error)
        except (JournalError, WorkingDirectoryGoneError) as error:
            ending = Ending(Outcome.IO_ERROR, error=str(error))
        except PromptRefusedError as error:
            ending = Ending(Outcome.CONFIG, error=str(error))
        except Interrupted as stop:
            ending = ended_by_stop(stop)
        except Exception as error:  # noqa: BLE001 - what was done and paid so far must still be reported
            ending = ended_by_exception(error)
        try:
            return self._sealed(ending, started_s)
        finally:
            self._turn_lock.release()

    def _sealed(self, ending: Ending, started_s: float) -> RunEnded:
        """Records the end of the run."""
        self.log.was_refused = ending.outcome is Outcome.API_REJECTED
        left = 0
        if not (
            self._controls.may_continue() and math.isinf(self._waiter.stop_left_s())
        ):  # no other task may come
            left = len(self._toolbox.background.running)
            self._toolbox.stop_background()
        try:
            ending = self._closing.with_report(ending)
            for event in self._toolbox.background_news():
                self.emit(event)  # the records still name those that were stopped, for the next run
            self._recover()
        except JournalError as error:
            ending = replace(ending, outcome=Outcome.IO_ERROR, error=str(error))
        hints = tuple(self._hints(ending))
        ended = ending.told(self._tally, self._clock.now_s() - started_s, hints)
        ended = replace(ended, denied=tuple(self._rules.denied), background_stopped=left)
        try:
            self.log.record(*self._target_records(), ended_record(ended))
        except JournalError as error:
            if ended.outcome is not Outcome.IO_ERROR:
                outcome = Outcome.IO_ERROR
                errors = (*ended.errors, str(error))
                ended = replace(ended, outcome=outcome, exit_code=outcome.exit_code(), errors=errors)
        return ended

    def _recover(self) -> None:
        turn, self._tool_turn = self._tool_turn, None
        self.log.recover_conversation({} if turn is None else turn.finished)

    # --- Turns

    def _turns(self, prompt: Prompt | PromptMaker | None, opening: Sequence[Record]) -> Ending:
        if callable(prompt):
            # Recorded now, because making the prompt may have effects.
            self.log.record(*opening)
            self._turn_lock.take()
            prompt, opening = prompt(PromptCalls(self._toolbox, self._fresh_rules, self._gate, self)), ()
        self._begin(prompt, (*opening, *self._target_records()))
        self._turn_lock.release()
        session = self.log.session
        if session.moved_from is not None:
            self._asking.tell(moved(session.moved_from, session.cwd))
        if session.gone_commands:
            self._asking.tell(about_commands(GONE_COMMANDS, session.gone_commands))
        # An earlier process may have accepted a report that it did not deliver.
        accepted = None if prompt is not None or self.log.pending else session.report
        if accepted is not None and (report := self._closing.was_reported(accepted)) is not None:
            return self._closing.accepted(report)
        messages = self.conversation.messages
        follows_tools = prompt is None and bool(messages) and bool(messages[-1].tool_result_ids)
        while True:
            ending = self._begin_turn(follows_tools=follows_tools)
            if ending is None:
                asked = self._requests = TurnRequests(self._turn, self._requests.recent)
                try:
                    ending = self._one_turn()
                finally:
                    if asked.attempts:
                        self.emit(TurnAsked(asked.turn, asked.attempts, asked.took_s))
            if ending is not None:
                return ending
            follows_tools = True

    def _begin(self, prompt: Prompt | None, opening: Sequence[Record]) -> None:
        log = self.log
        blocks = (*log.session.queued, *(text_blocks(prompt) if isinstance(prompt, str) else prompt or ()))
        if not blocks:
            log.record(*opening)
            return
        try:
            self._take_lock_for_hooks()
            added = [block for text in self._gate.before_task(blocks) for block in text_blocks(text)]
        except Interrupted:
            log.record(*opening)
            raise
        blocks = (*blocks, *added)
        lifted = text_blocks(LIMIT_LIFTED)
        if is_bound(log.conversation.messages) and list(blocks) != lifted:
            blocks = (*lifted, *blocks)
        self._turn_state = TurnState()
        pending = log.pending
        if pending is not None:
            # Recorded now, because the calls may take long.
            log.record(*opening, QueuedRecord(content=tuple(blocks)))
            opening = ()
            if pending.calls:
                self._run_tools(pending)
                self._tally.turns += not self._rules.is_malformed
                self._closing.forget_reports()
                self._rules = self._fresh_rules()
            self._recover()  # calls that must not run need a result too
        log.take_task(blocks, *opening)

    def _take_lock_for_hooks(self) -> None:
        if self._gate.asks_others:
            self._turn_lock.take()

    def _begin_turn(self, *, follows_tools: bool) -> Ending | None:
        """Returns the end of the run if a limit allows no further turn, otherwise None."""
        finishing, turn = self._closing.finishing, self._turn
        time_left_s = self._waiter.time_left_s()
        if time_left_s <= 0:
            # This raises TimeIsUp, so that the run ends before the next request.
            self.log.settle()
            self._waiter.sleep(0, waiting_for="the time limit")
        if finishing.is_over(turn):
            return self._closing.forced()
        note_background(self._toolbox, self.log, self)
        self.emit(TurnStarted(turn))
        needs_report = self._closing.needs_report
        reason = finishing.makes_final(turn, follows_tools=follows_tools, needs_report=needs_report)
        if reason is not None:
            self._enter_final_turn(reason)
            return None
        least_usd = self._budget.least_usd(self._roster.target.facts, self._asking.estimate())
        near = finishing.newly_near(turn, self._budget, time_left_s, self._limits.max_time_s, least_usd)
        if near is not None:
            self.emit(Notice(f"{near} is nearly used up: ralph tells the model to save its work"))
            self._asking.tell(near_limit(near))
        return None

    def _enter_final_turn(self, reason: str) -> None:
        self._asking.tell(self._closing.enter_final_turn(reason))

    def _one_turn(self) -> Ending | None:
        """Asks until an answer is accepted and its calls have run. Returns the end of the run, or None if another turn
        may begin.
        """
        state, self._turn_state = self._turn_state, TurnState()
        contexts = self._asking.fresh_contexts
        while True:
            pending, self.log.pending = self.log.pending, None
            answer, state = (pending, state) if pending else self._ask(state)
            # After a compaction, the model cannot continue an answer that was cut off before.
            if contexts != self._asking.fresh_contexts:
                contexts, state = self._asking.fresh_contexts, replace(state, said="")
            self._closing.last_stop_reason = answer.stop_reason
            closing = self._closing
            state, step = next_step(
                state, answer, needs_report=closing.needs_report, is_final=closing.is_final
            )
            following: Ending | TurnState | None
            if isinstance(step, MakeRoom | AskAgain | NoUsableAnswer):
                following = self._dropped(step, state, answer, is_committed=pending is not None)
            else:
                # Where the first call is recorded before anything is waited for, its record syncs the answer too. Other
                # calls wait: a change of a file is planned first, rules look at the disk, hooks and drivers are asked, and
                # another process may hold the lock.
                is_command = isinstance(step, RunTools) and answer.calls[0].name == COMMANDS
                is_ahead = is_command and self._asks_nobody and self._gate.judges_at_once
                answer = pending or self._commit(answer, is_ahead=is_ahead)
                following = self._taken(step, state, answer)
            if not isinstance(following, TurnState):
                return following
            state = following

    def _taken(self, step: Step, state: TurnState, answer: Answer) -> Ending | TurnState | None:
        """Acts on an answer that was added to the conversation. Returns the end of the run, or the state in which this
        turn continues, or None if the turn is over.
        """
        match step:
            case RunTools():
                if step.notice is not None:
                    self.emit(Notice(step.notice))
                if self._closing.is_final:
                    # The text must be looked at before the calls, because a call may discard a report in it.
                    self.log.settle()
                    self._closing.take_final_words(answer.text)
                self._run_tools(answer)
                return self._after_tools(state)
            case Continue():
                if self.conversation.messages[-1].role == "assistant":
                    self.log.say(CONTINUE)
            case End():
                return self._unless_held(self._closing.ended_by(step, answer.stop_reason))
            case _:  # The server paused: the conversation is sent as it is.
                pass
        return state

    def _dropped(
        self,
        step: MakeRoom | AskAgain | NoUsableAnswer,
        state: TurnState,
        answer: Answer,
        *,
        is_committed: bool,
    ) -> Ending | TurnState | None:
        if not isinstance(step, MakeRoom):
            ending = self._report_in_text(state.said, answer, is_committed=is_committed)
            if ending is not None:
                return ending
        if not is_committed:
            self.emit(ResponseDiscarded(str(answer.message.get("id", ""))))
        match step:
            case MakeRoom():
                return state if self._make_room("window_exceeded") else self._closing.forced("context")
            case NoUsableAnswer():
                return self._gave_up(step, state)
            case AskAgain():
                self.emit(SyntheticRetry(self._turn, state.failures, step.reason))
                needs_report, is_final = self._closing.needs_report, self._closing.is_final
                self._asking.tell(no_use(step.reason, needs_report=needs_report, is_final=is_final))
                return state

    def _run_tools(self, answer: Answer) -> None:
        room_tokens = self._asking.room_for_results()
        self._turn_lock.take()
        self._rules.begin_answer(self._turn)
        turn = ToolTurn(
            answer.calls,
            self._toolbox,
            self.log,
            self,
            self._rules,
            room_tokens=room_tokens,
            ends_at_once=self._asks_nobody,
        )
        self._tool_turn = turn
        turn.resume()
        turn.run()
        self._tool_turn = None
        self._turn_lock.release()
        self.log.emit(UserMessageCommitted(self.conversation.messages[-1].content))

    def _after_tools(self, state: TurnState) -> Ending | TurnState | None:
        """As `_taken`, after the calls of an answer. The turn is over if at least one of them was valid."""
        rules, closing = self._rules, self._closing
        rules.end_answer()
        if closing.reported is not None:
            return self._unless_held(closing.accepted(closing.reported))
        if rules.has_report:
            closing.collapse("report_failed")
        self._tally.turns += rules.has_use
        if rules.ended_by is not None:
            return closing.stuck(rules.ended_by)
        if rules.has_use:
            closing.forget_words()
            self._turn_state = state.renewed
            return None
        if rules.is_malformed:
            return state
        state, step = asked_again(state, "invalid_report" if rules.has_report else "refused_calls")
        if isinstance(step, NoUsableAnswer):
            return self._gave_up(step, state)
        self.emit(SyntheticRetry(self._turn, state.failures, step.reason))
        return state

    def _unless_held(self, ending: Ending) -> Ending | None:
        """Asks the gate whether a task that the model itself ended may end. If not, tells the model the reason and
        returns None for a new turn, or a failure if that has led nowhere.
        """
        if ending.outcome is not Outcome.COMPLETED or self._closing.is_final:
            return ending
        said = ending.result or (ending.report.summary if ending.report is not None else "")
        self._take_lock_for_hooks()
        refused = self._gate.before_end(said, was_held=self._blocks.total > 0)
        if refused is None:
            return ending
        self._blocks = self._blocks.with_next(refused, has_changed=self._rules.may_have_changed)
        self._rules.may_have_changed = False
        if (why := self._blocks.why_stuck) is not None:
            return Ending(Outcome.NO_PROGRESS, ending.result, ending.stop_reason, why)
        if self._closing.needs_report:
            self._closing.forget_reports()
            denied, self._rules = self._rules.denied, self._fresh_rules()
            self._rules.denied += denied
        self.log.say(f"Stop hook feedback:\n{refused.reason}")
        self._turn_lock.release()
        return None

    def _gave_up(self, step: NoUsableAnswer, state: TurnState) -> Ending | TurnState:
        ending = self._closing.gave_up(step)
        if ending is not None:
            return ending
        self._enter_final_turn("report")
        return state

    def _report_in_text(self, said: str, answer: Answer, *, is_committed: bool) -> Ending | None:
        """Caches a report in an answer's text. In the final turn, accepts it and returns the end of the run, otherwise
        None. `said` is the text of cut-off answers that `answer` continues.
        """
        was_found = self._closing.take_text(said + answer.text)
        report = self._closing.report() if was_found else None
        if report is None:
            return None
        if not is_committed:
            self._commit(answer)
        return self._closing.accepted(report)

    # --- Asking

    def _ask(self, state: TurnState) -> tuple[Answer, TurnState]:
        """Compacts the context first if needed. After a damaged answer it asks again, with another state of the turn."""
        asking = self._asking
        while True:
            try:
                self.take_requested_model()
                if asking.is_crowded():
                    self._make_room("threshold")
                can_shrink = True
                while True:
                    shrinks = can_shrink and not asking.has_guessed
                    try:
                        sent = asking.next_conversation()
                        return send_with_retry(sent, self._site, self._requests, can_shrink=shrinks), state
                    except WindowTooSmallError:
                        can_shrink = self._make_room("threshold")
                    except AgentError as error:
                        if not self._can_ask_otherwise(error):
                            raise
            except AgentError as error:
                if not self._requests.ask_again_after(error) or not state.may_fail:
                    raise
            state = state.after_damage
            self.emit(SyntheticRetry(self._turn, state.failures, "damaged"))

    def _can_ask_otherwise(self, error: AgentError) -> bool:
        """Changes the next request if size or thinking may be the reason of the error. Returns whether another one can
        succeed.
        """
        asking = self._asking
        if asking.leaves_out_thinking(error):
            return True
        if failure_kind(error) is FailureKind.CONTEXT_OVERFLOW:
            return asking.fits_with_less(error) or self._make_room("overflow")
        if asking.shrinks_after(error, self._requests):
            self._tell_again()
            return True
        return error.may_be_about_size  # its retries ended early: now it gets all of them

    def _make_room(self, trigger: Trigger) -> bool:
        if self._asking.make_room(trigger, self._requests):
            self._tell_again()
            return True
        # If the context contains only the task, adding a notice cannot help either.
        if self._closing.is_final or not self._asking.may_shrink:
            return False
        self._enter_final_turn("context")
        return True

    def _tell_again(self) -> None:
        """Repeats what only the old context may have told the model."""
        if (notice := self._closing.final_notice()) is not None:
            self._asking.tell(notice)
        if running := self._toolbox.background.running:
            self._asking.tell(about_commands(RUNNING_COMMANDS, running))

    def _commit(self, answer: Answer, *, is_ahead: bool = False) -> Answer:
        self.log.record(*self._target_records())
        return self._asking.accept(answer, is_ahead=is_ahead)

    @property
    def _asks_nobody(self) -> bool:
        """Whether nobody is asked or waited for around tool calls."""
        return not self._gate.asks_others and isinstance(self._turn_lock, NoTurnLock)

    def take_requested_model(self) -> None:
        """Takes the model that a driver has requested for the next requests."""
        requested = self._controls.take_requested_model()
        if requested is not None:
            target = self._roster.prefer(requested)
            self.emit(Notice(f"from here on with {target.name}"))

    def _target_records(self) -> list[Record]:
        """The record of the target and the cooldowns, which a resumed session needs, if it has changed."""
        return self._target_log.records(self._roster, self._clock.now_s(), self._clock.utc_now())

    def _hints(self, ending: Ending) -> Iterator[str]:
        target = self._roster.target
        if ending.retry_after_s:
            yield come_back_hint(ending.retry_after_s, self._clock.utc_now())
        if ending.cause is not None:
            keys = target.credentials
            source = (
                keys[self._roster.state.route.key].place
                if keys
                else f"{KEY_VARIABLES[target.api]} is not set"
            )
            yield from hints_for(ending.cause, target, source)
