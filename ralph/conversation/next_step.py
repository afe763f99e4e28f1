"""Decides what follows an answer: how the turn continues, or how the run ends. The rules are those of section 2.6 of
the Messages API reference, adapted to an unattended run. Also has the sentences that ralph sends to the model besides the
user's prompts. A test checks that `docs/turns.md` quotes them exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.messages import THINKING
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.conversation.messages import Message
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


# --- The sentences for the model

CONTINUE = (
    "Your answer was cut off at its length limit. Go on exactly where it stopped, without repeating it."
)
LIMIT_LIFTED = "The limit that ended the last run no longer holds. Go on with the task."

NO_USE = "System notice: {what} {what_now}"
WHAT_WAS_NO_USE = {
    "empty": "your last answer was empty and was dropped.",
    "thinking_only": "your last answer held thinking only and was dropped.",
    "no_call": "your last answer stopped for a tool call, held none and was dropped.",
    "no_report": "plain text does not end this task and was dropped.",
}
"""For each of `FAILURES` but three, why the answer was discarded. A tool result tells the model two of these, and it is
not told of "damaged"."""
ACT_OR_ANSWER = "Call a tool, or give your final answer as text."
ACT_OR_REPORT = "Go on with the tools; when the task is done, or cannot be done, call final_report."
ANSWER_NOW = "Give your closing answer now, as text."
REPORT_NOW = "Call final_report now."

_OWN = "System notice: "
_FINAL = " This is the final turn: "
_NEAR = " is nearly used up. Save your work now: "
FINAL_WITH_REPORT = (
    "System notice: {why} This is the final turn: nothing but a call of final_report is accepted, every other tool "
    "is refused. Report what was done and what is left; status is failure where the task is not done."
)
FINAL_WITHOUT_REPORT = (
    "System notice: {why} This is the final turn: every tool is refused. Give your closing answer now, as text: "
    "what was done, what was checked, what is left."
)
WHY_FINAL = {
    "max_turns": "The limit of {turns} is reached.",
    "context": "The context window is full, and nothing more can be taken out of it.",
    "report": "No final report has been accepted so far.",
}
NOT_IN_THE_FINAL_TURN = "This call was not run: in the final turn {instead}."
CALL_THE_REPORT = "only final_report is accepted"
ANSWER_IN_TEXT = "only a closing answer in text is accepted"

MOVED = (
    "System notice: The working directory is now {here}; it was {there}. Paths below the old directory are now below "
    "the new one."
)
GONE_COMMANDS = "System notice: These background commands of the earlier run are gone: {commands}."
RUNNING_COMMANDS = "System notice: These commands run in the background: {commands}."
NEAR_LIMIT = (
    "System notice: {what} is nearly used up. Save your work now: bring files into a state that can be gone on "
    "from, commit if that is part of the task, and come to an end."
)


def final_turn(reason: str, *, needs_report: bool, turns: str) -> str:
    """`turns` is the turn limit in words, such as "5 turns"."""
    why = WHY_FINAL[reason].format(turns=turns)
    return (FINAL_WITH_REPORT if needs_report else FINAL_WITHOUT_REPORT).format(why=why)


def refused_in_final_turn(*, needs_report: bool) -> str:
    return NOT_IN_THE_FINAL_TURN.format(instead=CALL_THE_REPORT if needs_report else ANSWER_IN_TEXT)


def no_use(reason: str, *, needs_report: bool, is_final: bool) -> str:
    """Tells the model why its answer was discarded (a key of `WHAT_WAS_NO_USE`), and what to do next."""
    if is_final:
        what_now = REPORT_NOW if needs_report else ANSWER_NOW
    else:
        what_now = ACT_OR_REPORT if needs_report else ACT_OR_ANSWER
    return NO_USE.format(what=WHAT_WAS_NO_USE[reason], what_now=what_now)


def near_limit(what: str) -> str:
    return NEAR_LIMIT.format(what=what)


def moved(there: str, here: str) -> str:
    # Half of a surrogate pair, which stands for a byte that is not text, becomes a question mark.
    return MOVED.format(here=here, there=there).encode("utf-8", "replace").decode()


def about_commands(notice: str, commands: Mapping[str, str]) -> str:
    return notice.format(commands=", ".join(f"{one} ({line[:200]})" for one, line in commands.items()))


def is_bound(messages: Sequence[Message]) -> bool:
    """Whether a notice of a final turn or of a near limit is in the messages, and none behind it that lifts the limit."""
    for message in reversed(messages):
        for block in reversed(message.content if message.role == "user" else ()):
            words = str(block.get("text", "")) if block.get("type") == "text" else ""
            if words == LIMIT_LIFTED:
                return False
            if words.startswith(_OWN) and (_FINAL in words or _NEAR in words):
                return True
    return False
