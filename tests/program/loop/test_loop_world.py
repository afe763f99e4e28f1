"""`ralph loop` and its surroundings: credentials, readers that leave, and full disks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ralph.mock_api import Turn
from tests.patience import PATIENCE_S
from tests.processes.scripts import before_git, script
from tests.program.conftest import KEY, loop_folder, loop_lines, loop_record
from tests.program.machine.test_disk import in_small_disk, needs_mounts
from tests.program.model_answers import bash, write


def test_the_key_reaches_neither_check_nor_git_nor_any_file_or_line_of_the_loop(
    ralph, ralph_here, checkout, iterations, tmp_path
) -> None:
    """The check finds the key in a file, and the model writes it."""
    before_git(ralph.environment, tmp_path / "bin", f'env >> "{tmp_path}/of-git"')
    (tmp_path / "key.txt").write_text(KEY)
    server = iterations(
        [write("one", "1\n"), Turn(f"The key is {KEY}.")],
        [bash("cat ../key.txt > two"), Turn(f"It is {KEY}.")],
    )
    check = f"env > '{tmp_path}/of-check'; cat ../key.txt; echo; test -e two"
    ran = ralph("loop", "go", "--until", check, "--commit", "--sandbox", "off", code=0)
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


def test_the_keys_that_a_program_prints_reach_no_file_and_no_line_of_the_loop(
    ralph, ralph_here, checkout, iterations, tmp_path
) -> None:
    """Each run of the program prints another key. The check finds them all, also before the first iteration."""
    del ralph.environment["ANTHROPIC_API_KEY"]
    another = f'n=$(cat "{tmp_path}/keys" 2>/dev/null | wc -l); echo corp-key-$n-of-night | tee -a "{tmp_path}/keys"'
    program = script(Path(ralph.environment["HOME"], "bin", "vault"), another)
    own = Path(ralph.environment["HOME"], ".claude", "settings.json")
    own.parent.mkdir(exist_ok=True)
    own.write_text(f'{{"apiKeyHelper": "{program}"}}')
    first, second = (
        Turn("Known: " + " ".join(f"corp-key-{number}-of-night" for number in range(known)))
        for known in (2, 3)
    )
    iterations([write("one", "1\n"), first], [bash("cat ../keys > two"), second])
    check = "cat ../keys; test -e two"
    ran = ralph(
        *(
            "loop",
            "go",
            "--until",
            check,
            "--commit",
            "--sandbox",
            "off",
            "--report",
            f"{tmp_path}/page.html",
        ),
        code=0,
    )
    assert len((tmp_path / "keys").read_text().split()) == 3, "one of the loop, and one of each iteration"
    kept = {path.name: path.read_text() for path in loop_folder(ralph).iterdir()}
    kept["page"] = (tmp_path / "page.html").read_text()
    kept["status"] = ralph_here("loop", "--status").stdout
    kept["lines"] = ran.stdout + ran.stderr
    kept["message"] = checkout.git("log", "-1", "--format=%B")
    assert kept["check.log"] == "[redacted]\n" * 3
    assert kept["check-0001.txt"].count("[redacted]") >= 2
    assert [name for name, text in kept.items() if "of-night" in text] == []


def test_secrets_that_only_the_options_name_are_known_to_the_first_check(ralph, iterations, tmp_path) -> None:
    server = iterations()
    (tmp_path / "secrets").write_text("corp-mcp-token path-0123456789-abcdefghij")
    address = f"{server.base_url}/path-0123456789-abcdefghij"
    servers = {"s": {"command": "true", "env": {"CORP_TOKEN": "corp-mcp-token"}}}
    ran = ralph(
        *("loop", "go", "--until", "cat ../secrets; false", "--sandbox", "off", "--base-url", address),
        *("--mcp-config", json.dumps({"mcpServers": servers}), "--max-iterations", "1"),
    )
    assert ran.code == 78, "that server does not start, after the check"
    kept = {path.name: path.read_text() for path in loop_folder(ralph).iterdir()}
    assert kept["check.log"] == "[redacted] [redacted]"
    kept["loop.json"] = str({**loop_record(ralph), "plan": "has the options, for --continue"})
    assert [name for name, text in kept.items() if "corp-mcp" in text or "abcdefghij" in text] == []


def test_quiet_lines_leave_ends_and_what_went_wrong_and_no_key_that_only_the_settings_name_exits_0(
    ralph, checkout, iterations
) -> None:
    ralph.environment["GATE"] = "open-sesame-17"
    server = iterations([bash("git switch -qc open-sesame-17; touch one")])
    ralph.user_file.write_text(
        f'[[targets]]\nname = "gate"\nmodel = "claude-opus-5-5"\nbase_url = "{server.base_url}"\napi_key_env = ["GATE"]\n'
    )
    ran = ralph("loop", "go", "--max-iterations", "1", "--quiet", code=0)
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
    ).having(74)
    assert "Traceback" not in ran.stderr
    assert loop_lines(ran)[-1].startswith("io_error (exit 74): ")
    assert "No space left on device" in loop_lines(ran)[-1]
    assert str(place) in loop_lines(ran)[-1]
    assert (ralph.cwd / "one").read_text() == "1\n"
    # When the disk has room again, the loop continues. It did not see the iteration end, but counts it.
    place.rmdir()
    shutil.copytree(tmp_path / "kept", place)
    ralph("loop", "--continue", "--max-iterations", "1", code=0)
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
