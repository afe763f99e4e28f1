"""The content of a page that was gathered from recorded journals and old loop records."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from ralph.conversation.journal_lines import line_of
from ralph.loop.record import LoopStore
from ralph.loop.state import IterationRecord, LoopState, state_text
from ralph.loop.values import CheckResult, LoopEnd, LoopPlan
from ralph.pages.command import find_subject, gather
from ralph.pages.content import _LONGEST_SHAPE_CHARS, CheckRun, EntryKind, Excerpts, StretchKind
from ralph.sessions.looking import look_at
from ralph.sessions.store import SessionStore
from ralph.values.outcome import Outcome
from ralph.values.redaction import Redactor
from tests.fakes import call, text
from tests.git.repositories import committed
from tests.journals.reading import readable_part
from tests.rows import every_row
from tests.sessions.session_journals import SESSION_ID, JournalBuilder, completed
from tests.sessions.test_skimming import forked

if TYPE_CHECKING:
    from ralph.pages.content import Section

JOURNALS = Path(__file__).parent.parent / "journals"
BEGAN_S = datetime(2026, 11, 21, 12, 0, 1, tzinfo=UTC).timestamp()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "work").mkdir()
    return {"RALPH_STATE_DIR": str(tmp_path / "state"), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}


def work_of(environment: dict[str, str], tmp_path: Path, what: str | None = None) -> Section:
    directory = tmp_path / "work"
    (section,) = gather(find_subject(what, directory, environment, None), environment, None).content.sections
    return section


def keep(environment: dict[str, str], tmp_path: Path, data: bytes, name: str = SESSION_ID) -> Path:
    path = SessionStore.for_user(environment).place_of(tmp_path / "work") / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def with_times(data: bytes, *, step_s: float = 1.0) -> bytes:
    """The journal as if its lines had been written at even distances."""
    records, _ = readable_part(data)
    return b"".join(line_of(at, record, BEGAN_S + at * step_s) for at, record in enumerate(records))


@every_row("name", sorted(path.stem for path in JOURNALS.glob("*.jsonl")))
def test_a_page_counts_as_sessions_ls_does(name: str, tmp_path_factory) -> None:
    tmp_path = tmp_path_factory.mktemp("page")
    (tmp_path / "work").mkdir()
    environment = {"RALPH_STATE_DIR": str(tmp_path / "state"), "PATH": os.environ["PATH"]}
    journal = (JOURNALS / f"{name}.jsonl").read_bytes()
    look = look_at(keep(environment, tmp_path, journal, name))
    section = work_of(environment, tmp_path)
    last = look.story.runs[-1].ended
    assert section.outcome == ("killed" if last is None else last.outcome)
    assert section.turns == look.story.turns
    assert section.cost_usd == pytest.approx(look.story.cost_usd)
    assert [part.is_copied for part in section.parts] == [run.is_copied for run in look.story.runs]
    has_times = b',"at":' in journal
    assert any("without the times" in note for note in section.notes) is not has_times
    if section.costs:
        assert section.costs[-1].value == pytest.approx(section.cost_usd)
    entries = [entry for part in section.parts for entry in part.entries]
    assert len({entry.id for entry in entries}) == len(entries)
    named = {mark.entry for part in section.parts for mark in part.marks}
    named |= {stretch.entry for part in section.parts for stretch in part.stretches}
    assert named <= {None, *(entry.id for entry in entries)}


def test_the_times_of_lines_place_the_calls_and_the_answers(environment, tmp_path) -> None:
    keep(environment, tmp_path, with_times(completed().data))
    section = work_of(environment, tmp_path)
    (part,) = section.parts
    assert part.began_s == BEGAN_S + 1
    assert not any("without the times" in note for note in section.notes)
    kinds = [(one.kind, one.label) for one in part.stretches]
    (test,) = [one for one in part.stretches if one.label == "Bash: pytest -q"]
    assert (test.kind, test.ended_s - test.began_s) == (StretchKind.TOOL, 1.0)
    said = {entry.id for entry in part.entries if entry.kind is EntryKind.TEXT}
    assert said & {one.entry for one in part.stretches if one.kind is StretchKind.MODEL}
    assert section.costs
    assert (StretchKind.WAITING, "waiting before a retry") in kinds
    titles = [entry.title for entry in part.entries if entry.kind is EntryKind.CALL]
    assert titles == ["Bash: pytest -q", "Read: a.py"]
    failed = next(entry for entry in part.entries if entry.title == "Bash: pytest -q")
    assert (failed.is_error, failed.text) == (True, "pytest -q")
    assert (failed.result or "").endswith("Exit code 1")
    assert {count.name: count.number for count in section.counts} == {"retries": 1, "calls with an error": 1}


def test_what_a_fork_copied_is_no_part_of_its_costs_and_its_time(environment, tmp_path) -> None:
    keep(environment, tmp_path, with_times(forked().data))
    section = work_of(environment, tmp_path)
    *copied, own = section.parts
    assert [part.is_copied for part in section.parts] == [*[True] * len(copied), False]
    assert copied
    assert (section.costs, section.began_s) == ((), own.began_s), "its own run records no attempt"


def test_long_results_are_cut_where_that_is_said_and_keep_both_ends(environment, tmp_path) -> None:
    told = JournalBuilder().run().prompt("look")
    body = "begin " + "x" * 200_000 + " end"
    told.answers(call("c1", "Bash", command="seq 1")).starts("c1").result("c1", body).answers(text("Done."))
    keep(environment, tmp_path, told.ends().data)
    (part,) = work_of(environment, tmp_path).parts
    (entry,) = [entry for entry in part.entries if entry.kind is EntryKind.CALL]
    assert entry.result is not None
    assert entry.result.startswith("begin x")
    assert entry.result.endswith("x end")
    assert f"{entry.cut_chars:,} characters are left out here" in entry.result
    assert entry.cut_chars > 100_000
    assert entry.shown_by == f"ralph sessions export {SESSION_ID}"


def test_a_title_shows_no_beginning_of_a_credential_behind_a_long_gap() -> None:
    secret = "sk-ant-" + "s3cr3t" * 20
    for redactor in (Redactor([secret]), Redactor()):
        excerpts = Excerpts(redactor)
        for gap in (700, 760, _LONGEST_SHAPE_CHARS, 800 + _LONGEST_SHAPE_CHARS - 60):
            assert "s3cr3t" not in excerpts.line("a" + " " * gap + secret)


@every_row(("beginning", "is_known"), [("sk-ant-", True), ("sk-ant-", False), ("", True)])
def test_no_part_of_a_credential_is_left_at_a_cut(
    beginning: str, is_known: bool, environment, tmp_path
) -> None:
    secret = beginning + "s3cr3t" * 20
    environment = environment | ({"ANTHROPIC_API_KEY": secret} if is_known else {})
    told = JournalBuilder().run().prompt("look")
    told.answers(call("c1", "Bash", command="env")).starts("c1").result("c1", f"{secret} " * 5000)
    keep(environment, tmp_path, told.answers(text("Done.")).ends().data)
    assert "s3cr3t" not in repr(work_of(environment, tmp_path))
    assert "[redacted]" in repr(work_of(environment, tmp_path))


def test_a_known_credential_that_is_a_number_in_a_record_is_not_left_at_a_cut(environment, tmp_path) -> None:
    environment["APP_PASSWORD"] = "7391" * 15
    numbers = [int(environment["APP_PASSWORD"])] * 5000
    told = JournalBuilder().run().prompt("look").answers(call("c1", "Bash", command="x", numbers=numbers))
    keep(environment, tmp_path, told.ends().data)
    assert "7391" not in repr(work_of(environment, tmp_path))
    assert "[redacted]" in repr(work_of(environment, tmp_path))


def old_record(**more: Any) -> LoopState:
    plan = LoopPlan("/gone/work", "/gone/work", prompt="Do it all.", until="make test")
    one = IterationRecord(
        1,
        SESSION_ID,
        Outcome.COMPLETED,
        0,
        2,
        0.5,
        60.0,
        1,
        ("a\nb.py",),
        1,
        made_progress=True,
        check="passed",
    )
    end = LoopEnd(Outcome.COMPLETED, 0, "the check passes")
    moment = "2026-11-21T12:00:00+00:00"
    last = CheckResult(0, "3 passed")
    return LoopState(
        plan, moment, 4711, updated_at=moment, iterations=(one,), last_check=last, ended=end, **more
    )


@every_row(
    ("given", "said", "shown"),
    [
        (
            {"until": "x"},
            {"check": "passed"},
            CheckRun("passed", has_passed=True, output="kept", name="check"),
        ),
        (
            {"until": "x", "gate": "y"},
            {"check": None, "gate": "failed (exit 1)"},
            CheckRun("failed (exit 1)", has_passed=False, output="kept", name="gate"),
        ),
        (
            {"gate": "y", "plan": "P.md"},
            {"gate": "passed", "open_tasks": 2},
            CheckRun("passed, 2 open tasks", has_passed=True, output="kept", name="gate"),
        ),
        (
            {"plan": "P.md"},
            {"open_tasks": 1},
            CheckRun("1 open task", has_passed=False, output="", name="plan"),
        ),
        ({"plan": "P.md"}, {}, CheckRun("no task at all", has_passed=False, output="", name="plan")),
        ({}, {}, None),
    ],
)
def test_an_iteration_shows_the_verdict_that_decided(
    tmp_path_factory, given: dict[str, Any], said: dict[str, Any], shown: CheckRun | None
) -> None:
    place = tmp_path_factory.mktemp("page")
    (place / "work").mkdir()
    environment = {"RALPH_STATE_DIR": str(place / "state"), "PATH": os.environ["PATH"]}
    state = old_record()
    one = replace(state.iterations[0], **{"check": None, **said})
    record = LoopStore.for_user(environment, place / "work").begin()
    plan = replace(state.plan, directory=str(place / "work"), **{"until": None, **given})
    record.save(replace(state, plan=plan, iterations=(one,), last_check=None))
    record.keep_check(1, "kept")
    (part,) = work_of(environment, place).parts
    assert part.check == shown


def test_a_record_of_an_older_ralph_whose_session_is_deleted_is_shown_with_what_it_has(
    environment, tmp_path
) -> None:
    record = LoopStore.for_user(environment, tmp_path / "work").begin()
    fields = {**json.loads(state_text(old_record())), "format": 1}
    for name in ("started_at", "ended_at", "check_s", "head_before", "head_after"):
        del fields["iterations"][0][name]
    del fields["waits"]
    record.path.write_text(json.dumps(fields))
    section = work_of(environment, tmp_path)
    (part,) = section.parts
    assert (part.turns, part.cost_usd, part.outcome, part.began_s) == (2, 0.5, "completed", None)
    assert part.check is not None
    assert (part.check.words, part.check.has_passed, part.check.output) == ("passed", True, "3 passed")
    assert part.problem is not None
    assert "is not any more" in part.problem or "was deleted" in part.problem
    assert [file.path for file in section.files] == ["a\nb.py"]
    assert any("not in a git checkout" in note for note in section.notes)


def test_a_page_of_a_directory_shows_the_session_of_an_iteration_in_its_loop_alone(
    environment, tmp_path
) -> None:
    keep(environment, tmp_path, completed().data)
    state = old_record()
    plan = replace(state.plan, directory=str(tmp_path / "work"))
    LoopStore.for_user(environment, tmp_path / "work").begin().save(replace(state, plan=plan))
    assert work_of(environment, tmp_path, ".").is_loop


def test_a_damaged_journal_of_a_loop_is_told_beside_the_page(environment, tmp_path) -> None:
    lines = completed().data.splitlines(keepends=True)
    keep(environment, tmp_path, b"".join([lines[0], lines[1].replace(b"run", b"ran"), *lines[2:]]))
    LoopStore.for_user(environment, tmp_path / "work").begin().save(old_record())
    gathered = gather(find_subject(None, tmp_path / "work", environment, None), environment, None)
    assert gathered.exit_code == 74
    assert "line 2 does not match its checksum" in gathered.content.missing[0]
    (section,) = gathered.content.sections
    assert "line 2 does not match its checksum" in (section.parts[0].problem or "")
    assert not any("checksum" in note for note in section.notes)  # the page has the problems of parts


@pytest.mark.parametrize("kind", ["loop", "session"])
def test_a_page_runs_no_filter_that_commands_of_its_work_could_write(
    environment, tmp_path, kind: str
) -> None:
    (tmp_path / "work").rmdir()
    repository = committed(tmp_path / "work", tmp_path / "home")
    repository.write("a.txt", "changed, and of another size")
    repository.write(".gitattributes", "* filter=evil\n")
    added = tmp_path / "added"
    added.mkdir()
    (added / "shared").write_text(f'[filter "evil"]\n\tclean = "touch {tmp_path}/ran; cat"\n')
    (tmp_path / ".gitconfig").write_text(f"[include]\n\tpath = {added}/shared\n")
    if kind == "loop":
        state = old_record()
        plan = replace(state.plan, directory=str(repository.top), added_directories=(str(added),))
        LoopStore.for_user(environment, repository.top).begin().save(replace(state, plan=plan))
    else:
        told = JournalBuilder(SESSION_ID, cwd=str(repository.top)).run(writable=(str(added),)).prompt("go")
        keep(environment, tmp_path, told.answers(text("Done.")).ends().data)
    assert ".gitattributes" in {file.path for file in work_of(environment, tmp_path).files}
    assert not (tmp_path / "ran").exists()
