"""Makes the requests of a task, and compacts the context before it exceeds the context window. `task.py` sends them, and
decides what an answer means and when to give up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.agent.compaction import (
    MOST_SUMMARY_TOKENS,
    SUMMARIZE,
    CompactionSteps,
    digest_request,
    guessed_attempt,
    last_steps,
    new_context,
    room_for,
    shrinks,
    summary_of,
)
from ralph.conversation.records import ThinkingRecord
from ralph.retry.loop import send_with_retry
from ralph.values.errors import (
    AgentError,
    FailureKind,
    failure_kind,
    may_mean_overflow,
    misses_thinking,
    refuses_thinking,
)
from ralph.values.events import ContextCompacted, Notice, ResponseDiscarded, SyntheticRetry
from ralph.values.limits import SHORTEST_ANSWER
from ralph.values.refusals import sizes_in
from ralph.values.usage import BYTES_PER_TOKEN, ContextMeter

if TYPE_CHECKING:
    from ralph.agent.compaction import Attempt, Trigger
    from ralph.agent.session_log import SessionLog
    from ralph.conversation.messages import Conversation
    from ralph.retry.step import CallSite, TurnRequests
    from ralph.values.answer import Answer, Block

_ASKS_FROM_SHARE = 0.1
"""When the context fills this share of an assumed window, ralph asks the server for the real size."""
_ASKS_FROM_TOKENS = 4_000
"""If no size of the window is assumed, ralph asks when the context has this many tokens. Short tasks stay below."""

_TASKS_SHARE = 4
"""In a new context, the prompts have at most a quarter of the old one and of the window, but always the newest one."""


_GUESS = (
    "the server refuses a request that is much larger than the last one that it answered: the context is made smaller, "
    "once in this run"
)
_THINKING_REFUSED = "the server refuses the thinking of earlier answers: ralph leaves it out from here on"
_THINKING_MISSED = (
    "the server asks for the thinking of the last answer, which is not its own: until the next prompt it is asked without "
    "thinking"
)
_NO_SUMMARY = frozenset({FailureKind.CONTEXT_OVERFLOW, FailureKind.INVALID_REQUEST, FailureKind.PROTOCOL})
"""The failures of a request for a summary after which the next way of compaction is tried."""


class Asking:
    def __init__(self, site: CallSite, log: SessionLog) -> None:
        self._site = site
        self._log = log
        self._notices: list[str] = []
        """Sent with each request until an answer is accepted."""
        self._sent = log.conversation
        """The conversation in the last request, notices included."""
        self._steps = CompactionSteps()
        self.has_guessed = False
        """Whether ralph has made the context smaller, or tried to, after a refusal in words that it does not know."""
        self.fresh_contexts = 0

    def tell(self, notice: str) -> None:
        """Adds a notice for the model to each request until an answer is accepted."""
        if notice not in self._notices:
            self._notices.append(notice)

    def next_conversation(self) -> Conversation:
        """The conversation with the notices, for the next request."""
        self._sent = self._log.with_notices(self._notices)
        return self._sent

    def accept(self, answer: Answer, *, is_ahead: bool = False) -> Answer:
        """Adds the notices of the last request and the answer. Returns it as added. `is_ahead` is for `log.commit`."""
        notices, self._notices = self._notices, []
        answer = self._log.commit(answer, notices, is_ahead=is_ahead)
        self._steps = self._steps.answered()
        return answer

    def room_for_results(self) -> int | None:
        """The tokens that the results of the last answer's calls may have together. None if the window is unknown."""
        if self._site.roster.window is None:
            self._describe()  # because a single result can be larger than a small window
        return room_for(self.estimate(), self._site.roster.window)

    def is_crowded(self) -> bool:
        """Whether the next request is so large that the context must be compacted first."""
        roster = self._site.roster
        window = roster.window
        enough = _ASKS_FROM_TOKENS if window is None else window * _ASKS_FROM_SHARE
        if self.estimate() >= enough:
            self._describe()
        return self._site.is_crowded(self._conversation())

    @property
    def may_shrink(self) -> bool:
        """Whether the context contains more than the user's prompts, for example an answer or a summary."""
        log = self._log
        return log.session.is_afresh or any(
            message.role == "assistant" for message in log.conversation.messages
        )

    def fits_with_less(self, error: AgentError) -> bool:
        """After a refusal as too large: whether the request can be sent again with a smaller `max_tokens`. It can if
        the error states the sizes of window and prompt, the window has room for a short answer, and ralph assumed a
        larger window. Both sizes then limit the next requests.
        """
        told, roster = sizes_in(error), self._site.roster
        if told is None or not told.leaves(SHORTEST_ANSWER):
            return False
        return roster.learn_window(told.window, told.prompt, self._sent, self._meter)

    def leaves_out_thinking(self, error: AgentError) -> bool:
        """After a refusal of a request for its thinking, or for a lack of it: leaves out the thinking so far, and asks
        for none if the server wants what is left out. Returns whether the request can be sent again.
        """
        log, roster = self._log, self._site.roster
        reader, is_missed = roster.shape.author, misses_thinking(error)
        left = log.conversation.left_out.get(reader)
        was_off = left is not None and left.is_off
        if is_missed:
            is_news = not was_off
        else:
            has_thinking = any(message.thinks for message in roster.view(self._sent).messages)
            is_news = refuses_thinking(error) and has_thinking
        if is_news:
            self._site.events.emit(Notice(_THINKING_MISSED if is_missed else _THINKING_REFUSED))
            log.record(
                ThinkingRecord(model=reader.model, endpoint=reader.endpoint, is_off=is_missed or was_off)
            )
        return is_news

    def make_room(self, trigger: Trigger, requests: TurnRequests) -> bool:
        """Tries the ways of compaction that were not tried before, until one makes the context smaller. Returns whether
        one did. Raises the error of a request for a summary unless `_NO_SUMMARY` has its kind.
        """
        if not self.may_shrink:
            return False
        before = self.estimate()
        # A context that leaves no room for a summary is treated like one that the server has refused.
        roster, asked = self._site.roster, self._log.with_notices([SUMMARIZE])
        window, estimate = roster.window, roster.estimate(asked, self._meter)
        asked_as = trigger if window is None or estimate + SHORTEST_ANSWER <= window else "overflow"
        while (attempt := self._steps.attempt(asked_as)) is not None:
            has_shrunk = self._try(attempt, trigger, before, requests)
            self._steps = self._steps.next(has_shrunk=has_shrunk)
            if has_shrunk:
                return True
        return False

    def shrinks_after(self, error: AgentError, requests: TurnRequests) -> bool:
        """As `make_room`, after a refusal whose words ralph does not know and whose reason may be the size: asks for
        one summary, once in a run.
        """
        roster, sent = self._site.roster, self._sent
        if self.has_guessed or not may_mean_overflow(error):
            return False
        if not (error.may_be_about_size or roster.may_be_too_large(sent, self._meter)):
            return False
        self.has_guessed = True
        self._site.events.emit(Notice(_GUESS))
        view = roster.view(sent)
        attempt = guessed_attempt(view.size, view.answered_size or 0, view.emptied().size)
        has_shrunk = self._try(attempt, "overflow", self.estimate(), requests)
        if has_shrunk:
            self._steps = self._steps.next(has_shrunk=True)
        return has_shrunk

    def _try(self, attempt: Attempt, trigger: str, before: int, requests: TurnRequests) -> bool:
        """Returns whether the context became smaller. `before` is its size in tokens."""
        answer = self._summing_up(attempt, before, requests) if attempt.way != "cut" else None
        summary = summary_of(answer) if answer is not None else None
        has_shrunk = False
        if summary is not None or attempt.way == "cut":
            has_shrunk = self._compact(attempt, summary, trigger, before)
        if answer is not None:  # it was shown while it arrived, but is not in the conversation
            self._site.events.emit(ResponseDiscarded(str(answer.message.get("id", ""))))
        return has_shrunk

    def _compact(self, attempt: Attempt, summary: str | None, trigger: str, before: int) -> bool:
        """Replaces the context if the new one is small enough. Returns whether it did."""
        log, roster = self._log, self._site.roster
        content = self._content(attempt, summary, before)
        after = roster.estimate_afresh(log.fresh(content), self._meter)
        if not shrinks(before, after, roster.window):
            return False
        source = "cut" if summary is None else "model"
        event = ContextCompacted(trigger, source, before, after)
        log.start_afresh(content, summary or log.session.summary, event)
        roster.begin_afresh()
        self.fresh_contexts += 1
        return True

    def _content(self, attempt: Attempt, summary: str | None, before: int) -> list[Block]:
        session, window = self._log.session, self._site.roster.window
        most_task_tokens, steps = min(before, window or before) // _TASKS_SHARE, None
        if summary is None:
            most_bytes = attempt.most_tokens(before, window) * BYTES_PER_TOKEN
            summary, steps = session.summary, last_steps(session.conversation.messages, most_bytes)
        files = tuple(session.changed_files)
        return new_context(session.tasks, summary, files, steps=steps, most_task_tokens=most_task_tokens)

    def _summing_up(self, attempt: Attempt, before: int, requests: TurnRequests) -> Answer | None:
        """The model's answer with a summary. None after a failure in `_NO_SUMMARY`."""
        log = self._log
        most_tokens = attempt.most_tokens(before, self._site.roster.window)
        if attempt.way == "whole":
            request = log.with_notices([SUMMARIZE])
        else:
            session = log.session
            messages = session.conversation.messages
            only = digest_request(session.tasks, messages, most_tokens, earlier_summary=session.summary)
            request = log.conversation.emptied().plus(only)
        self._site.events.emit(Notice("the context is nearly full: ralph asks the model for a summary"))
        try:
            return self._summary_past_damage(request, requests)
        except AgentError as error:
            if failure_kind(error) not in _NO_SUMMARY:
                raise
            return None

    def _summary_past_damage(self, request: Conversation, requests: TurnRequests) -> Answer:
        of_turn, requests.damaged_asks = requests.damaged_asks, 0
        try:
            while True:
                try:
                    return send_with_retry(request, self._site, requests, MOST_SUMMARY_TOKENS)
                except AgentError as error:
                    if not requests.ask_again_after(error):
                        raise
                self._site.events.emit(SyntheticRetry(requests.turn, requests.damaged_asks, "damaged"))
        finally:
            requests.damaged_asks = of_turn

    def estimate(self) -> int:
        """The estimated tokens of the next request, rather too many than too few."""
        return self._site.roster.estimate(self._conversation(), self._meter)

    @property
    def _meter(self) -> ContextMeter:
        return self._log.session.meter

    def _conversation(self) -> Conversation:
        return self._log.with_notices(self._notices)

    def _describe(self) -> None:
        client, roster = self._site.client, self._site.roster
        if not roster.target.is_described:
            self._log.settle()
            roster.describe(client.describe_model(roster.target, roster.state.route.key))
