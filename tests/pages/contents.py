"""A night as it might be, by hand: a loop of eight iterations with two outages, a fallback and a denial."""

from __future__ import annotations

from ralph.pages.content import (
    LOOP_WAITS,
    ChangedFile,
    CheckRun,
    Commit,
    Count,
    EntryKind,
    FileDiff,
    Mark,
    MarkKind,
    PageContent,
    Point,
    Section,
    SectionPart,
    Stretch,
    StretchKind,
    TranscriptEntry,
)

BEGAN_S = 1_795_476_600.0  # 2026-11-23 21:30 UTC
MINUTE_S = 60.0

# A row for each iteration: minutes, turns, dollars, outcome, reason, last words, the exit code of the check.
ITERATIONS = [
    (74, 41, 3.12, "completed", "", "The parser reads durations; the tests of `parse` pass.", 2),
    (103, 58, 4.41, "completed", "", "Rounding follows the specification now, half to even.", 2),
    (22, 14, 0.71, "completed", "", "All tasks of the plan are done.", 2),
    (13, 9, 0.42, "completed", "", "Nothing is left to do.", 2),
    (9, 7, 0.35, "killed", "signal 9, perhaps for its memory; it was resumed", "", 2),
    (37, 22, 1.60, "limit_reached", "40 turns are used up", "I am about to split `totals.py`.", 2),
    (61, 38, 2.92, "completed", "", "`totals.py` is split, and the slow query has an index.", 1),
    (48, 29, 2.08, "completed", "", "The report agrees with the ledger. All 214 tests pass.", 0),
]
OUTAGES = {1: (30, 41), 6: (20, 12)}  # the iteration (from 0): after how many minutes, for how many
FAILED_CHECK = """\
tests/test_totals.py::test_a_month_without_entries_is_zero PASSED
tests/test_totals.py::test_halves_round_to_even FAILED
>       assert rounded(Decimal("2.675")) == Decimal("2.68")
E       AssertionError: assert Decimal('2.67') == Decimal('2.68')
1 failed, 213 passed in 8.21s
make: *** [Makefile:4: test] Error {code}
"""
TASK = """\
Make the monthly totals of `ledger` agree with the bank's statements.

Read specs/totals.md first. One task of IMPLEMENTATION_PLAN.md at a time, with its tests.
"""
DIFF = """\
diff --git a/ledger/totals.py b/ledger/totals.py
index 3b18e51..a04c7d2 100644
--- a/ledger/totals.py
+++ b/ledger/totals.py
@@ -12,9 +12,11 @@ from ledger.entries import Entry
 CENT = Decimal("0.01")
\x20
\x20
-def rounded(amount: Decimal) -> Decimal:
-    return amount.quantize(CENT)
+def rounded(amount: Decimal) -> Decimal:
+    \"\"\"The amount in whole cents, half to even: specs/totals.md, section 3.\"\"\"
+    return amount.quantize(CENT, rounding=ROUND_HALF_EVEN)
\x20
\x20
 def total(entries: Iterable[Entry]) -> Decimal:
-    return sum(entry.amount for entry in entries)
+    # Rounding each entry first is how the bank does it, and what the old report did not do.
+    return sum((rounded(entry.amount) for entry in entries), start=Decimal(0))
"""
CALLS = [
    ("Read: ledger/totals.py", '{"file_path": "ledger/totals.py"}', "CENT = Decimal('0.01')\n", False),
    (
        "Bash: make test",
        '{"command": "make test", "timeout": 120000}',
        FAILED_CHECK.format(code=1),
        True,
    ),
    ("Grep: ROUND_HALF", '{"pattern": "ROUND_HALF", "path": "."}', "specs/totals.md:31", False),
    (
        "Edit: ledger/totals.py",
        '{"file_path": "ledger/totals.py", "old_string": "quantize(CENT)", "new_string": "..."}',
        "Edited ledger/totals.py: 1 replacement.",
        False,
    ),
    ("Bash: git diff --stat", '{"command": "git diff --stat"}', " ledger/totals.py | 7 ++++---", False),
]


def part_of(number: int, began_s: float, name: str = "a") -> SectionPart:
    """The iteration with this number, from 1."""
    minutes, turns, cost, outcome, reason, words, code = ITERATIONS[number - 1]
    outage = OUTAGES.get(number - 1)
    ended_s = began_s + (minutes + (outage[1] if outage else 0)) * MINUTE_S
    turn_s = (minutes - 2) * MINUTE_S / turns
    stretches: list[Stretch] = []
    entries: list[TranscriptEntry] = [
        TranscriptEntry(
            f"{name}{number}-0", EntryKind.PROMPT, began_s, "The task of the iteration", TASK.strip()
        )
    ]
    marks: list[Mark] = []
    now_s = began_s
    for turn in range(1, turns + 1):
        model_s = turn_s * (0.45 + 0.1 * (turn % 3))
        title, arguments, result, is_error = CALLS[turn % len(CALLS)]
        thought, called = f"{name}{number}-{turn}a", f"{name}{number}-{turn}b"
        stretches += [
            Stretch(StretchKind.MODEL, now_s, now_s + model_s, f"turn {turn}", thought),
            Stretch(StretchKind.TOOL, now_s + model_s, now_s + turn_s - 2, title, called),
        ]
        entries += [
            TranscriptEntry(
                thought,
                EntryKind.TEXT if turn % 4 else EntryKind.THINKING,
                now_s + model_s,
                "The total is summed before it is rounded; I look where that happens.",
                "The total is summed before it is rounded; I look where that happens.\n\n"
                "The specification wants each entry rounded first, half to even.",
            ),
            TranscriptEntry(
                called,
                EntryKind.CALL,
                now_s + model_s,
                title,
                arguments,
                result,
                is_error=is_error,
                cut_chars=18_204 if turn == 5 else 0,
                shown_by=f"ralph sessions show 7c1f09a{number} --full" if turn == 5 else None,
            ),
        ]
        now_s += turn_s
        if outage is not None and now_s < began_s + outage[0] * MINUTE_S <= now_s + turn_s:
            for attempt in range(1, 5):
                event = f"{name}{number}-r{attempt}"
                marks.append(Mark(MarkKind.RETRY, now_s + attempt * 8, f"attempt {attempt}: 529", event))
                entries.append(
                    TranscriptEntry(
                        event,
                        EntryKind.EVENT,
                        now_s + attempt * 8,
                        f"Retry {attempt} of 4: HTTP 529 overloaded_error",
                        f'{{"attempt": {attempt}, "status": 529, "wait_s": {2**attempt}}}',
                    )
                )
            stretches.append(Stretch(StretchKind.WAITING, now_s, now_s + 60, "529, tried again"))
            ends_s = now_s + outage[1] * MINUTE_S
            stretches.append(Stretch(StretchKind.OUTAGE, now_s + 60, ends_s, "the API is unavailable"))
            now_s = ends_s
    stretches.append(Stretch(StretchKind.CHECK, ended_s - 90, ended_s, "make test"))
    marks.append(Mark(MarkKind.ENDED, ended_s - 95, f"iteration {number} ended: {outcome}"))
    has_passed = code == 0
    return SectionPart(
        number=number,
        session_id=f"7c1f09a{number}-52cd-4f0e-9a51-0d6cfe7a1b2c",
        outcome=outcome,
        reason=reason,
        last_words=words,
        began_s=began_s,
        ended_s=ended_s,
        turns=turns,
        cost_usd=cost,
        stretches=tuple(stretches),
        marks=tuple(marks),
        entries=tuple(entries),
        check=CheckRun(
            "passed" if has_passed else f"failed (exit {code})",
            has_passed,
            "214 passed in 8.02s\n" if has_passed else FAILED_CHECK.format(code=code),
            "check",
        ),
        commits=1 if number in {1, 2, 8} else 0,
    )


def fallback_and_denial(part: SectionPart) -> tuple[Mark, ...]:
    began_s = part.began_s or 0.0
    return (
        Mark(MarkKind.FALLBACK, began_s + 600, "claude-opus-5-5 to claude-haiku-5: overloaded"),
        Mark(MarkKind.DENIAL, began_s + 900, "Bash: git push --force", part.entries[4].id),
        Mark(MarkKind.GUARD, began_s + 1000, "the same call for the fourth time: Bash: make test"),
        Mark(MarkKind.COMPACTION, began_s + 1100, "161,000 tokens became 12,400"),
    )


def loop_of_eight(name: str = "a") -> Section:
    parts: list[SectionPart] = []
    now_s = BEGAN_S
    for number in range(1, len(ITERATIONS) + 1):
        part = part_of(number, now_s, name)
        if number == 7:
            part = replaced_marks(part, (*part.marks, *fallback_and_denial(part)))
        parts.append(part)
        assert part.ended_s is not None
        now_s = part.ended_s + 5
    commits = []
    for number, subject in ((1, "Read durations"), (2, "Round half to even"), (8, "Split totals.py")):
        at_s = (parts[number - 1].ended_s or 0.0) - 120
        parts[number - 1] = replaced_marks(
            parts[number - 1], (*parts[number - 1].marks, Mark(MarkKind.COMMIT, at_s, subject))
        )
        commits.append(
            Commit(
                id=f"{number}f0c4d2e9b7a61358f0c4d2e9b7a61358f0c4d2e",
                subject=subject,
                body=f"ralph loop: iteration {number}\n\nSession: 7c1f09a{number}",
                at_s=at_s,
                files=(
                    FileDiff("ledger/totals.py", 7, 3, DIFF),
                    FileDiff("docs/logo.png", 0, 0, ""),
                ),
                iteration=number,
            )
        )
    costs, contexts, spent = [], [], 0.0
    for part in parts:
        models = [stretch for stretch in part.stretches if stretch.kind is StretchKind.MODEL]
        for at, stretch in enumerate(models):
            spent += (part.cost_usd or 0.0) / len(models)
            costs.append(Point(stretch.ended_s, spent))
            contexts.append(Point(stretch.ended_s, 4_000.0 + 2_900 * at))
    return Section(
        id="12",
        is_loop=True,
        title="Make the monthly totals of `ledger` agree with the bank's statements.",
        task=TASK,
        directory="/home/me/src/ledger",
        model="claude-opus-5-5, claude-haiku-5",
        outcome="completed",
        exit_code=0,
        reason="The check passes.",
        answer=ITERATIONS[-1][5],
        began_s=BEGAN_S,
        ended_s=now_s,
        turns=sum(row[1] for row in ITERATIONS),
        cost_usd=spent,
        budget_usd=20.0,
        time_limit_s=36_000.0,
        parts=tuple(parts),
        outages=tuple(
            stretch for part in parts for stretch in part.stretches if stretch.kind is StretchKind.OUTAGE
        ),
        first_check=CheckRun(
            "failed (exit 2)", has_passed=False, output=FAILED_CHECK.format(code=2), name="check"
        ),
        commits=tuple(reversed(commits)),
        files=(
            ChangedFile("ledger/totals.py", 21, 9, is_committed=True),
            ChangedFile("tests/test_totals.py", 48, 0, is_committed=True),
            ChangedFile("docs/logo.png", None, None, is_committed=True),
            ChangedFile("notes.txt", 3, 0, is_committed=False),
        ),
        costs=tuple(costs),
        contexts=tuple(contexts),
        counts=(
            Count(LOOP_WAITS, 2, ("23:14, 41 minutes: HTTP 529", "03:05, 12 minutes: connection refused")),
            Count("retries", 8, ("23:14:08 HTTP 529", "23:14:16 HTTP 529")),
            Count("fallbacks", 1, ("claude-opus-5-5 to claude-haiku-5: overloaded",)),
            Count("guards", 1, ("the same call for the fourth time: Bash: make test",)),
            Count("compactions", 1, ("161,000 tokens became 12,400",)),
            Count("denied calls", 1, ("Bash: git push --force (rule `Bash(git push:*)`)",)),
        ),
        notes=("One file is changed and not committed: notes.txt.",),
        resume_command=None,
    )


def replaced_marks(part: SectionPart, marks: tuple[Mark, ...]) -> SectionPart:
    from msgspec.structs import replace

    return replace(part, marks=tuple(sorted(marks, key=lambda mark: mark.at_s)))


def failed_session(name: str = "b") -> Section:
    """A session of one run, which ended at its budget."""
    from msgspec.structs import replace

    part = replace(part_of(3, BEGAN_S - 90_000, name), outcome="limit_reached", check=None)
    return Section(
        id="e2b94d10-52cd-4f0e-9a51-0d6cfe7a1b2c",
        is_loop=False,
        title="Find out why the import of March is slow",
        task="Find out why the import of March is slow, and write it into notes/import.md.",
        directory="/home/me/src/ledger",
        model="claude-opus-5-5",
        outcome="limit_reached",
        exit_code=3,
        reason="The budget of $0.75 is used up.",
        answer="The import reads every file twice; I had begun to measure it.",
        began_s=part.began_s or 0.0,
        ended_s=part.ended_s or 0.0,
        turns=part.turns,
        cost_usd=part.cost_usd,
        budget_usd=0.75,
        time_limit_s=None,
        parts=(part,),
        resume_command="ralph --resume e2b94d10 --max-budget-usd 2",
    )


NIGHT = PageContent(made_at_s=BEGAN_S + 37_000, version="0.1.0", sections=(loop_of_eight(),), place="loop 12")
SEVERAL = PageContent(
    made_at_s=BEGAN_S + 37_000,
    version="0.1.0",
    sections=(loop_of_eight(), failed_session()),
    place="/home/me/src/ledger",
    missing=("Session 0aa1 could not be read: its journal is damaged in line 7.",),
)
