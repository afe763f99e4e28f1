"""Tests what the prompt of an iteration contains. tests/test_docs.py compares the exact words with
docs/loop-reference.md.
"""

from __future__ import annotations

from ralph.loop.events import LONGEST_LAST_WORDS, iteration_prompt, names_of
from ralph.loop.state import IterationRecord, LoopState
from ralph.loop.values import CheckResult, LoopLimits, LoopPlan
from ralph.values.outcome import Outcome
from tests.rows import every_row


def state(until: str | None = None, **fields: object) -> LoopState:
    limits = fields.pop("limits", LoopLimits())
    plan = LoopPlan("/w", "/w", until=until, limits=limits)  # type: ignore[arg-type]  # it is what was given
    return LoopState(plan, "now", 1, **fields)  # type: ignore[arg-type]  # by name


def record(outcome: Outcome, **fields: object) -> IterationRecord:
    given: dict[str, object] = {
        "commits": 0,
        "files": (),
        "file_count": 0,
        "made_progress": True,
        "check": None,
    }
    return IterationRecord(1, "s", outcome, 0, 1, 0.0, 1.0, **(given | fields))  # type: ignore[arg-type]  # by name


@every_row(
    ("tail", "shown"),
    [
        ("", "it failed (exit 2). It printed nothing."),
        (" \n", "it failed (exit 2). It printed nothing."),
        ("\nE  1\n", "The end of its output:\n\n```\nE  1\n```"),
        ("a\n```\nb\n````\nc", "\n\n`````\na\n```\nb\n````\nc\n`````"),
    ],
)
def test_a_failing_checks_output_is_in_a_fence_that_it_cannot_close(tail: str, shown: str) -> None:
    check = CheckResult(2, tail)
    assert shown in iteration_prompt(state("make", first_check=check, last_check=check), "x")


@every_row("outcome", [Outcome.COMPLETED, Outcome.NO_PROGRESS])
def test_an_iteration_that_ended_by_itself_leaves_no_words(outcome: Outcome) -> None:
    assert "last iteration" not in iteration_prompt(
        state(iterations=(record(outcome, last_words="done"),)), "x"
    )


def test_long_last_words_keep_their_end() -> None:
    words = "a" * LONGEST_LAST_WORDS + "the end"
    told = iteration_prompt(state(iterations=(record(Outcome.TIMED_OUT, last_words=words),)), "x")
    assert "a the end" not in told
    assert "> … aaa" in told
    assert "athe end\n" in told
    assert words not in told


@every_row(
    ("count", "shown"), [(1, "a"), (3, "a, b, c"), (4, "a, b, c and 1 more"), (40, "a, b, c and 37 more")]
)
def test_names_are_counted_beyond_the_third(count: int, shown: str) -> None:
    assert names_of(tuple("abcdefgh")[:count], count) == shown
