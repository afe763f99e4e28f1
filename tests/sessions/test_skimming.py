"""A list must show what reading every journal completely would show, although it reads little of each."""

from __future__ import annotations

import itertools
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from ralph.conversation.journal_lines import JournalDamage, sealed
from ralph.conversation.records import (
    AssistantRecord,
    EndedRecord,
    NewerFormatError,
    RunRecord,
    SessionRecord,
    UserRecord,
    moved_record,
    session_record,
)
from ralph.sessions.command import session_object
from ralph.sessions.journal import FileJournal
from ralph.sessions.looking import LONG_BYTES, SessionLook, look_at, look_to_list, skim
from ralph.sessions.story import DAMAGED, SessionStory
from ralph.values.outcome import Delivery, Outcome
from tests.fakes import call, text
from tests.journals.reading import forked_record, read_lines, readable_part
from tests.recorded.raw_journals import kinds, recorded_journals
from tests.rows import every_row
from tests.sessions.session_journals import ANSWERED, FAILED, SESSION_ID, JournalBuilder, completed, killed

if TYPE_CHECKING:
    from collections.abc import Callable


def resumed() -> JournalBuilder:
    """A journal of four runs. The first was killed. The second resumed it without a prompt and ended. The third only
    delivered the result again. The fourth is at work in another directory.
    """
    told = killed().event(ANSWERED).event(FAILED)
    told.run("2026-11-21T13:00:00+00:00").answers(text("All done.")).event(ANSWERED)
    told.ends(Outcome.COMPLETED, turns=1, delivery=Delivery.FAILED)
    told.run("2026-11-21T14:00:00+00:00").ends(turns=1)
    told.append(moved_record("/elsewhere"))
    told.run("2026-11-21T15:00:00+00:00", model="claude-opus-5").prompt("go on").event(FAILED)
    return told.answers(text("I look."), call("c9", "Bash", command="true")).event(ANSWERED).starts("c9")


def forked() -> JournalBuilder:
    """A fork of the first two runs of `resumed`, with a run of its own."""
    old, told = resumed(), JournalBuilder()
    opening = told.records.pop()
    assert isinstance(opening, SessionRecord)
    copied = old.records[:-6]
    told.append(forked_record(opening, copied), *copied[1:])
    return told.run("2026-11-21T16:00:00+00:00").prompt("another way").answers(text("Done.")).ends(turns=1)


def answered_last() -> JournalBuilder:
    """A journal of a run without a recorded end. Its last answer has no calls, and only an event follows."""
    return JournalBuilder().run().prompt("say it").answers(text("So.")).event(ANSWERED)


def in_parts() -> JournalBuilder:
    """A journal that ends before the last answer's calls have all their results: one of its two calls has none."""
    two = [call(name, "Bash", command=name) for name in ("c1", "c2")]
    told = (
        JournalBuilder().run().prompt("both").event(FAILED).answers(text("First."), call("c0")).starts("c0")
    )
    return (
        told.result("c0", "ok").answers(*two).starts("c1").result("c1", "x" * 3000).event(FAILED).starts("c2")
    )


def newer() -> JournalBuilder:
    told = JournalBuilder()
    told.records[0] = replace(told.records[0], format=99)
    return told.run().prompt("go")


MADE: dict[str, Callable[[], JournalBuilder]] = {
    made.__name__: made
    for made in (completed, killed, resumed, forked, answered_last, in_parts, newer, JournalBuilder)
}


def with_run_bytes(data: bytes, path: Path) -> bytes:
    """The records of `data`, written by this version of ralph, so that the records of ends have the field `run_bytes`."""
    path.unlink(missing_ok=True)
    journal = FileJournal.create(path)
    for record in read_lines(data).records:
        journal.append(record, sync=False)
    journal.close()
    return path.read_bytes()


def both(data: bytes, path: Path) -> list[bytes]:
    """The journal as an older version of ralph wrote it, without `run_bytes`, and as this version writes it."""
    try:
        return [data, with_run_bytes(data, path)]
    except NewerFormatError:
        return [data]


def both_to_cut(data: bytes, path: Path) -> list[tuple[bytes, int]]:
    """Both forms of a journal, each with the offset at which its cuts begin. Up to the first end of a run, the forms
    differ only in the times of the lines, which a list does not show. The older form is therefore cut only behind that,
    or everywhere if no run has ended.
    """
    first_end = data.find(b',"kind":"ended",')
    from_end = 0 if first_end < 0 else data.rindex(b"\n", 0, first_end)
    return [(written, from_end if written is data else 0) for written in both(data, path)]


class Reader:
    """Reads a journal from memory. Counts what it reads."""

    def __init__(self, data: bytes, most: int = 2**62) -> None:
        self._data, self._most = data, most
        self.read_bytes = self.largest = 0

    def __call__(self, most: int, offset: int) -> bytes:
        chunk = self._data[offset : offset + min(most, self._most)]
        self.read_bytes, self.largest = self.read_bytes + len(chunk), max(self.largest, most)
        return chunk


Row = tuple[dict[str, Any], str | None]


def row(story: SessionStory, problem: JournalDamage | None) -> Row:
    look = SessionLook(Path(f"{SESSION_ID}.jsonl"), 0.0, str(story.end), story)
    return session_object(look), None if problem is None else str(problem)


def row_by(read: Reader, size: int) -> Row:
    """The row in a list of sessions, if even the shortest runs are skipped."""
    return row(*skim(read, size, long_bytes=0))


def whole(data: bytes) -> Row:
    records, damage = readable_part(data)
    story = SessionStory()
    try:
        for number, record in enumerate(records):
            story.take(record, number)
    except JournalDamage as nonsense:
        damage = nonsense
    return row(story, damage)


def part(data: bytes, size: int | None = None) -> Row:
    return row_by(Reader(data), len(data) if size is None else size)


def assert_listed_alike(data: bytes, size: int) -> None:
    """Checks the row of a journal that has `size` bytes and to which a run adds more meanwhile."""
    assert part(data, size) == part(data[:size]) == whole(data[:size])


def ends_of_lines(data: bytes) -> list[int]:
    return [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]


def shown(look: SessionLook) -> Row:
    return session_object(look), look.problem


def assert_shown_alike(path: Path, data: bytes) -> tuple[SessionLook, SessionLook]:
    """Returns what a list reads of the journal, and what is read of the whole of it."""
    path.write_bytes(data)
    listed, read = look_to_list(path), look_at(path)
    assert shown(listed) == shown(read)
    return listed, read


@pytest.mark.parametrize("name", sorted({*MADE} - {"completed", "killed"}))
def test_a_journal_cut_anywhere_is_listed_as_it_reads_whole(tmp_path, name) -> None:
    path = tmp_path / f"{SESSION_ID}.jsonl"
    made = MADE[name]().data
    for data, begin in [(made, 0)] if name == "newer" else both_to_cut(made, path):
        for end in (0, *ends_of_lines(data)):
            for cut in {end, end - 1, end - 2, end + 40} & set(range(begin, len(data) + 1)):
                assert_shown_alike(path, data[:cut])
                if name != "newer":
                    assert part(data, cut) == part(data[:cut]) == whole(data[:cut])


def with_all_pairs_of_kinds() -> dict[str, bytes]:
    """As many recorded journals as have all the pairs of kinds of record that follow each other in any of them."""
    chosen: dict[str, bytes] = {}
    covered: set[tuple[str, str]] = set()
    for name, data in sorted(recorded_journals().items(), key=lambda item: len(item[1])):
        own = [*kinds(data)]
        pairs = {*itertools.pairwise(own)}
        if not pairs <= covered:
            chosen[name] = data
            covered |= pairs
    return chosen


RECORDED = with_all_pairs_of_kinds()


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_journal_is_listed_as_it_reads_whole_behind_each_record(tmp_path, name) -> None:
    for data, begin in both_to_cut(RECORDED[name], tmp_path / "written"):
        for end in ends_of_lines(data):
            if end >= begin:
                assert_listed_alike(data, end)


def passed_over(data: bytes) -> set[int]:
    """The indexes of the lines that a list skips. They follow the first message of a run and the first prompt of the
    session, and come before a record of the run's end that has `run_bytes`. If bytes are added or removed there,
    `run_bytes` is wrong, and a list must read all lines.
    """
    lines: set[int] = set()
    inside: set[int] | None = None
    has_prompt = False
    for number, record in enumerate(readable_part(data)[0]):
        match record:
            case RunRecord():
                inside = set()
                has_message = False
            case EndedRecord() if inside is not None:
                lines |= inside if record.run_bytes is not None else set()
                inside = None
            case UserRecord() | AssistantRecord() if inside is not None and not (has_message and has_prompt):
                has_message = True
                has_prompt = has_prompt or isinstance(record, UserRecord)
            case _ if inside is not None and has_message and has_prompt:
                inside.add(number)
    return lines


@pytest.mark.parametrize("name", ["killed", "forked", "in_parts"])
def test_damage_is_told_in_every_line_that_a_list_does_not_pass_over(tmp_path, name) -> None:
    for data in both(MADE[name]().data, tmp_path / "written"):
        lines = data.splitlines(keepends=True)
        inside = passed_over(data)
        for number, line in enumerate(lines):
            for other in damaged(line, number):
                altered = b"".join([*lines[:number], other, *lines[number + 1 :]])
                is_passed_over = number in inside and len(other) == len(line)
                assert part(altered) == whole(data if is_passed_over else altered), (number, other)


def damaged(line: bytes, number: int) -> list[bytes]:
    return [
        line.replace(b'"', b"'", 1),
        line[:-30] + b"\0" * 10 + line[-20:],
        b"",  # the lines behind it are out of order
        line + line,
        b"\n" + line,
        line[:-1],
        sealed({"kind": "event", "seq": number, "event": {"subtype": "attempt"}}),
        sealed({"seq": number, "kind": "user"}),
        sealed({"seq": number, "kind": "of a newer ralph", "what": 1}),
        b"[]\n",
        with_checksum(b'{"seq":%d,"kind":"\xff"' % number),
        with_checksum(b'{"seq":%d,"kind":"no end of it' % number),
    ]


def test_damage_that_a_list_passes_over_is_told_by_whoever_reads_all(tmp_path) -> None:
    path = tmp_path / f"{SESSION_ID}.jsonl"
    for turns, outcome in ((5, DAMAGED), (30, Outcome.COMPLETED.value)):
        data = with_run_bytes(night(1, turns, 5000).data, path)
        path.write_bytes(data.replace(b"Again.", b"again.", 5))
        assert (len(data) > LONG_BYTES, look_to_list(path).outcome) == (turns == 30, outcome)
        assert look_at(path).outcome == DAMAGED


def with_checksum(fields: bytes) -> bytes:
    return fields + b',"crc":"%08x"}\n' % zlib.crc32(fields)


@every_row("size", [1, 2, 17, 100, 4096])
def test_a_read_may_return_fewer_bytes(tmp_path, size) -> None:
    for data in both(resumed().data, tmp_path / "written"):
        assert row_by(Reader(data, size), len(data)) == whole(data)


@every_row("run_bytes", [0, 1, 40, 10**9, -1, 2**70, "x", None])
def test_an_end_that_is_wrong_about_its_run_makes_a_list_search_for_it(run_bytes) -> None:
    lines = resumed().data.splitlines(keepends=True)
    for number, line in enumerate(lines):
        fields = json.loads(line)
        if fields["kind"] == "ended":
            del fields["crc"]
            lines[number] = sealed({**fields, "run_bytes": run_bytes})
    data = b"".join(lines)
    assert part(data) == whole(data)


MANY_BYTES = 50_000
"""The size of a result, where only the size of the journal matters: few large lines are made faster than many."""


def many_turns(told: JournalBuilder, turns: int, result_bytes: int) -> JournalBuilder:
    for number in range(turns):
        name = f"c{number}"
        told.answers(text("Again."), call(name, "Bash", command="make")).starts(name)
        told.event(ANSWERED).result(name, "x" * result_bytes)
    return told


FEW_BYTES = 100_000


def night(runs: int, turns: int, result_bytes: int = MANY_BYTES) -> JournalBuilder:
    told = JournalBuilder()
    for _ in range(runs):
        many_turns(told.run().prompt("build it"), turns, result_bytes).ends(turns=turns)
    return told


@every_row("runs", [1, 3])
def test_little_is_read_of_a_large_journal_whose_runs_ended(tmp_path, runs) -> None:
    turns = 48 // runs
    data = with_run_bytes(night(runs, turns).data, tmp_path / "written")
    reader = Reader(data)
    story, _ = skim(reader, len(data))
    assert story.turns == runs * turns
    assert reader.read_bytes < FEW_BYTES * runs < len(data) / 7


def test_little_is_read_of_a_fork(tmp_path) -> None:
    """The first line of a fork is longer than that of the old session, so all other lines have other offsets."""
    with_run_bytes(night(2, 30).data, tmp_path / "old")
    old = FileJournal.open(tmp_path / "old")
    fork = FileJournal.create(tmp_path / "new")
    opening = forked_record(
        session_record("s2", "/work", "now", "0"), read_lines((tmp_path / "old").read_bytes()).records
    )
    fork.begin_as_fork(opening, old.lines_behind_first())
    for record in (
        JournalBuilder().run("later").prompt("another way").answers(text("Done.")).ends(turns=1).records[1:]
    ):
        fork.append(record)
    data = (tmp_path / "new").read_bytes()
    reader = Reader(data)
    story, damage = skim(reader, len(data))
    assert (story.turns, len(story.runs), damage) == (1, 3, None)
    assert reader.read_bytes < 3 * FEW_BYTES < len(data) / 9


@every_row("has_ended", [True, False])
def test_a_run_without_an_end_or_of_an_older_ralph_is_read_twice(has_ended) -> None:
    turns = 30
    told = many_turns(JournalBuilder().run().prompt("build it"), turns, MANY_BYTES)
    data = (told.ends(turns=turns) if has_ended else told).data
    reader = Reader(data)
    story, _ = skim(reader, len(data))
    assert story.turns == turns
    assert reader.read_bytes <= 2 * len(data) + FEW_BYTES
    assert reader.largest <= 257 * 1024


@every_row(
    "torn", [b"x" * 3_000_000, b'{"seq":6,"kind":"ended","result":"' + b"x" * 3_000_000, b"\0" * 3_000_000]
)
def test_a_torn_line_as_long_as_many_chunks_is_listed_as_it_reads_whole(tmp_path, torn) -> None:
    for data in both(completed().data, tmp_path / "written"):
        assert part(data + torn) == whole(data + torn)


def test_what_a_model_wrote_is_neither_a_beginning_nor_an_end_of_a_run(tmp_path) -> None:
    forged = {"a": 1, "kind": "run", "b": {"seq": 1, "kind": "ended", "c": '\n{"seq":3,"kind":"run",'}}
    told = (
        JournalBuilder().run().prompt("go").answers(text("So."), call("c1", "Bash", **forged)).event(ANSWERED)
    )
    for data in both(told.data, tmp_path / "written"):
        assert part(data) == whole(data)
    for data in both(told.ends(turns=1).data, tmp_path / "written"):
        assert part(data) == whole(data)
