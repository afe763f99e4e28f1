"""Reading a journal for a page: of a long one, the lines in the middle are not decoded completely."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.conversation.journal_lines import RecordView, line_of
from ralph.pages.command import PageShare, read_journal
from ralph.pages.content import Excerpts
from ralph.pages.transcript import PageTranscript
from ralph.values.events import AttemptEnded, TurnAsked
from ralph.values.redaction import Redactor
from ralph.values.servers import facts_of
from ralph.values.usage import TokenUsage
from tests.fakes import call, text
from tests.rows import every_row
from tests.sessions.session_journals import MODEL, JournalBuilder

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.pages.command import JournalRead

TURNS = 60


def long_journal(path: Path) -> int:
    """Writes a journal with times, and returns its number of lines."""
    told = JournalBuilder().run().prompt("work for long")
    for turn in range(1, TURNS + 1):
        failed = "overloaded" if turn % 7 == 0 else None
        told.event(
            AttemptEnded(
                turn,
                1,
                MODEL,
                MODEL,
                0.5,
                TokenUsage(10, 5),
                facts_of(MODEL),
                kind=failed,
                error=failed,
                wait_s=0.25,
            )
        )
        told.event(TurnAsked(turn, 1, 0.5))
        name = f"c{turn}"
        told.answers(text("On."), call(name, "Bash", command=f"make {turn}"))
        told.starts(name).result(name, "x", is_error=turn % 5 == 0)
    told.ends()
    path.write_bytes(b"".join(line_of(at, one, 1000.0 + at) for at, one in enumerate(told.records)))
    return len(told.records)


def read(path: Path, lines: int, of_page: int) -> JournalRead:
    return read_journal(
        path, PageShare(of_page), lines, Excerpts(Redactor()), prefix="e", view=RecordView(Redactor())
    )


def test_the_timeline_of_a_long_journal_is_that_of_a_journal_that_is_decoded_completely(tmp_path) -> None:
    path = tmp_path / "s.jsonl"
    lines = long_journal(path)
    whole, passed = read(path, lines, lines), read(path, lines, 1_000_000_000)
    assert (whole.problem, passed.problem) == (None, None)

    def timeline(one: JournalRead) -> list[tuple[object, ...]]:
        return [
            (
                run.began_s,
                run.now_s,
                run.costs,
                run.contexts,
                [(of.kind, of.began_s, of.ended_s) for of in run.told(None)],
            )
            for run in one.transcript.runs
        ]

    assert timeline(passed) == timeline(whole)
    assert (
        passed.transcript.incidents.numbers
        == whole.transcript.incidents.numbers
        == {"calls with an error": TURNS // 5}
    )
    ran, ran_whole = passed.story.runs[0], whole.story.runs[0]
    assert (ran.turns, ran.cost_usd) == (ran_whole.turns, ran_whole.cost_usd)
    (entries,) = passed.transcript.entries()
    assert len(whole.transcript.entries()[0]) > 100 > len(entries)
    (gap,) = [entry for entry in entries if entry.id == "e-gap"]
    assert gap.title.endswith("entries are left out here")
    assert (gap.shown_by, entries[0].title) == ("ralph sessions export s", "work for long")
    assert entries[-1].title.startswith("completed")


def test_damage_in_the_middle_of_a_long_journal_ends_what_is_shown(tmp_path) -> None:
    path = tmp_path / "s.jsonl"
    lines = long_journal(path)
    whole = path.read_bytes().splitlines(keepends=True)
    at = lines // 2
    path.write_bytes(b"".join([*whole[:at], whole[at].replace(b'"', b"'", 1), *whole[at + 1 :]]))
    damaged = read(path, lines, 1_000_000_000)
    assert damaged.problem is not None
    assert damaged.problem.startswith(f"line {at + 1} does not match its checksum")
    assert damaged.outcome == "unknown"
    assert 0 < damaged.story.runs[0].answers < TURNS


@every_row("knows", [True, False])
def test_names_in_the_middle_of_a_long_journal_show_no_secret(knows: bool, tmp_path) -> None:
    secret = "s3cr3t-of-yesterday" if knows else "sk-ant-api03-" + "s3cr3t" * 5
    path = tmp_path / "s.jsonl"
    told = JournalBuilder().run().prompt("work for long")
    for turn in range(1, TURNS + 1):
        target = f"model {secret}"
        told.event(
            AttemptEnded(
                turn, 1, target, MODEL, 0.5, TokenUsage(1, 1), facts_of(MODEL), kind=secret, error="failed"
            )
        )
        told.answers(text("On."), call(f"c{turn}", f"tool {secret}")).starts(f"c{turn}", f"tool {secret}")
        told.result(f"c{turn}", "x")
    records = told.ends().records
    spans_of = Redactor([secret] if knows else []).spans
    path.write_bytes(b"".join(line_of(at, one, 1000.0 + at, spans_of) for at, one in enumerate(records)))
    transcript = read(path, len(records), 1_000_000_000).transcript
    labels = [stretch.label for run in transcript.runs for stretch in run.told(None)]
    assert sum("[redacted]" in label for label in labels) > TURNS
    assert "s3cr3t" not in repr(labels)


def test_a_record_without_a_time_of_its_own_has_that_of_the_one_before() -> None:
    transcript = PageTranscript("e", 1000, 100, "", Excerpts(Redactor()))
    times, seen = iter([100.0, 100.0, None, 102.0]), list[float]()
    for number, record in enumerate(JournalBuilder().run().prompt("go").ends().records):
        transcript.take(record, next(times, 101.0), number)
        seen.append(transcript.runs[-1].now_s if transcript.runs else 0.0)
    (run,) = transcript.runs
    assert ((run.began_s, run.now_s), seen[1:4]) == ((100.0, 102.0), [100.0, 100.0, 102.0])
    assert transcript.lacks_times
