"""A result that reached nobody: the journal says so, people learn how to get it, and a resumed run prints it once
more (P4, P9).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import ToolUse, Turn
from tests.fakes import as_written
from tests.journals.reading import read_lines
from tests.patience import wait_until
from tests.program.faulty import DONE
from tests.program.kept_sessions import listed, only_journal

if TYPE_CHECKING:
    from tests.program.conftest import Ralph

NO_ROOM = "cannot write to standard output: No space left on device"


def last_records(ralph: Ralph) -> list[tuple[str, dict[str, Any]]]:
    """The record of the end, and the records after it about the delivery of the result."""
    records = read_lines(only_journal(ralph).read_bytes()).records
    at = max(at for at, record in enumerate(records) if record.kind == "ended")
    return [(record.kind, as_written(record)) for record in records[at:]]


needs_full_device = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="there is no device that is full"
)


@pytest.mark.sandboxed
@needs_full_device
@pytest.mark.parametrize("form", ["text", "stream-json"])
def test_p4_a_result_that_a_full_disk_does_not_take_is_told_by_the_journal_and_once_more_when_asked_exits_74(
    ralph, ralph_here, serve, form
) -> None:
    server = serve(Turn([ToolUse("Bash", {"command": "echo line >> effects"})]), DONE)
    ran = ralph.to_full_disk("go", "--output-format", form, "--result-file", "result.json").having(74)
    assert json.loads((ralph.cwd / "result.json").read_text())["exit_code"] == 74
    hint, outcome = ran.stderr.splitlines()[-2:]
    session = only_journal(ralph).stem
    assert hint == f"[hint] continue with: ralph --resume {session[:8]}"
    assert outcome.startswith(f"[ralph] io_error (exit 74): {NO_ROOM}")
    [(_, ended), (kind, fields)] = last_records(ralph)
    assert (ended["outcome"], ended["delivered"]) == ("completed", False)
    assert (kind, fields["state"], fields["exit_code"]) == ("delivery", "failed", 74)
    assert fields["errors"] == [NO_ROOM]
    assert listed(ralph_here)[0]["outcome"] == "not delivered"
    assert f"the result was not delivered (exit 74): {NO_ROOM}" in ralph_here("sessions", "show").stdout
    assert NO_ROOM in ralph_here("sessions", "export").stdout

    again = ralph("-c", "--output-format", "json")
    assert (again.code, again.result["result"]) == (0, "All done.")
    assert "ralph delivers its result now, without asking a model" in again.stderr
    assert "no limit is set" not in again.stderr
    assert len(server.requests) == 2, "nobody is asked again"
    assert (ralph.cwd / "effects").read_text() == "line\n"
    assert (listed(ralph_here)[0]["outcome"], listed(ralph_here)[0]["turns"]) == ("completed", 2)
    assert again.result["session_num_turns"] == 2
    assert ralph_here("-c").code == 2, "now it is"


def test_p4_a_result_file_that_cannot_be_written_in_the_end_is_told_by_the_journal_exits_74(
    ralph, ralph_here, serve
) -> None:
    (ralph.cwd / "out").mkdir()
    serve(Turn([ToolUse("Bash", {"command": "rm -r out"})]), DONE)
    ran = ralph("go", "--result-file", "out/result.json", "--output-format", "json", code=74)
    assert (ran.result["terminal_reason"], ran.result["result"]) == ("io_error", "All done.")
    assert "out/result.json" in ran.last_line
    assert any(hint.startswith("continue with: ralph --resume ") for hint in ran.result["hints"])
    assert "[hint] continue with: ralph --resume " in ran.stderr
    assert (last_records(ralph)[-1][1]["state"], listed(ralph_here)[0]["outcome"]) == (
        "failed",
        "not delivered",
    )


def test_p9_a_reader_that_left_keeps_the_code_of_the_work_and_the_journal_knows_exits_0(
    ralph, ralph_here, serve
) -> None:
    serve(DONE)
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    process = ralph.start("go", stdout=write_fd)
    os.close(write_fd)
    assert ralph.finish(process).code == 0
    assert last_records(ralph)[-1] == ("delivery", {"state": "reader_left"})
    assert listed(ralph_here)[0]["outcome"] == "completed"
    assert ralph_here("-c").code == 2, "its reader did not want to know"


def test_p1_p10_killed_before_its_result_was_read_a_session_does_not_say_that_it_was_exits_0(
    ralph, ralph_here, serve
) -> None:
    long = "long " * 16_000  # more than a pipe takes
    server = serve(Turn(long, chunk_chars=0))
    process = ralph.start("go")  # nobody reads
    wait_until(lambda: b'"kind":"ended"' in only_journal(ralph).read_bytes() if journals_of(ralph) else False)
    assert listed(ralph_here)[0]["outcome"] == "running"
    process.kill()
    process.communicate()
    [(kind, ended)] = last_records(ralph)
    assert (kind, ended["outcome"], ended["delivered"]) == ("ended", "completed", False)
    assert listed(ralph_here)[0]["outcome"] == "not delivered"
    assert "it is unknown whether the result was delivered" in ralph_here("sessions", "show").stdout
    ran = ralph("-c")
    assert (ran.code, ran.stdout.strip(), len(server.requests)) == (0, long.strip(), 1)
    assert listed(ralph_here)[0]["outcome"] == "completed"


def journals_of(ralph: Ralph) -> list[Path]:
    return [*ralph.cwd.parent.rglob("*.jsonl")]


def test_p9_results_of_a_driven_run_are_known_to_be_delivered_with_the_last_exits_0(
    ralph, ralph_here, serve, drive
) -> None:
    serve(Turn("one"), Turn("two"))
    driver = drive()
    driver.say("first", "second")
    assert driver.finish().code == 0
    records = read_lines(only_journal(ralph).read_bytes()).records
    kinds = [record.kind for record in records if record.kind in {"run", "ended", "delivery"}]
    assert kinds == ["run", "ended", "run", "ended", "delivery"]
    assert "deliver" not in ralph_here("sessions", "show").stdout
    assert listed(ralph_here)[0]["outcome"] == "completed"
