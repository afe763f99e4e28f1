"""docs/turns.md must contain every text with which ralph addresses the model, word for word."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.agent import call_rules, compaction
from ralph.agent.call_rules import GUARDS, CallRules, Guards
from ralph.agent.run_end import FORCES, Finishing
from ralph.agent.tool_turn import INTERRUPTED
from ralph.conversation import next_step
from ralph.conversation.messages import NOT_RUN, text_blocks
from ralph.conversation.next_step import FAILURES
from ralph.permissions.gate import CallGate
from ralph.run.report_check import report_tool
from ralph.run.report_problems import validator_of
from ralph.values.answer import FINAL_REPORT, MalformedCall, ToolCall, ToolDefinition, ToolOutput
from ralph.values.controls import RunControls
from ralph.values.limits import Budget
from ralph.values.ports import WorkingDirectoryGoneError
from ralph.values.report import ReportReceiver
from tests.fakes import RecordingEvents
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parent.parent.parent / "docs" / "turns.md"
SCHEMA = {"type": "object", "properties": {"files": {"type": "array"}}}


def flat(text: str) -> str:
    """The text on one line, with placeholders but without their formats."""
    return re.sub(r":,}", "}", " ".join(text.split()))


def words_of_notices() -> Iterator[str]:
    for name, value in vars(next_step).items():
        if name.isupper() and isinstance(value, str | dict):
            yield from value.values() if isinstance(value, dict) else [value]


def words_near_a_limit() -> Iterator[str]:
    spent = Budget(max_usd=5.0, spent_usd=5.0)
    for what, number, shown in [
        (Finishing(max_turns=10).newly_near(9, Budget(), 1e9, None), "10", "{n}"),
        (Finishing().newly_near(1, spent, 1e9, None), "5", "{usd}"),
        (Finishing().newly_near(1, Budget(), 0.0, 60.0), "60s", "{time}"),
    ]:
        assert what is not None
        yield what.replace(number, shown)


def words_of_reports() -> Iterator[str]:
    yield report_tool(None).description
    yield report_tool(SCHEMA).description
    receiver = ReportReceiver(
        lambda _: [] if receiver.attempts > 2 else ["{path}: expected {what}, got {value}"], True
    )
    sent = ToolCall("a", FINAL_REPORT, {"status": "failure", "summary": "x"})
    for call in (MalformedCall("a", FINAL_REPORT, "{", "{reason}"), sent, sent, sent):
        yield str(receiver.receive(call).content)


def words_of_rules() -> Iterator[str]:
    yield call_rules.ENDING
    tool = ToolDefinition("{tools}", "", {"type": "object", "required": ["x"], "properties": {"x": {}}})
    rules = CallRules(
        [tool], Finishing(), None, RecordingEvents(), CallGate(RunControls(), RecordingEvents())
    )
    for call in (ToolCall("a", "{tool}", {}), MalformedCall("b", "{tools}", "{", "{reason}")):
        ruling = rules.ruling(call)
        assert isinstance(ruling, ToolOutput)
        yield str(ruling.content)
    wrong = rules.ruling(ToolCall("c", "{tools}", {}))
    assert isinstance(wrong, ToolOutput)
    yield re.sub(r"{tools}: .*", "{tool}: {problems}.", str(wrong.content))


def calls_for(guard: str) -> Iterator[ToolCall]:
    """The calls of a model that always does what this guard refuses."""
    for number in count():
        match guard:
            case "cycle":
                yield ToolCall(str(number), ("{tool}", "{other}")[number % 2], {})
            case "no_change":
                yield ToolCall(str(number), "Edit", {"file_path": "{path}", "new_string": str(number)})
            case _:
                yield ToolCall(str(number), "{tool}", {})


def refusals(guard: str, *, has_results: bool = True) -> list[str]:
    """All six refusals of this guard."""
    guards = Guards()
    output = ToolOutput("same", is_error=guard == "no_change")
    told: list[str] = []
    for call in calls_for(guard):
        refusal = guards.before(call)
        if refusal is not None:
            assert refusal.guard == guard
            told.append(refusal.message)
            if refusal.is_last:
                break
        elif has_results:
            guards.after(call, output)
    return told


def words_of_guards() -> Iterator[str]:
    for guard in GUARDS:
        first, *_, last = refusals(guard)
        yield first.replace("refusal 1 of", "refusal {n} of").replace("after 5 more", "after {left} more")
        yield last[last.index("This is refusal") :]
    side_by_side = refusals("repetition", has_results=False)[0]
    yield side_by_side[side_by_side.index("and their results") :].split(". ")[0]


def words_of_compaction() -> Iterator[str]:
    yield compaction.SUMMARIZE
    yield compaction.CUT_SUMMARY
    yield compaction._STEP_NOTE
    task = text_blocks("{task}")
    opened = compaction.new_context([task], "{summary}", ["{path}"])
    yield " ".join(block["text"] for block in opened)
    older, _, newest, *_ = compaction.new_context([task, task], "x", [], most_task_tokens=1)[1:]
    for heading in (older, newest):
        yield re.sub(r"Task \d of \d", "Task {n} of {total}", heading["text"])
    [steps] = compaction.new_context([], "", [], steps=compaction.last_steps([], 100))[1:-1]
    yield steps["text"].replace("[0 ", "[{n} ")


def words_of_results() -> Iterator[str]:
    yield INTERRUPTED
    yield NOT_RUN
    yield f"This call was not run: {WorkingDirectoryGoneError(Path('{path}'))}."
    yield compaction.CUT_NOTE
    yield compaction.LEFT_OUT
    yield call_rules.IGNORED_ARGUMENTS


TOLD = [
    *words_of_notices(),
    *words_near_a_limit(),
    *words_of_reports(),
    *words_of_rules(),
    *words_of_guards(),
    *words_of_compaction(),
    *words_of_results(),
]


@every_row("words", TOLD)
def test_the_page_of_turns_has_what_the_model_is_told_word_for_word(words) -> None:
    page = flat(PAGE.read_text().replace("<br>", " "))
    assert flat(words) in page


def test_the_page_of_turns_names_each_guard_and_each_reason_of_a_final_turn() -> None:
    page = PAGE.read_text()
    assert [name for name in (*GUARDS, *FORCES) if f"`{name}`" not in page] == []


def test_each_failed_answer_that_is_dropped_has_a_notice_and_each_final_turn_a_reason() -> None:
    with_results_of_their_own = {"invalid_report", "refused_calls"}
    no_word_of_the_models = {"damaged"}
    assert set(next_step.WHAT_WAS_NO_USE) == set(FAILURES) - with_results_of_their_own - no_word_of_the_models
    assert set(next_step.WHY_FINAL) == set(FORCES)


def test_a_report_is_told_where_it_does_not_fit_and_what_was_expected() -> None:
    arguments = {"status": "success", "summary": "x", "payload": {"files": 3}}
    [problem] = validator_of(report_tool(SCHEMA).input_schema)(arguments)
    assert problem == "payload.files: expected an array, got 3"
