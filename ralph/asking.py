"""Gets whole answers for the loop: with notices while they are needed, in a context that is kept small enough.

Nothing here retries: `retry.py` does, and a context that is too large is no failure but made smaller. What an answer
means, and when nothing helps any more, is the loop's to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.core.classify import FailureKind, failure_kind
from ralph.core.compaction import (
    MOST_SUMMARY_TOKENS,
    SUMMARIZE,
    CompactionSteps,
    cut_context,
    digest_request,
    fresh_context,
    last_steps,
    shrinks,
    summary_of,
)
from ralph.core.context_size import BYTES_PER_TOKEN, is_over
from ralph.core.conversation import assistant_message
from ralph.core.errors import AgentError
from ralph.core.events import ContextCompacted, Notice
from ralph.core.result_room import room_for
from ralph.core.usage import tokens_of
from ralph.retry import send_with_retry

if TYPE_CHECKING:
    from ralph.core.answer import Answer
    from ralph.core.compaction import Attempt
    from ralph.core.conversation import Conversation
    from ralph.core.tool_calls import Block
    from ralph.retry import CallSite
    from ralph.transcript import Transcript

# Whoever has to be asked how large its window is, is asked when that begins to matter: a short run never asks.
_ASKS_FROM_SHARE = 0.1
_ASKS_FROM_TOKENS = 4_000
"""Where nothing is known of the model's window: more than the first request of a short task holds."""

_TASKS_SHARE = 4
"""All the user's prompts together may take this part of a window; the newest always stays."""


class Asking:
    """Of one task."""

    def __init__(self, site: CallSite, transcript: Transcript) -> None:
        self._site = site
        self._transcript = transcript
        self._notices: list[str] = []
        """What the model is told and has not accepted yet, each once."""
        self._sent = transcript.conversation
        self._steps = CompactionSteps()

    def tell(self, notice: str) -> None:
        """With the next request, and with every further one until an answer is accepted."""
        if notice not in self._notices:
            self._notices.append(notice)

    def answer(self, turn: int) -> Answer:
        """Not committed yet. Raises like `send_with_retry`."""
        self._sent = self._transcript.with_notices(self._notices)
        return send_with_retry(self._sent, self._site, turn)

    def accept(self, answer: Answer) -> Answer:
        """It becomes part of the conversation, with the notices that led to it."""
        notices, self._notices = self._notices, []
        author = self._site.roster.shape.author
        answer = self._transcript.commit(answer, author, notices)
        committed = assistant_message(answer.content)
        size = committed.size if committed is not None else 0
        self._site.roster.count(self._sent, tokens_of(answer.message["usage"]), size)
        self._steps = self._steps.answered()
        return answer

    def room_for_results(self) -> int | None:
        """Tokens that the results of the last answer may take; None: no window is known."""
        return room_for(self._estimate(), self._site.roster.window)

    def is_crowded(self) -> bool:
        """The next request is so large that it is time to make room."""
        self._ask_for_window()
        return is_over(self._estimate(), self._site.roster.window)

    @property
    def has_history(self) -> bool:
        """Something was answered in this context: there is something that could be summed up."""
        return any(message.role == "assistant" for message in self._transcript.conversation.messages)

    def make_room(self, trigger: str, turn: int) -> bool:
        """A fresh context in the place of the old one. False: nothing that is left to try makes it smaller."""
        if not self.has_history:
            return False
        while (attempt := self._steps.attempt(trigger)) is not None:
            has_shrunk = self._compact(attempt, trigger, turn)
            self._steps = self._steps.next(has_shrunk=has_shrunk)
            if has_shrunk:
                return True
        return False

    def _compact(self, attempt: Attempt, trigger: str, turn: int) -> bool:
        transcript, roster = self._transcript, self._site.roster
        before = self._estimate()
        most_tokens = attempt.most_tokens(before, roster.window)
        summary = None
        if attempt.way != "cut":
            summary = self._summary(attempt, most_tokens, turn)
            if summary is None:
                return False
        content = self._content(summary, most_tokens)
        fresh = transcript.fresh(content)
        after = roster.estimate(fresh)
        if not shrinks(before, after, roster.window):
            return False
        source = "cut" if summary is None else "model"
        transcript.start_afresh(
            content, summary or transcript.summary, ContextCompacted(trigger, source, before, after)
        )
        return True

    def _content(self, summary: str | None, most_tokens: int) -> list[Block]:
        transcript, window = self._transcript, self._site.roster.window
        tasks, files = transcript.tasks, list(transcript.changed_files)
        most_task_tokens = None if window is None else window // _TASKS_SHARE
        if summary is not None:
            return fresh_context(tasks, summary, files, most_task_tokens=most_task_tokens)
        steps = last_steps(transcript.conversation.messages, most_tokens * BYTES_PER_TOKEN)
        return cut_context(
            tasks, steps, files, earlier_summary=transcript.summary, most_task_tokens=most_task_tokens
        )

    def _summary(self, attempt: Attempt, most_tokens: int, turn: int) -> str | None:
        """None: the model gave none, or could not be asked for it in so little room."""
        transcript = self._transcript
        if attempt.way == "whole":
            request = transcript.with_notices([SUMMARIZE])
        else:
            messages = transcript.conversation.messages
            only = digest_request(transcript.tasks, messages, most_tokens, earlier_summary=transcript.summary)
            request = transcript.conversation.emptied().plus(only)
        self._site.events.emit(
            Notice("the context is nearly full: the model is asked to sum up what was done")
        )
        try:
            answer = send_with_retry(request, self._site, turn, MOST_SUMMARY_TOKENS)
        except AgentError as error:
            if failure_kind(error) is not FailureKind.CONTEXT_OVERFLOW:
                raise
            return None
        return summary_of(answer)

    def _estimate(self) -> int:
        return self._site.roster.estimate(self._conversation())

    def _conversation(self) -> Conversation:
        return self._transcript.with_notices(self._notices)

    def _ask_for_window(self) -> None:
        """The server's own word on its model, once it may matter."""
        site, roster = self._site, self._site.roster
        if roster.target.is_described:
            return
        window = roster.window
        enough = _ASKS_FROM_TOKENS if window is None else window * _ASKS_FROM_SHARE
        if self._estimate() >= enough:
            roster.describe(site.client.describe_model(roster.target, roster.state.route.key))
