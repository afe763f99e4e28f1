"""Decides what follows an answer: how the turn continues, or how the run ends. The rules are those of section 2.6 of
the Messages API reference, adapted to an unattended run.
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
"""Answers in a row that may be cut off at `max_tokens`. One more ends the run."""
MOST_PAUSES = 10
"""The most `pause_turn` answers in a row, each sent back to be continued. One more ends the run. The API has the same
limit for its own tools."""
MOST_SYNTHETIC_RETRIES = 3
"""In one turn. A synthetic retry asks the model again after a useless answer."""

FAILURES = ("empty", "thinking_only", "no_call", "no_report", "invalid_report", "refused_calls", "damaged")
"""The reasons why an answer is useless:

* empty: it has no content.
* thinking_only: it contains only thinking.
* no_call: it is text that stopped for a tool, without a call.
* no_report: it is plain text, although a report is required.
* invalid_report: its report was rejected. The result of the call tells the model why.
* refused_calls: all its calls were refused in the final turn. The results of the calls tell the model why.
* damaged: it did not arrive in a readable form. Ralph does not tell the model, because the model did not cause this."""
_IN_PLACE_OF_NO_REPORT = frozenset({"empty", "thinking_only", "no_call"})

_PAUSES = frozenset({"pause_turn", "compaction"})
"""Stop reasons of a server that can continue its answer. `compaction` is a beta feature that ralph never requests."""
_KNOWN_STOPS = frozenset({"end_turn", "stop_sequence", "tool_use"}) | _PAUSES


class TurnState(Struct, frozen=True):
    """The state of a turn after the answers so far."""

    said: str = ""
    """The text of cut off or paused answers, which the next one continues."""
    continuations: int = 0
    """Answers in a row that were cut off at `max_tokens`."""
    pauses: int = 0
    """Answers in a row that the server paused."""
    failures: int = 0
    """The synthetic retries of this turn, kept if it becomes the final one."""
    has_spoken: bool = False
    """Whether a useless answer had a text or a call in place of a report."""
    damaged: int = 0
    """Answers of this turn that did not arrive in a readable form."""
    lacked_call: bool = False
    """Whether an answer of this turn stopped for a tool and called none."""

    @property
    def may_fail(self) -> bool:
        """Whether the model may be asked again after one more useless answer."""
        return self.failures < MOST_SYNTHETIC_RETRIES

    @property
    def after_damage(self) -> TurnState:
        return replace(self, failures=self.failures + 1, damaged=self.damaged + 1)

    @property
    def renewed(self) -> TurnState:
        """For the next turn: without the fields about useless answers, from `failures` on."""
        return TurnState(self.said, self.continuations, self.pauses)


class RunTools(Struct, frozen=True):
    """Run the calls, and send their results as the next message."""

    notice: str | None = None
    """For people, about an unusual stop reason."""


class Continue(Struct, frozen=True):
    """Ask the model to continue the answer that was cut off."""


class Resend(Struct, frozen=True):
    """Send the conversation with the partial answer again: the server paused."""


class AskAgain(Struct, frozen=True):
    """Ask again and tell the model why. Without calls, the answer is discarded."""

    reason: str
    """One of `FAILURES`."""


class MakeRoom(Struct, frozen=True):
    """Discard the answer, during which the context became full, and compact the context."""


class NoUsableAnswer(Struct, frozen=True):
    """The answer is useless, and the model may not be asked again in this turn."""

    reason: str
    error: str


class End(Struct, frozen=True):
    outcome: Outcome
    result: str | None
    """The text of the last answer, behind that of the answers cut off before it. None if there is no text."""
    error: str | None = None
    notice: str | None = None


Step = RunTools | Continue | Resend | AskAgain | MakeRoom | NoUsableAnswer | End


def next_step(
    state: TurnState, answer: Answer, *, needs_report: bool = False, is_final: bool = False
) -> tuple[TurnState, Step]:
    """The new state of the turn, and the step that follows the answer. With `needs_report`, text alone does not
    complete the task. `is_final`: this is the final turn, in which no tool runs.
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
            return fresh, RunTools(_odd_stop(stop, "tool_use"))
        case stop if stop in _PAUSES and state.pauses == MOST_PAUSES:
            return end(Outcome.NO_PROGRESS, f"the server paused {MOST_PAUSES + 1} times in a row")
        case stop if stop in _PAUSES:
            return replace(state, said=said, pauses=state.pauses + 1), Resend()
        case _ if not said.strip():
            return asked_again(state, _emptiness(answer))
        case _ if needs_report:
            return asked_again(state, "no_report")
        case "tool_use" if not is_final:
            return _asked_for_call(state, said)
        case stop:
            return end(Outcome.COMPLETED, None, _odd_stop(stop, "end_turn"))


def _odd_stop(stop: str, meaning: str) -> str | None:
    return None if stop in _KNOWN_STOPS else f"unknown stop reason {stop!r}, taken as {meaning}"


def _asked_for_call(state: TurnState, said: str) -> tuple[TurnState, Step]:
    if state.may_fail and not state.lacked_call:
        return asked_again(replace(state, lacked_call=True), "no_call")
    error = "the model stopped for a tool but called none"
    return TurnState(), End(Outcome.NO_PROGRESS, said.strip(), error)


def asked_again(state: TurnState, reason: str) -> tuple[TurnState, AskAgain | NoUsableAnswer]:
    """The new state of the turn, and the step after an answer that is useless for `reason`, one of `FAILURES`."""
    state = replace(state, has_spoken=state.has_spoken or reason not in _IN_PLACE_OF_NO_REPORT)
    if state.may_fail:
        return replace(state, failures=state.failures + 1), AskAgain(reason)
    times = f"{state.failures + 1 - state.damaged} times in a row"
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
