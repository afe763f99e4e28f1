from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hypothesis import assume, given
from hypothesis import strategies as st

from ralph.agent.call_rules import GUARDS, LONGEST_CYCLE, MOST_EQUAL, Guards, Refusal
from ralph.conversation.records import result_record
from ralph.conversation.session import replay
from ralph.values.answer import ToolCall, ToolOutput, ToolResult
from ralph.values.events import GuardTripped
from ralph.values.limits import MOST_REFUSALS
from tests.agent.guard_transcripts import (
    GOES_ON,
    TRIPS,
    Step,
    bash,
    edit,
    empty_write,
    failed_edit,
    step,
)
from tests.fakes import FakeJournal, answer, call
from tests.fakes.played import DONE, PLAIN_FORM, Played, report
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ralph.values.answer import Answer


def tell(guards: Guards, one: Step) -> Refusal | None:
    refusal = guards.before(one.call)
    if refusal is None:
        guards.after(one.call, one.output, change=one.change)
    return refusal


def refusals(steps: Iterable[Step], guards: Guards | None = None) -> list[str | None]:
    """The name of the guard that refused each step, or None if the step ran."""
    guards = guards or Guards()
    told = [tell(guards, one) for one in steps]
    return [refusal.guard if refusal is not None else None for refusal in told]


def is_refused(before: Iterable[Step], last: Step) -> bool:
    told = refusals([*before, last])
    assert told[:-1] == [None] * (len(told) - 1)
    return told[-1] is not None


def outputs_are_equal(*outputs: str) -> bool:
    """Whether a fourth call is refused after three with these results."""
    assert len(outputs) == MOST_EQUAL
    return is_refused([bash("look", output) for output in outputs], bash("look"))


# Bounds


@every_row(
    ("made", "guard"),
    [
        (lambda: bash("make"), "repetition"),
        (lambda: step("Read", "no such file", is_error=True, file_path="a.py"), "repetition"),
        (lambda: failed_edit("a.py", "x"), "no_change"),
        (lambda: empty_write("a.py"), "no_change"),
    ],
)
def test_the_fourth_is_refused_and_the_sixth_refusal_is_the_last(made, guard) -> None:
    guards = Guards()
    told = [tell(guards, made()) for _ in range(MOST_EQUAL + MOST_REFUSALS)]
    assert told[:3] == [None] * 3
    refused = [refusal for refusal in told[3:] if refusal is not None]
    assert [(refusal.guard, refusal.refusals) for refusal in refused] == [
        (guard, number) for number in range(1, 7)
    ]
    assert [refusal.is_last for refusal in refused] == [False] * 5 + [True]


def test_a_wait_for_output_is_no_repetition_unless_it_fails() -> None:
    waits = [step("BashOutput", "(nothing new)", bash_id="bash_1")] * 20
    assert refusals(waits) == [None] * 20
    assert is_refused([bash("look"), *waits[:4], bash("look"), bash("look"), *waits], bash("look"))
    over = step("BashOutput", "bash_1 has ended", is_error=True, bash_id="bash_1")
    assert is_refused([over] * 3, over)
    guards = Guards()
    for number in range(4):  # results that an earlier process wrote
        guards.after(
            ToolCall(f"old{number}", "BashOutput", {"bash_id": "bash_1"}), ToolOutput("(nothing new)")
        )
    assert guards.before(waits[0].call) is None


# What resets


def one_refused() -> Guards:
    guards = Guards()
    assert refusals([bash("make")] * 4, guards) == [None, None, None, "repetition"]
    return guards


def test_refused_calls_with_another_in_turn_are_a_cycle_in_the_end() -> None:
    guards = one_refused()
    told = [tell(guards, bash(("ls", "make")[number % 2])) for number in range(12)]
    # The last of the three calls before is the first of this circle.
    assert [refusal and refusal.guard for refusal in told] == [None] * 5 + ["cycle"] * 7
    assert told[10] is not None
    assert told[10].is_last


def test_an_edit_that_changed_a_file_ends_every_window() -> None:
    assert not is_refused([*[bash("make")] * 3, edit("a.py", 1), *[bash("make")] * 2], bash("make"))
    assert is_refused([edit("a.py", 1), *[bash("make")] * 3], bash("make"))


@every_row(
    ("paths", "refused"),
    [
        (("a.py", "a.py", "a.py", "a.py"), True),
        (("a.py", "./a.py", "a.py", ".//a.py"), True),
        (("a.py", "a.py", "b.py", "a.py"), False),
        (("a.py", "a.py", "a.py", "b.py"), False),
        (("a.py", "a.py", "a.py", "sub/a.py"), False),
    ],
)
def test_edits_that_change_nothing_count_by_path(paths, refused) -> None:
    *before, last = [failed_edit(path, f"x = {number}") for number, path in enumerate(paths)]
    assert is_refused(before, last) is refused


def test_a_successful_write_of_which_nothing_more_is_known_is_a_change() -> None:
    wrote = [step("Write", "Wrote a.py.", file_path="a.py", content="x") for _ in range(8)]
    assert refusals(wrote) == [None] * 8


# Equal calls


@every_row(
    ("first", "second", "are_equal"),
    [
        ({"command": "ls  -l"}, {"command": " ls -l\n"}, True),
        ({"command": "ls -l"}, {"command": "ls -la"}, False),
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}, True),
        ({"a": ["x y", "z"]}, {"a": ["x  y", "z"]}, True),
        ({"a": ["x", "y"]}, {"a": ["y", "x"]}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": None}, {}, False),
        ({"command": "ls", "timeout": 1000}, {"command": "ls", "timeout": 2000}, False),
        ({"command": "ls", "description": "Look"}, {"command": "ls", "description": "Look again"}, True),
    ],
)
def test_arguments_are_equal_but_for_white_space_order_and_words_for_people(first, second, are_equal) -> None:
    rows = [step("Bash", "same", **arguments) for arguments in (first, second, first, second)]
    assert is_refused(rows[:3], rows[3]) is are_equal


@every_row(
    "rows",
    [
        [step(name, "same", path="src") for name in ("Glob", "Glob", "Glob", "Grep")],
        # These words are for people in calls of Bash alone.
        [step("Report", "same", description=f"part {number}") for number in range(4)],
        [step("Bash", "same", is_error=number == 2, command="x") for number in range(4)],
    ],
)
def test_another_tool_argument_or_success_is_something_new(rows) -> None:
    assert not is_refused(rows[:3], rows[3])


# Equal results


@every_row(
    "outputs",
    [
        ("same", "same", "same"),
        ("a  b", "a b", "\ta\nb\n"),
        ("1 failed in 0.52s", "1 failed in 11.4s", "1 failed in 1m 2s"),
        ("took 12 ms", "took 7ms", "took 1,001 ms".replace(",", "")),
        ("in 3.4 seconds", "in 1 second", "in 2 hours, 3 minutes"),
        ("real 0m0.003s", "real 1m2.1s", "real 0m9.999s"),
        ("ok at 06:55:12", "ok at 7:01:59", "ok at 23:59:59.123"),
        ("on 2026-11-22", "on 2026-12-01", "on 2027-01-31"),
        ("2026-11-22T06:55:12.5Z up", "2026-11-22T06:55:13+01:00 up", "2026-11-23 06:55 up"),
        ("2026/11/22 06:55:12 up", "2026/11/22 06:55:44 up", "2026/11/23 00:00:00 up"),
        (
            "[22/Nov/2026:06:55:12 +0000] GET",
            "[22/Nov/2026:06:55:13 +0000] GET",
            "[23/Nov/2026:06:55:13 +0000] GET",
        ),
        ("Sun Nov 22 06:55:12 UTC 2026", "Sun Nov 22 06:56:12 UTC 2026", "Sun Nov 22 06:57:40 UTC 2026"),
        ("# duration_ms 52.16", "# duration_ms 7", "# duration_ms 1052.1623"),
        ('{"took_ms": 52}', '{"took_ms": 9}', '{"took_ms": 70}'),
        ("Time: 00:00.123", "Time: 00:01.9", "Time: 01:44.001"),
        ("at 1795333542", "at 1795333549", "at 1795334001"),
        ("at 1795333542857", "at 1795333549001", "at 1795334001777"),
        ("listening, pid 4711", "listening, pid 4733", "listening, pid 90210"),
        ("[1] 4711", "[1] 4733", "[1] 90210"),
        ("Process ID: 4711 died", "Process ID: 4733 died", "Process ID: 17 died"),
        ("attempt 4", "attempt 5", "attempt 6"),
        ("attempt 9, job #90", "attempt 10, job #100", "attempt 11, job #110"),
        ("attempt 1 of the day", "attempt 1 of the day", "attempt 1 of the day"),
    ],
)
def test_results_that_differ_in_times_and_counters_are_equal(outputs) -> None:
    assert outputs_are_equal(*outputs)


@every_row(
    "outputs",
    [
        ("same", "same", "other"),
        ("other", "same", "same"),
        ("same", "other", "same"),
        # Numbers that show that something moves.
        ("10% done", "20% done", "30% done"),
        ("10 % done", "20 % done", "30 % done"),
        ("built 12/340", "built 13/340", "built 14/340"),
        ("built 12 / 340", "built 13 / 340", "built 14 / 340"),
        ("built 12 / 340", "built 12 / 341", "built 12 / 342"),
        ("found 3 of 10", "found 3 of 11", "found 3 of 12"),
        ("step 3 of 10", "step 4 of 10", "step 5 of 10"),
        ("step 3 out of 10", "step 4 out of 10", "step 5 out of 10"),
        ("got 100 MB", "got 200 MB", "got 300 MB"),
        ("got 100KiB", "got 200KiB", "got 300KiB"),
        ("got 100 bytes", "got 200 bytes", "got 300 bytes"),
        ("loss 0.5", "loss 0.6", "loss 0.7"),
        ("loss 1.5", "loss 2.5", "loss 3.5"),
        ("size 1,000", "size 2,000", "size 3,000"),
        ("device 12:34:56:1", "device 12:34:57:1", "device 12:34:59:1"),
        ("size 100", "size 190", "size 310"),
        ("size 1000000000", "size 1000900000", "size 1003000000"),
        ("rapid 4711", "rapid 4733", "rapid 9021"),
        ("3 errors left", "2 errors left", "1 errors left"),
        ("attempt 4", "attempt 4", "attempt 5"),
        ("attempt 4", "attempt 5", "attempt 5"),
        ("attempt 4, 9 lost", "attempt 5, 7 lost", "attempt 6, 8 lost"),
        ("4", "5", "6"),
        ("06:55:12 4", "06:55:13 5", "06:55:14 6"),
        ("test_4 failed", "test_5 failed", "test_6 failed"),
        ("a.py:10:20:30 x", "a.py:10:20:31 x", "a.py:10:20:33 x"),
        ("version 1.2.3", "version 1.2.4", "version 1.2.5"),
        # The marks that numbers and times leave are no numbers and times.
        ("attempt #", "attempt 5", "attempt 6"),
        ("one 1 #", "one # 1", "one 1 1"),
    ],
)
def test_results_that_show_something_new_are_not_equal(outputs) -> None:
    assert not outputs_are_equal(*outputs)


def image(data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def blocks(*content: dict[str, Any]) -> Step:
    read = step("Read", file_path="a.png")
    return read._replace(output=ToolOutput(content))


def test_blocks_are_compared_by_text_and_by_the_content_of_images() -> None:
    words = {"type": "text", "text": "took 3 ms"}
    slower = {"type": "text", "text": "took 4 ms"}
    assert is_refused(
        [blocks(words, image("AAAA")), blocks(slower, image("AAAA")), blocks(words, image("AAAA"))],
        blocks(),
    )
    assert not is_refused([blocks(image("AAAA")), blocks(image("AAAA")), blocks(image("BBBB"))], blocks())
    document = {"type": "document", "source": {"type": "url", "url": "x"}}
    assert is_refused([blocks(document)] * 3, blocks())
    assert not is_refused([blocks(document)] * 2 + [blocks({**document, "title": "y"})], blocks())


# Calls at once, and calls nobody asked about


def test_of_eight_equal_calls_at_once_three_run() -> None:
    guards = Guards()
    calls = [step("Read", "x", file_path="a.py") for _ in range(8)]
    told = [guards.before(one.call) for one in calls]
    assert [refusal and refusal.refusals for refusal in told] == [None, None, None, 1, 2, 3, 4, 5]
    assert told[3] is not None
    assert "their results are not there yet" in told[3].message
    for one in calls[:3]:
        guards.after(one.call, one.output)
    sixth = guards.before(step("Read", file_path="a.py").call)
    assert sixth is not None
    assert sixth.is_last
    assert "the results did not change" in sixth.message


def test_of_a_refused_call_no_result_is_taken() -> None:
    guards = one_refused()
    refused = bash("make", "Refused: ...", 1)
    assert guards.before(refused.call) is not None
    guards.after(refused.call, refused.output)
    third = guards.before(bash("make").call)
    assert third is not None
    assert third.refusals == 3


# What the model is told


def message_of(steps: Iterable[Step], guards: Guards | None = None) -> str:
    guards = guards or Guards()
    told = [refusal for one in steps if (refusal := tell(guards, one)) is not None]
    assert told
    return told[-1].message


@every_row(
    ("steps", "parts"),
    [
        (
            [bash("make")] * 4,
            ["this Bash call was made 3 times in a row", "another approach", "refusal 1 of 6; after 5 more"],
        ),
        ([bash("make")] * 8, ["refusal 5 of 6; after 1 more"]),
        ([bash("make")] * 9, ["refusal 6 of 6; the run ends."]),
        (
            [bash(name) if name == "A" else step("Read", file_path="a") for name in "ABABABA"],
            ["in a circle: Bash, Read, 3 times"],
        ),
        (
            [failed_edit("a.py", "x")] * 4,
            ["the last 3 Write and Edit calls on a.py changed nothing", "Read the file again"],
        ),
    ],
)
def test_a_refusal_says_what_was_seen_what_to_do_and_how_many_are_left(steps, parts) -> None:
    message = message_of(steps, Guards())
    for part in ["Refused: ", *parts]:
        assert part in message


def test_a_refusal_shows_nothing_huge() -> None:
    huge = "x" * 100_000
    for one in (failed_edit(huge, huge), step(huge, huge, text=huge), bash(huge, huge)):
        assert len(message_of([one] * 4)) < 700


# Long transcripts


@every_row("transcript", GOES_ON)
def test_a_run_that_gets_somewhere_is_left_alone(transcript) -> None:
    told = refusals(transcript())
    assert len(told) >= 20
    assert not any(told)


@every_row(("transcript", "guard", "runs"), TRIPS)
def test_a_loop_is_refused_and_ended(transcript, guard, runs) -> None:
    guards, told = Guards(), []
    for one in transcript():
        told.append(tell(guards, one))
        if (refusal := told[-1]) is not None and refusal.is_last:
            break
    assert [refusal and refusal.guard for refusal in told] == [None] * runs + [guard] * MOST_REFUSALS


# Against a slow oracle

KINDS: dict[str, Callable[[str], Step]] = {
    "a": lambda result: bash("a", result),
    "b": lambda result: bash("b", result),
    "c": lambda result: step("Read", result, file_path="c"),
    "f": lambda _: failed_edit("f.py", "one"),
    "g": lambda _: failed_edit("f.py", "two"),
    "w": lambda _: empty_write("f.py"),
    "E": lambda result: edit("f.py", len(result)),
}
RESULTS = ("x", "y")


def expected(ran: list[tuple[str, str]], kind: str, *, was_refused: bool) -> bool:
    """Whether this call is refused, computed from the kinds and results of all calls that ran before it. "E" stands
    for an edit that changed a file.
    """
    since = len(ran) - next((place for place, (name, _) in enumerate(reversed(ran)) if name == "E"), len(ran))
    ran = ran[since:]
    names = "".join(name for name, _ in ran[-3:]) + kind
    if len(names) == 4 and set(names) <= set("fgwE"):
        return True
    for length in range(1, 5):
        last = ran[-length:]
        if len(ran) >= 3 * length and ran[-3 * length :] == last * 3:
            follows = {name for name, _ in last} if was_refused else {last[0][0]}
            if kind in follows:
                return True
    return False


def stretches(most_rounds: int) -> st.SearchStrategy[list[tuple[str, str]]]:
    """Short stretches repeated, so that windows come about, nearly come about and are broken."""
    stretch = st.lists(
        st.tuples(st.sampled_from(sorted(KINDS)), st.sampled_from(RESULTS)), min_size=1, max_size=5
    )
    parts = st.lists(st.tuples(stretch, st.integers(1, most_rounds)), max_size=6)
    return parts.map(lambda parts: [one for part, times in parts for one in part * times])


@given(stretches(5))
def test_a_call_is_refused_exactly_when_its_window_is_there(calls) -> None:
    guards, ran, in_a_row = Guards(), list[tuple[str, str]](), 0
    for kind, result in calls:
        told = tell(guards, KINDS[kind](result))
        assert (told is not None) is expected(ran, kind, was_refused=in_a_row > 0), (kind, ran)
        if told is None:
            # A failed edit has one result only.
            ran.append((kind, result if kind in "abcE" else ""))
            in_a_row = 0
            continue
        in_a_row += 1
        assert told.refusals == in_a_row
        assert told.is_last is (in_a_row >= MOST_REFUSALS)
        assert told.guard in GUARDS
        if told.is_last:
            return


@given(stretches(2))
def test_a_sequence_without_three_equal_rounds_is_never_refused(calls) -> None:
    """The sequence has neither three equal rounds of calls with their results, nor three file calls or three
    unknown calls in a row.
    """
    ran = [(kind, result if kind in "abcE" else "") for kind, result in calls]
    names = "".join(kind for kind, _ in calls)
    cubes = any(
        ran[start : start + length] * 3 == ran[start : start + 3 * length]
        for length in range(1, LONGEST_CYCLE + 1)
        for start in range(len(ran) - 3 * length + 1)
    )
    rows = any(
        set(names[start : start + 3]) <= group
        for group in (set("uv"), set("fgw"))
        for start in range(len(names) - 2)
    )
    assume(not cubes and not rows)
    assert not any(refusals(KINDS[kind](result) for kind, result in calls))


# Bounds of time and memory

SIZE = 10_000
WORST = [
    "1:", "1", "1 ", "1m ", "1.", "1,", "1-", "1/", "1 of ", "1 1s,", "12:34:", "11:11:11.", "_ms:1", "n 1 ", "111111111111 ",
    "2026-11-22 06:55:12 ", "2026-11-22T", "22/Nov/2026:", "1 s", "1h1m1s ", " ", "\n", "x", "0.0.0.0s ", "1 out ",
]  # fmt: skip


def is_done_within(bound_s: float, work: Callable[[], object]) -> bool:
    """Whether `work` takes less than `bound_s` seconds of CPU time in at least one of three runs. Other programs
    may disturb a single run.
    """
    for _ in range(3):
        started_s = time.process_time()
        work()
        if time.process_time() - started_s < bound_s:
            return True
    return False


@every_row("part", WORST)
def test_the_worst_text_takes_time_in_proportion_to_its_length(part) -> None:
    def ask(size: int) -> Callable[[], object]:
        one = step("Read", (part * size)[:size], file_path="a.py")
        guards = Guards()
        return lambda: tell(guards, one)

    # 1 ms on a quiet machine. Were a pattern quadratic, ten times the text would take a hundred times as long.
    assert is_done_within(0.015, ask(SIZE))
    assert is_done_within(0.06, ask(10 * SIZE))


def test_what_is_kept_does_not_grow_with_calls_and_results() -> None:
    guards = Guards()
    for number in range(2 * LONGEST_CYCLE * MOST_EQUAL):
        tell(guards, bash(f"look {number}", " ".join(f"n {place}" for place in range(number, number + 600))))
        tell(guards, bash("wait", " ".join(f"n {place + number}" for place in range(200))))
    assert len(guards._steps) == LONGEST_CYCLE * MOST_EQUAL
    assert all(kept.result is not None and len(kept.result.counters) <= 256 for kept in guards._steps)
    for _ in range(500):
        guards.before(ToolCall("t", "Bash", {"command": "same"}))
    assert len(guards._refused_ids) <= 4 * MOST_REFUSALS


# --- In the agent loop


def same(count: int, first: int = 0) -> list[Answer]:
    """One call again and again, each time in an answer of its own."""
    return [answer(call(f"s{first + n}")) for n in range(count)]


def tripped(played: Played) -> list[int]:
    return [event.refusals for event in played.events.of(GuardTripped)]


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


def test_each_task_has_guards_of_its_own() -> None:
    played = Played(*same(4), DONE, *same(3, 4), DONE)
    assert played.task("again").exit_code == 0
    assert tripped(played) == [1]


def test_calls_that_an_earlier_process_ran_count() -> None:
    pending = Played(answer(*[call(f"s{n}") for n in range(4)]), DONE)
    behind_the_answer = pending.journal.kinds.index("assistant") + 1
    killed = FakeJournal.of(pending.journal.records[:behind_the_answer])
    killed.append(*(result_record(ToolResult(f"s{n}", ToolOutput("hi"))) for n in range(3)))
    played = Played(DONE, session=replay(killed.records), journal=killed, prompt=None)
    assert played.ran == []
    assert tripped(played) == [1]
    assert [block.get("is_error", False) for block in played.results_in(0)] == [False, False, False, True]
