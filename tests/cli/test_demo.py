"""The demo and the server as commands of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path


def test_the_demo_fixes_the_test_survives_three_faults_and_exits_0(ralph) -> None:
    ran = ralph("demo", "--speed", "20")
    assert ran.code == 0, ran.stderr
    assert "scripted" in ran.stdout
    assert "real" in ran.stdout
    assert "retries survived   3  (429, 529, stream)" in ran.stdout
    assert "tests              pass" in ran.stdout
    directory = ran.stdout.splitlines()[0].split(" in ")[-1]
    assert not Path(directory).exists()


def test_the_demo_keeps_its_directory_when_asked_and_the_work_is_real(ralph) -> None:
    ran = ralph("demo", "--speed", "100", "--keep")
    kept = Path(ran.stdout.splitlines()[-1].removeprefix("Kept: "))
    log = subprocess.run(["git", "log", "--oneline"], cwd=kept, check=True, capture_output=True, text=True)
    assert len(log.stdout.splitlines()) == 2
    assert "+ 50) // 100" in (kept / "invoice.py").read_text()
    shutil.rmtree(kept.parent)


def test_mock_api_serves_a_scenario_and_records_without_secrets(ralph, tmp_path) -> None:
    scenario = tmp_path / "scenario.toml"
    scenario.write_text('[[steps]]\ncontent = "Hi from a file."\n')
    record = tmp_path / "requests.jsonl"
    process = ralph.start("mock-api", str(scenario), "--record", str(record))
    try:
        assert process.stdout is not None
        url = process.stdout.readline().decode().split()[-1]
        ran = ralph("hello", "--base-url", url)
    finally:
        process.terminate()
        process.communicate(timeout=10)
    assert ran.stdout == "Hi from a file.\n"
    line = record.read_text()
    assert json.loads(line)["path"].startswith("/v1/messages")
    assert ralph.environment["ANTHROPIC_API_KEY"] not in line


def test_the_version_is_one_line(ralph) -> None:
    from ralph import __version__

    assert ralph("--version").stdout == f"ralph {__version__}\n"


def test_help_teaches_every_command_and_option(ralph) -> None:
    assert "mock-api" in ralph("--help").stdout
    text = ralph("run", "--help").stdout
    for option in ("--model", "--base-url", "--retry", "--result-file", "--pass-env", "--cd"):
        assert option in text


def test_the_demo_leaves_the_repository_it_is_called_in_alone(ralph) -> None:
    """Git hooks and `git rebase --exec` set these variables."""
    subprocess.run(["git", "init", "-q"], cwd=ralph.cwd, check=True)
    before = (ralph.cwd / ".git" / "config").read_text()
    ralph.environment |= {"GIT_DIR": str(ralph.cwd / ".git"), "GIT_WORK_TREE": str(ralph.cwd)}
    assert ralph("demo", "--speed", "100").code == 0
    assert (ralph.cwd / ".git" / "config").read_text() == before
    assert not list((ralph.cwd / ".git" / "refs" / "heads").iterdir())


def test_a_reader_that_leaves_changes_no_exit_code(ralph) -> None:
    for command in ("--help", "demo --speed 100"):
        script = f"{sys.executable} -m ralph {command} | true; exit ${{PIPESTATUS[0]}}"
        ran = subprocess.run(
            ["bash", "-c", script],
            cwd=ralph.cwd,
            env=ralph.environment,
            stdin=subprocess.DEVNULL,
            check=False,
            capture_output=True,
            timeout=30,
        )
        assert ran.returncode == 0, ran.stderr
        assert b"Traceback" not in ran.stderr


def test_help_on_a_full_disk_is_one_line_and_an_io_error(ralph) -> None:
    for arguments in (["--help"], ["run", "--help"], ["demo", "--speed", "100"]):
        with Path("/dev/full").open("wb") as full:
            process = ralph.start(*arguments, stdout=full)
            _, stderr = process.communicate(timeout=30)
        assert process.returncode == 74
        assert b"No space left" in stderr.splitlines()[-1]
        assert b"Traceback" not in stderr
