"""What an accepted answer means for the run: go on, and how, or end, and as what. Pure: state in, state out.

The table is section 2.6 of the Messages API reference, from the point of view of somebody who runs unattended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ralph.core.outcome import Outcome

if TYPE_CHECKING:
    from ralph.core.answer import Answer

CONTINUE = (
    "Your answer was cut off at its length limit. Go on exactly where it stopped, without repeating it."
)
"""What the model is told after `Continue`."""

MOST_CONTINUATIONS = 3
"""Answers in a row that `max_tokens` may cut before the run ends."""
MOST_PAUSES = 10
"""`pause_turn` answers in a row that are sent back as they are; the API's own server-tool limit is 10 too."""

_FINAL_STOPS = frozenset({"end_turn", "stop_sequence"})


@dataclass(frozen=True)
class TurnState:
    """What earlier answers of the same turn left behind."""

    said: str = ""
    """Text of answers that were cut or paused; the next answer goes on from it."""
    continuations: int = 0
    pauses: int = 0


@dataclass(frozen=True)
class RunTools:
    """The answer has calls; their results are the next message."""


@dataclass(frozen=True)
class Continue:
    """The answer was cut; ask the model to go on."""


@dataclass(frozen=True)
class Resend:
    """The server paused; send the conversation as it is."""


@dataclass(frozen=True)
class End:
    outcome: Outcome
    result: str | None
    """What the model said last; None when that is nothing."""
    error: str | None = None
    notice: str | None = None


Step = RunTools | Continue | Resend | End


def next_step(state: TurnState, answer: Answer) -> tuple[TurnState, Step]:
    said = state.said + answer.text

    def end(outcome: Outcome, error: str | None, notice: str | None = None) -> tuple[TurnState, Step]:
        return TurnState(), End(outcome, said.strip() or None, error, notice)

    match answer.stop_reason:
        case "refusal":
            return end(Outcome.NO_PROGRESS, _refusal(answer))
        case "model_context_window_exceeded":
            return end(Outcome.LIMIT_REACHED, "the model's context window is full")
        case "max_tokens" if state.continuations == MOST_CONTINUATIONS:
            times = MOST_CONTINUATIONS + 1
            return end(Outcome.LIMIT_REACHED, f"the answer reached max_tokens {times} times in a row")
        case "max_tokens":
            longer = TurnState(said, state.continuations + 1, state.pauses)
            return (replace(longer, said=""), RunTools()) if answer.calls else (longer, Continue())
        case _ if answer.calls:
            return TurnState(), RunTools()
        case "pause_turn" if state.pauses == MOST_PAUSES:
            return end(Outcome.NO_PROGRESS, f"the server paused {MOST_PAUSES + 1} times in a row")
        case "pause_turn":
            return TurnState(said, state.continuations, state.pauses + 1), Resend()
        case _ if not said.strip():
            return end(Outcome.NO_PROGRESS, "the model's last answer was empty")
        case stop if stop in _FINAL_STOPS:
            return end(Outcome.COMPLETED, None)
        case "tool_use":
            return end(
                Outcome.COMPLETED, None, "the model stopped for a tool but called none; taken as end_turn"
            )
        case stop:
            return end(Outcome.COMPLETED, None, f"unknown stop reason {stop!r}, taken as end_turn")


def _refusal(answer: Answer) -> str:
    details = answer.message.get("stop_details")
    explanation = details.get("explanation") if isinstance(details, dict) else None
    return f"the model refused: {explanation}" if explanation else "the model refused to answer"
