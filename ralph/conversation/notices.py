"""The sentences that ralph sends to the model besides the user's prompts. A test checks that `docs/turns.md` quotes
them exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.conversation.messages import Message

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
