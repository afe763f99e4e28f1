"""`ralph loop` and its surroundings: credentials, readers that leave, and full disks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ralph.mock_api import Turn
from tests.patience import PATIENCE_S
from tests.program.conftest import KEY, loop_folder, loop_lines, loop_record
from tests.program.machine.test_disk import in_small_disk, needs_mounts
from tests.program.model_answers import bash, write


def test_the_key_reaches_neither_check_nor_git_nor_any_file_or_line_of_the_loop(
    ralph, ralph_here, checkout, iterations, tmp_path
) -> None:
    """The check finds the key in a file, and the model writes it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    spy = programs / "git"
    spy.write_text(f'#!/bin/sh\nenv >> "{tmp_path}/of-git"\nexec {shutil.which("git")} "$@"\n')
    spy.chmod(0o755)
    ralph.environment["PATH"] = f"{programs}:{ralph.environment['PATH']}"
    (tmp_path / "key.txt").write_text(KEY)
    server = iterations(
        [write("one", "1\n"), Turn(f"The key is {KEY}.")],
        [bash("cat ../key.txt > two"), Turn(f"It is {KEY}.")],
    )
    check = f"env > '{tmp_path}/of-check'; cat ../key.txt; echo; test -e two"
    ran = ralph("loop", "go", "--until", check, "--commit", "--sandbox", "off")
    assert ran.code == 0
    seen_by_git, seen_by_check = (tmp_path / "of-git").read_text(), (tmp_path / "of-check").read_text()
    assert "GIT_WORK_TREE=" in seen_by_git
    assert "HOME=" in seen_by_check
    assert KEY not in seen_by_git + seen_by_check
    assert "ANTHROPIC_API_KEY" not in seen_by_git + seen_by_check
    kept = {path.name: path.read_text() for path in loop_folder(ralph).iterdir()}
    assert kept["check.log"] == "[redacted]\n"
    of_checks = {"check.log", "check-0001.txt", "check-0002.txt"}
    assert set(kept) == {
        *of_checks,
        "iterations.jsonl",
        "live.json",
        "log.jsonl",
        "log.txt",
        "loop.json",
        "prompt.md",
    }
    assert [name for name, text in kept.items() if KEY in text] == []
    assert KEY not in "\n".join(loop_lines(ran))
    assert KEY not in str(server.requests[0].json()["messages"])
    assert KEY not in ralph_here("loop", "--status").stdout


def test_quiet_lines_leave_ends_and_what_went_wrong_and_no_key_that_only_the_settings_name_exits_0(
    ralph, checkout, iterations
) -> None:
    ralph.environment["GATE"] = "open-sesame-17"
    server = iterations([bash("git switch -qc open-sesame-17; touch one")])
    ralph.user_file.write_text(
        f'[[targets]]\nname = "gate"\nmodel = "claude-opus-5-5"\nbase_url = "{server.base_url}"\napi_key_env = ["GATE"]\n'
    )
    ran = ralph("loop", "go", "--max-iterations", "1", "--quiet")
    assert ran.code == 0, ran.stderr
    [branch, iteration, end] = loop_lines(ran)
    assert branch.startswith("iteration 1 went to branch [redacted]; before it was ")
    assert iteration.startswith("iteration 1 of 1: completed, ")
    assert end.startswith("completed: 1 iteration is done; ")
    assert "open-sesame" not in ran.stderr


@needs_mounts
def test_a_full_disk_under_the_loops_record_ends_it_with_74_and_loses_no_work(
    ralph, iterations, tmp_path
) -> None:
    place = Path(ralph.environment["HOME"], ".local", "state", "ralph", "loops")
    iterations([bash(f"echo 1 > one; head -c 400000 /dev/zero > {place}/full")])
    place.mkdir(parents=True)
    small = "mount -t tmpfs -o size=64k tmpfs"
    ran = in_small_disk(
        ralph,
        small,
        place,
        "loop",
        "go",
        "--sandbox",
        "off",
        after=f"rm {place}/full; cp -r {place} {tmp_path}/kept",
    )
    assert ran.code == 74
    assert "Traceback" not in ran.stderr
    assert loop_lines(ran)[-1].startswith("io_error (exit 74): ")
    assert "No space left on device" in loop_lines(ran)[-1]
    assert str(place) in loop_lines(ran)[-1]
    assert (ralph.cwd / "one").read_text() == "1\n"
    # When the disk has room again, the loop goes on. It did not see the iteration end, but counts it.
    place.rmdir()
    shutil.copytree(tmp_path / "kept", place)
    again = ralph("loop", "--continue", "--max-iterations", "1")
    assert again.code == 0, again.stderr
    assert [record["number"] for record in loop_record(ralph)["iterations"]] == [1]


def test_a_reader_of_both_outputs_that_leaves_after_a_line_changes_nothing(ralph, iterations) -> None:
    server = iterations([bash("echo 1 >> log")])
    reader, writer = os.pipe()
    process = ralph.start("loop", "go", "--max-iterations", "1", stdout=writer, stderr=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as lines:
        assert lines.readline().startswith(b"[loop] iteration 1 of 1, session ")
    assert process.wait(PATIENCE_S) == 0
    assert ((ralph.cwd / "log").read_text(), server.request_count) == ("1\n", 2)


def test_closed_standard_error_and_input_change_nothing(ralph, iterations) -> None:
    iterations([bash("echo 1 >> log")])
    arguments = [
        "sh",
        "-c",
        f"exec {sys.executable} -m ralph loop -p go --max-iterations 1 2>&- >/dev/null <&-",
    ]
    ran = subprocess.run(arguments, cwd=ralph.cwd, env=ralph.environment, timeout=PATIENCE_S, check=False)
    assert ran.returncode == 0
    assert loop_record(ralph)["ended"]["exit_code"] == 0
    assert (ralph.cwd / "log").read_text() == "1\n"
