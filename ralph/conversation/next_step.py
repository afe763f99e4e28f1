"""The step after an answer: how the turn continues, or with which outcome the run ends. Pure: state in, state out.

The rules come from section 2.6 of the Messages API reference, applied to an unattended run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.messages import THINKING
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from ralph.values.answer import Answer

MOST_CONTINUATIONS = 3
"""The most answers in a row that may be cut off at `max_tokens`. One more ends the run."""
MOST_PAUSES = 10
"""The most `pause_turn` answers in a row that are sent back unchanged; the API's own server-tool limit is 10 too."""
MOST_SYNTHETIC_RETRIES = 3
"""The most times that a useless answer is requested again in one turn."""

FAILURES = ("empty", "thinking_only", "no_report", "invalid_report", "refused_calls", "damaged")
"""Why an answer is useless. "empty": it has no content. "thinking_only": it has only thinking. "no_report": it lacks
the required report. "invalid_report": its report was not accepted. "refused_calls": all its calls were refused in
the final turn. (In the last two cases, the tool results tell the model why.) "damaged": it arrived damaged, which is
not the model's fault, so the model is not told."""
_SAYS_NOTHING = frozenset({"empty", "thinking_only"})

_FINAL_STOPS = frozenset({"end_turn", "stop_sequence"})
_PAUSES = frozenset({"pause_turn", "compaction"})
"""Stop reasons of a server that paused and will continue its answer. (`compaction` is a beta that ralph never
requests.)"""
_STOPS_WITH_CALLS = frozenset({"tool_use"}) | _FINAL_STOPS | _PAUSES


class TurnState(Struct, frozen=True):
    """The state of a turn after its answers so far."""

    said: str = ""
    """Text of answers that were cut off or paused, which the next answer continues."""
    continuations: int = 0
    pauses: int = 0
    failures: int = 0
    """Useless answers of this turn that were requested again. Kept when the turn becomes the final one."""
    has_spoken: bool = False
    """Whether some useless answer of this turn had more than thinking."""
    was_damaged: bool = False
    """Whether some useless answer of this turn arrived damaged."""

    @property
    def may_fail(self) -> bool:
        """Whether one more useless answer may be requested again."""
        return self.failures < MOST_SYNTHETIC_RETRIES

    @property
    def may_be_damaged(self) -> bool:
        """Whether a damaged answer may be requested again: once per turn."""
        return self.may_fail and not self.was_damaged

    @property
    def damaged(self) -> TurnState:
        """The state after an answer that arrived damaged."""
        return replace(self, failures=self.failures + 1, was_damaged=True)

    @property
    def renewed(self) -> TurnState:
        """The state for the next turn: no failures, but the same counts of continuations and pauses."""
        return replace(self, failures=0, has_spoken=False, was_damaged=False)


class RunTools(Struct, frozen=True):
    """The answer has calls: run them, and send their results as the next message."""

    notice: str | None = None


class Continue(Struct, frozen=True):
    """The answer was cut off: ask the model to continue it."""


class Resend(Struct, frozen=True):
    """The server paused: send the conversation again, with the partial answer."""


class AskAgain(Struct, frozen=True):
    """The answer is useless: ask again, and tell the model why. An answer without calls is dropped."""

    reason: str


class MakeRoom(Struct, frozen=True):
    """The context window was full before the answer was complete: drop the answer and compact the context."""


class NoUsableAnswer(Struct, frozen=True):
    """The answer is useless, and the turn has used up its synthetic retries."""

    reason: str
    error: str


class End(Struct, frozen=True):
    outcome: Outcome
    result: str | None
    """The model's last text; None: there is none."""
    error: str | None = None
    notice: str | None = None


Step = RunTools | Continue | Resend | AskAgain | MakeRoom | NoUsableAnswer | End


def next_step(state: TurnState, answer: Answer, *, needs_report: bool = False) -> tuple[TurnState, Step]:
    """The step after an answer, and the state of the turn that the next answer belongs to.

    `needs_report`: an answer of text alone does not end the task.
    """
    said = state.said + answer.text

    def end(outcome: Outcome, error: str | None, notice: str | None = None) -> tuple[TurnState, Step]:
        return TurnState(), End(outcome, said.strip() or None, error, notice)

    match answer.stop_reason:
        case "refusal":
            return end(Outcome.NO_PROGRESS, _refusal(answer))
        case "model_context_window_exceeded":
            return state, MakeRoom()
        case "max_tokens" if state.continuations == MOST_CONTINUATIONS:
            times = MOST_CONTINUATIONS + 1
            return end(Outcome.LIMIT_REACHED, f"the answer reached max_tokens {times} times in a row")
        case "max_tokens":
            longer = replace(state, said=said, continuations=state.continuations + 1)
            return (replace(longer, said=""), RunTools()) if answer.calls else (longer, Continue())
        case stop if answer.calls:
            fresh = replace(state, said="", continuations=0, pauses=0)
            return fresh, RunTools(_odd_stop_with_calls(stop))
        case stop if stop in _PAUSES and state.pauses == MOST_PAUSES:
            return end(Outcome.NO_PROGRESS, f"the server paused {MOST_PAUSES + 1} times in a row")
        case stop if stop in _PAUSES:
            return replace(state, said=said, pauses=state.pauses + 1), Resend()
        case _ if not said.strip():
            return asked_again(state, _emptiness(answer))
        case _ if needs_report:
            return asked_again(state, "no_report")
        case stop:
            return end(Outcome.COMPLETED, None, _odd_stop(stop))


def _odd_stop(stop: str) -> str | None:
    if stop == "tool_use":
        return "the model stopped for a tool but called none; taken as end_turn"
    return None if stop in _FINAL_STOPS else f"unknown stop reason {stop!r}, taken as end_turn"


def _odd_stop_with_calls(stop: str) -> str | None:
    return None if stop in _STOPS_WITH_CALLS else f"unknown stop reason {stop!r}, taken as tool_use"


def asked_again(state: TurnState, reason: str) -> tuple[TurnState, AskAgain | NoUsableAnswer]:
    """The state and the step after a useless answer: a synthetic retry, or the end of the retries.

    `reason`: one of `FAILURES`.
    """
    state = replace(state, has_spoken=state.has_spoken or reason not in _SAYS_NOTHING)
    if state.may_fail:
        return replace(state, failures=state.failures + 1), AskAgain(reason)
    times = f"{state.failures + 1 - state.was_damaged} times in a row"
    if state.has_spoken:
        return state, NoUsableAnswer("no_report", f"the model gave no final report, {times}")
    return state, NoUsableAnswer(reason, f"the model's last answer was empty, {times}")


def _emptiness(answer: Answer) -> str:
    thinks = any(block.get("type") in THINKING for block in answer.content)
    return "thinking_only" if thinks else "empty"


def _refusal(answer: Answer) -> str:
    details = answer.message.get("stop_details")
    explanation = details.get("explanation") if isinstance(details, dict) else None
    return f"the model refused: {explanation}" if explanation else "the model refused to answer"
