"""The record of a loop on disk is complete and private, each loop has its folder, and an error says what is wrong."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ralph.loop.record import ALWAYS_KEPT, KEPT_DAYS, FileRecord, LoopStore, RecordError
from ralph.loop.state import IterationRecord, LoopState, iteration_line, state_text
from ralph.loop.values import LoopPlan
from ralph.machine.launcher import PR_SET_DUMPABLE, prctl
from ralph.values.outcome import CannotError, Outcome

STATE = LoopState(LoopPlan("/work", "/work", prompt="\u20ac \udc80"), "2026-11-21T12:00:00+00:00", 4711)


def test_what_was_saved_last_is_loaded(tmp_path) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(STATE)
    later = replace(STATE, elapsed_s=12.5)
    record.save(later)
    assert FileRecord(tmp_path / "0001").load() == later
    assert sorted(file.name for file in record.folder.iterdir()) == ["loop.json"]
    assert stat.S_IMODE(record.path.stat().st_mode) == 0o600


def iteration(number: int, **fields: Any) -> IterationRecord:
    done = IterationRecord(
        *(number, f"s{number}", Outcome.COMPLETED, 0, 1, 0.5, 2.0, 0, (), 0),
        made_progress=True,
        check=None,
    )
    return replace(done, **fields)


def after(count: int) -> LoopState:
    return replace(STATE, iterations=tuple(map(iteration, range(1, count + 1))))


@pytest.mark.skipif(sys.platform != "linux", reason="counts written bytes in /proc")
def test_an_iteration_writes_as_much_after_thousands_of_them_as_at_first(tmp_path) -> None:
    def written(count: int) -> int:
        record = FileRecord(tmp_path / f"{count:04d}")
        record.save(after(count))
        before, more = _written_bytes(), after(count + 1)
        for each in (replace(more, iterations=more.iterations[:-1]), more, more):
            record.save(each)
        return _written_bytes() - before

    assert written(4_000) < 1.1 * written(10)


def _written_bytes() -> int:
    prctl(PR_SET_DUMPABLE, 1)  # an ordinary user cannot ask about a process that is not
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def test_iterations_are_appended_by_each_process_and_the_last_may_change(tmp_path) -> None:
    FileRecord(tmp_path / "0001").save(after(2))
    begins = (tmp_path / "0001" / "iterations.jsonl").read_bytes()
    last = iteration(3, commits=1)
    FileRecord(tmp_path / "0001").save(after(3))
    changed_later = replace(STATE, iterations=(*after(2).iterations, last))
    FileRecord(tmp_path / "0001").save(changed_later)
    assert FileRecord(tmp_path / "0001").load() == changed_later
    lines = (tmp_path / "0001" / "iterations.jsonl").read_bytes()
    assert lines.startswith(begins)
    assert lines.endswith(iteration_line(iteration(3)) + iteration_line(last))
    assert stat.S_IMODE((tmp_path / "0001" / "iterations.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "left", [b"", iteration_line(iteration(3)), iteration_line(iteration(3))[:-9], b"\0\0"]
)
def test_a_line_that_a_killed_process_did_not_count_is_left_out_and_overwritten(tmp_path, left) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(after(2))
    with (record.folder / "iterations.jsonl").open("ab") as file:
        file.write(left)
    again = FileRecord(record.folder)
    assert again.load() == after(2)
    other = replace(STATE, iterations=(*after(2).iterations, iteration(3, reason="other")))
    again.save(other)
    assert FileRecord(record.folder).load() == other


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        pytest.param(lambda lines: lines[:-9], "iterations.jsonl is damaged: it has .* bytes, and", id="cut"),
        pytest.param(
            lambda lines: lines.replace(b"s1", b'"1'), "iterations.jsonl is damaged in line 1", id="text"
        ),
        pytest.param(
            lambda lines: lines.replace(b'"turns": 1', b'"turns": []'),
            "damaged in line 1: Expected `int`, got `array` - at `\\$.turns`",
            id="value",
        ),
    ],
)
def test_a_damaged_line_is_an_error_that_names_it(tmp_path, break_it, message) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(after(2))
    lines = record.folder / "iterations.jsonl"
    lines.write_bytes(break_it(lines.read_bytes()))
    with pytest.raises(RecordError, match=message) as caught:
        FileRecord(record.folder).load()
    assert caught.value.outcome is Outcome.IO_ERROR


def test_a_record_of_an_older_ralph_holds_its_iterations_and_is_saved_as_a_new_one(tmp_path) -> None:
    record = FileRecord(tmp_path / "0001")
    record.folder.mkdir()
    record.path.write_text(json.dumps({**json.loads(state_text(after(2))), "format": 1}))
    assert record.load() == after(2)
    FileRecord(record.folder).save(after(3))
    assert FileRecord(record.folder).load() == after(3)
    told = json.loads(record.path.read_text())
    assert (told["format"], told["iterations"]) == (2, []), "an older ralph would begin at iteration 1"


def test_iterations_whose_file_was_removed_are_written_anew(tmp_path) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(after(2))
    (record.folder / "iterations.jsonl").unlink()
    record.save(after(2))
    assert FileRecord(record.folder).load() == after(2)


def test_it_is_saved_anew_where_somebody_removed_the_folder(tmp_path) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(STATE)
    for file in record.folder.iterdir():
        file.unlink()
    record.folder.rmdir()
    record.save(STATE)
    assert record.load() == STATE


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path) -> None:
    (tmp_path / "0001").mkdir()
    left = tmp_path / "0001" / ".ralph-0123456789ab.tmp"
    left.write_text("half")
    FileRecord(tmp_path / "0001").save(STATE)
    assert not left.exists()


def test_a_link_or_a_pipe_in_its_place_is_replaced_and_not_written_through(tmp_path) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(STATE)
    other = tmp_path / "other"
    other.write_text("mine")
    record.path.unlink()
    record.path.symlink_to(other)
    record.save(STATE)
    assert other.read_text() == "mine"
    record.path.unlink()
    os.mkfifo(record.path)
    record.save(STATE)
    assert record.load() == STATE


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(state_text(STATE)), **fields})


@pytest.mark.parametrize(
    ("text", "outcome", "message"),
    [
        pytest.param("", Outcome.IO_ERROR, "is damaged", id="empty"),
        pytest.param(state_text(STATE)[:-9], Outcome.IO_ERROR, "is damaged", id="cut"),
        *(
            pytest.param(text, Outcome.IO_ERROR, "is damaged: ", id=text)
            for text in ("{", "[]", "null", '{"plan": {}}')
        ),
        pytest.param("[" * 100_000, Outcome.IO_ERROR, "is damaged", id="deep"),
        pytest.param(b"\xff", Outcome.IO_ERROR, "is damaged: it is not UTF-8", id="no text"),
        pytest.param(
            changed(pid="x"),
            Outcome.IO_ERROR,
            r"is damaged: Expected `int`, got `str` - at `\$.pid`",
            id="kind",
        ),
        pytest.param(changed(elapsed_s=math.nan), Outcome.IO_ERROR, "is damaged: NaN is not JSON", id="NaN"),
        pytest.param(
            changed(updated_at="2026-11-28T20:00:00"),
            Outcome.IO_ERROR,
            r"is damaged: Expected `str` matching regex .* - at `\$.updated_at`",
            id="no zone",
        ),
        pytest.param(
            changed(updated_at="2026-99-28T20:00:00Z"),
            Outcome.IO_ERROR,
            r"is damaged: month must be in 1\.\.12",
            id="no month",
        ),
        pytest.param(changed(format=3), Outcome.CONFIG, "has format 3: a newer ralph wrote it", id="newer"),
    ],
)
def test_one_that_cannot_be_read_is_an_error_that_says_why(tmp_path, text, outcome, message) -> None:
    record = FileRecord(tmp_path / "0001")
    if text is not None:
        record.save(STATE)
        record.path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecordError, match=message) as caught:
        record.load()
    assert caught.value.outcome is outcome
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["pipe", "directory", "link"])
def test_what_is_no_file_is_not_waited_for_and_not_followed(tmp_path, kind) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(STATE)
    record.path.rename(tmp_path / "loop.json")
    match kind:
        case "pipe":
            os.mkfifo(record.path)
        case "directory":
            record.path.mkdir()
        case _:
            record.path.symlink_to(tmp_path / "loop.json")
    with pytest.raises(RecordError) as caught:
        record.load()
    assert caught.value.outcome is Outcome.IO_ERROR


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path: Path, monkeypatch) -> None:
    """The system's may hold loops of the user, which a test would move away."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture
def store(tmp_path: Path, work: Path) -> LoopStore:
    return LoopStore.for_user({"HOME": str(tmp_path)}, work)


def test_each_loop_has_a_private_folder_and_the_last_one_with_a_record_is_the_newest(store) -> None:
    first, second = store.begin(), store.begin()
    second.save(STATE)
    first.save(STATE)
    store.begin()  # killed before its first record
    os.utime(second.path, (1, 1))  # whatever the clock says
    assert store.newest().path == second.path
    assert stat.S_IMODE(second.folder.stat().st_mode) == 0o700
    assert store.place.parent == store.roots[0]


def test_a_new_loop_removes_an_earlier_one_only_if_many_followed_it_and_it_is_old(store) -> None:
    folders = [store.begin().folder for _ in range(ALWAYS_KEPT + 2)]
    assert all(folder.exists() for folder in folders)
    long_ago_s = folders[-1].stat().st_mtime - KEPT_DAYS * 86_400 - 60
    for folder in (folders[1], folders[-1]):
        os.utime(folder, (long_ago_s, long_ago_s))
    store.begin()
    assert [folder.exists() for folder in folders] == [True, False] + [True] * ALWAYS_KEPT


def test_a_directory_has_one_place_by_whatever_name_and_another_one_another(tmp_path, work, store) -> None:
    (tmp_path / "link").symlink_to(work)
    (tmp_path / "other").mkdir()
    environment = {"HOME": str(tmp_path)}
    assert LoopStore.to_read(environment, tmp_path / "link").place == store.place
    assert LoopStore.to_read(environment, tmp_path / "other").place != store.place


@pytest.mark.parametrize(
    ("environment", "root"),
    [
        ({"RALPH_STATE_DIR": "{}/mine", "HOME": "{}"}, "mine/loops"),
        ({"XDG_STATE_HOME": "{}/xdg", "HOME": "{}"}, "xdg/ralph/loops"),
        ({"HOME": "{}"}, ".local/state/ralph/loops"),
    ],
)
def test_it_lies_beside_the_sessions(tmp_path, work, environment, root) -> None:
    told = {name: value.format(tmp_path) for name, value in environment.items()}
    store = LoopStore.for_user(told, work)
    assert store.roots[0] == tmp_path / root
    assert (store.roots[0].parent / "sessions").is_dir()


def test_no_record_is_made_where_a_link_in_the_work_leads(tmp_path, work) -> None:
    (tmp_path / "elsewhere").mkdir()
    (work / "s").symlink_to(tmp_path / "elsewhere")
    for place in (work / "s", work / "state"):
        with pytest.raises(CannotError, match="commands may write where"):
            LoopStore.for_user({"RALPH_STATE_DIR": str(place)}, work)
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_without_a_home_it_lies_within_the_temporary_place_which_is_told(tmp_path, work, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    store = LoopStore.for_user({}, work)
    assert store.roots[0] == tmp_path / f"ralph-sessions-{os.getuid()}" / "loops"
    assert store.notice is not None
    assert store.notice.startswith("the loop's record and its sessions are kept in ")
    store.begin().save(STATE)
    again = LoopStore.to_read({"HOME": str(tmp_path / "back")}, work)
    assert again.newest().load() == STATE


def test_a_home_that_is_a_file_is_none(tmp_path, work, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    home = tmp_path / "file"
    home.write_text("")
    store = LoopStore.for_user({"HOME": str(home)}, work)
    with pytest.raises(RecordError, match=r"^there is no loop in "):
        store.newest()
    store.begin().save(STATE)
    assert LoopStore.to_read({"HOME": str(home)}, work).newest().load() == STATE


def test_where_nothing_is_nothing_is_made(tmp_path, work) -> None:
    store = LoopStore.to_read({"HOME": str(tmp_path)}, work)
    with pytest.raises(RecordError, match=rf"^there is no loop in {work} ") as caught:
        store.newest()
    assert caught.value.outcome is Outcome.USAGE
    assert not (tmp_path / ".local").exists()


def store_of(home: Path, directory: Path) -> LoopStore:
    directory.mkdir(exist_ok=True)
    return LoopStore.for_user({"HOME": str(home)}, directory)


def test_the_loops_of_the_only_other_directory_are_taken_over_and_once(tmp_path, store) -> None:
    store.begin().save(STATE)
    store.begin().save(STATE)
    (store.place / "lock").touch()
    here = store_of(tmp_path, tmp_path / "here")
    (here.place / "lock").touch()
    here.take_over()
    here.take_over()
    assert here.newest().folder == here.place / "0002"
    assert not store.place.exists()
    assert {path.name for path in here.place.iterdir()} == {"0001", "0002", "lock"}


def test_loops_of_several_directories_are_not_guessed_about(tmp_path, store) -> None:
    here = store_of(tmp_path, tmp_path / "here")
    here.take_over()  # nobody has a loop
    store.begin().save(STATE)
    store_of(tmp_path, tmp_path / "third").begin().save(STATE)
    with pytest.raises(RecordError, match="the loops of 2 directories") as refused:
        here.take_over()
    assert refused.value.outcome is Outcome.USAGE
    here.begin().save(STATE)
    here.take_over()  # its own loops come first
    assert [len(one.all_records()) for one in (here, store)] == [1, 1]
