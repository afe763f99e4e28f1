"""The guards in the real agent loop: a run that repeats itself must end, and a long run that makes progress must
not.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from ralph.agent.guards import MOST_EQUAL
from ralph.conversation.records import result_record
from ralph.conversation.session import replay
from ralph.values.events import GuardTripped
from ralph.values.limits import MOST_REFUSALS
from ralph.values.outcome import Outcome
from ralph.values.tool_calls import FileChange, ToolDefinition, ToolOutput, ToolResult
from tests.agent.guard_transcripts import GOES_ON, TRIPS
from tests.fakes import ECHO, TOUCH, FakeJournal, FakeToolbox, answer, call
from tests.fakes.played import DONE, PLAIN_FORM, Played, report
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ralph.values.answer import Answer
    from ralph.values.tool_calls import ToolCall
    from tests.agent.guard_transcripts import Step


def same(count: int, first: int = 0) -> list[Answer]:
    """One call again and again, each time in an answer of its own."""
    return [answer(call(f"s{first + n}")) for n in range(count)]


def refusals(played: Played) -> list[int]:
    return [event.refusals for event in played.events.of(GuardTripped)]


def test_three_equal_calls_run_and_the_fourth_is_refused() -> None:
    played = Played(*same(4), DONE)
    assert played.ran == ["s0", "s1", "s2"]
    [refused] = played.results_in(4)
    assert refused["is_error"] is True
    assert "the results did not change" in refused["content"]
    assert played.ended.exit_code == 0, "the model went on to an answer"
    assert refusals(played) == [1]
    assert played.ended.dead_end is None


def test_the_sixth_refusal_ends_the_run_and_the_result_shows_the_call() -> None:
    played = Played(*same(MOST_EQUAL + MOST_REFUSALS))
    assert (played.ended.exit_code, played.ended.outcome) == (4, Outcome.NO_PROGRESS)
    assert len(played.ran) == MOST_EQUAL
    assert refusals(played) == [1, 2, 3, 4, 5, 6]
    assert played.result["guard"] == {"name": "repetition", "tool": "Echo", "input": {"text": "hi"}}
    assert played.result["result"]
    assert "6 calls were refused" in played.ended.errors[0]
    assert played.ended.num_turns == MOST_EQUAL + MOST_REFUSALS


def test_five_refusals_do_not_end_it() -> None:
    played = Played(*same(MOST_EQUAL + MOST_REFUSALS - 1), DONE)
    assert (played.ended.exit_code, refusals(played)) == (0, [1, 2, 3, 4, 5])


def test_what_stands_behind_the_last_refusal_is_not_run() -> None:
    last = answer(call("s8"), call("b", "Touch"), call("c", text="new"), call("d", "Launch"))
    played = Played(*same(8), last)
    assert played.ended.exit_code == 4
    assert played.ran == ["s0", "s1", "s2"]
    assert [block["is_error"] for block in played.last_results] == [True] * 4
    assert all("the run ends here" in block["content"] for block in played.last_results[1:])


def test_a_report_behind_the_last_refusal_is_not_received() -> None:
    played = Played(*same(8), answer(call("s8"), report()), form=PLAIN_FORM)
    assert played.ended.exit_code == 4
    assert played.result["final_report"]["source"] == "synthetic"
    assert played.result["guard"]["name"] == "repetition"


def test_d6_of_many_equal_calls_in_one_answer_three_run() -> None:
    played = Played(answer(*[call(f"s{n}") for n in range(9)]))
    assert played.ran == ["s0", "s1", "s2"]
    assert (played.ended.exit_code, played.calls_made) == (4, 1)


def test_something_new_in_between_starts_the_count_afresh() -> None:
    played = Played(*same(6), answer(call("n", text="new")), *same(3, 6), DONE)
    assert played.ended.exit_code == 0
    assert refusals(played) == [1, 2, 3]


@every_row("length", [2, 3, 4])
def test_d6_a_cycle_is_refused_after_three_rounds(length: int) -> None:
    rounds = [
        answer(call(f"c{n}", text=f"step {n % length}")) for n in range(length * MOST_EQUAL + MOST_REFUSALS)
    ]
    played = Played(*rounds)
    assert len(played.ran) == length * MOST_EQUAL
    assert played.ended.exit_code == 4
    assert played.result["guard"]["name"] == "cycle"


def test_calls_that_differ_in_white_space_are_the_same() -> None:
    spelled = ["a  b", "a b", " a b ", "a\nb"]
    played = Played(*[answer(call(f"w{n}", text=words)) for n, words in enumerate(spelled)], DONE)
    assert played.ran == ["w0", "w1", "w2"]
    assert refusals(played) == [1]


def test_each_task_has_guards_of_its_own() -> None:
    played = Played(*same(4), DONE, *same(3, 4), DONE)
    assert played.task("again").exit_code == 0
    assert refusals(played) == [1]


def test_calls_that_an_earlier_process_ran_count() -> None:
    killed = FakeJournal()
    pending = Played(answer(*[call(f"s{n}") for n in range(4)]), DONE)
    behind_the_answer = pending.journal.kinds.index("assistant") + 1
    killed.records = pending.journal.records[:behind_the_answer]
    killed.append(*(result_record(ToolResult(f"s{n}", ToolOutput("hi"))) for n in range(3)))
    played = Played(DONE, session=replay(killed.records), journal=killed, prompt=None)
    assert played.ran == []
    assert refusals(played) == [1]
    assert [block.get("is_error", False) for block in played.results_in(0)] == [False, False, False, True]


# -- Edits. ------------------------------------------------------------------------------------------------------

EDIT = ToolDefinition(
    "Edit",
    "Changes a file.",
    {"type": "object", "properties": {"file_path": {"type": "string"}}, "required": ["file_path"]},
)


class Edits(FakeToolbox):
    def __init__(self) -> None:
        super().__init__()
        self.definitions = (ECHO, TOUCH, EDIT)

    def edit(self, call_id: str, *, is_real: bool, path: str = "/work/a.py") -> Answer:
        self.changes[call_id] = FileChange(path, "old", f"new {call_id}" if is_real else "old")
        return answer(call(call_id, "Edit", file_path=path))


def test_edits_that_change_nothing_are_refused_after_three() -> None:
    box = Edits()
    played = Played(*[box.edit(f"e{n}", is_real=False) for n in range(9)], toolbox=box)
    assert played.ran == ["e0", "e1", "e2"]
    assert played.ended.exit_code == 4
    assert played.result["guard"]["name"] == "no_change"
    assert refusals(played) == [1, 2, 3, 4, 5, 6]


def test_edits_that_change_their_file_go_on() -> None:
    box = Edits()
    played = Played(*[box.edit(f"e{n}", is_real=True) for n in range(30)], DONE, toolbox=box)
    assert (played.ended.exit_code, len(played.ran), refusals(played)) == (0, 30, [])


def test_edit_and_test_run_on_however_equal_the_test_is() -> None:
    box = Edits()
    script = []
    for n in range(40):
        script += [box.edit(f"e{n}", is_real=True), answer(call(f"t{n}", text="run the tests"))]
    played = Played(*script, DONE, toolbox=box)
    assert (played.ended.exit_code, len(played.ran), refusals(played)) == (0, 80, [])


# -- Long transcripts, as models really write them. --------------------------------------------------------------


class Recorded(FakeToolbox):
    """A toolbox that answers each call as a transcript says."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__()
        anything: dict[str, Any] = {"type": "object", "properties": {}}
        names = dict.fromkeys(step.call.name for step in steps)
        self.definitions = [ToolDefinition(name, "", anything) for name in names]
        self._outputs = {step.call.id: step.output for step in steps}
        self.changes = {step.call.id: step.change for step in steps if step.change is not None}

    def run(self, calls: Sequence[ToolCall]) -> Sequence[tuple[ToolOutput, float]]:
        self.ran.append([call.id for call in calls])
        return [(self._outputs[call.id], 0.1) for call in calls]


def played_of(steps: Sequence[Step]) -> Played:
    script = [
        answer({"type": "tool_use", "id": step.call.id, "name": step.call.name, "input": step.call.arguments})
        for step in steps
    ]
    return Played(*script, DONE, toolbox=Recorded(steps))


@every_row("transcript", GOES_ON)
def test_d6_long_work_that_gets_somewhere_is_let_through(transcript: Callable[[], Iterator[Step]]) -> None:
    """The guards by themselves are asked about whole transcripts in `test_guards.py`. Here, a guard that saw a circle
    of at most four steps would have ended the run after 18 of these steps.
    """
    steps = list(islice(transcript(), 20))
    played = played_of(steps)
    assert (played.ended.exit_code, refusals(played)) == (0, [])
    assert len(played.ran) == len(steps)


@every_row(("transcript", "guard", "runs"), TRIPS)
def test_d6_each_kind_of_circle_ends_by_its_guard(
    transcript: Callable[[], Iterator[Step]], guard: str, runs: int
) -> None:
    steps = list(islice(transcript(), runs + MOST_REFUSALS))
    played = played_of(steps)
    assert (played.ended.exit_code, len(played.ran)) == (4, runs)
    assert played.result["guard"]["name"] == guard
    last = steps[-1].call
    assert played.result["guard"] == {"name": guard, "tool": last.name, "input": last.arguments}
