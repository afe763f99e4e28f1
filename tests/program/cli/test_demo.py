"""The demo and the scripted server as commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from ralph.cli.scripted import demo
from ralph.demo import SCENARIOS
from ralph.mock_api import Turn
from tests.patience import PATIENCE_S


@pytest.fixture
def directory(ralph, tmp_path):
    """The directory in which ralph makes its temporary directories."""
    directory = tmp_path / "directory"
    directory.mkdir()
    ralph.environment["TMPDIR"] = str(directory)
    return directory


def in_order(lines: list[str], text: str) -> bool:
    """Whether the text contains these lines in this order."""
    rest = iter(text.splitlines())
    return all(line in rest for line in lines)


FALLBACK_LINES = [
    "[target] in this order: main, spare",
    "[target] main -> spare (overloaded)",
    "[notice] spare: using the key of DEMO_KEY_2 instead of DEMO_KEY_1 (rate_limit)",
    "[target] spare answers",
    "[target] back on main",
]
OUTAGE_LINES = [
    "[clock] not a byte of the answer for 1.5s (clocks.bytes_idle_s)",
    "[retry] Attempt 1/21: StreamTransient — waiting 0.017s",
    "[retry] Attempt 2/21: 529 — waiting 0.033s",
    "[retry] Attempt 3/21: 503 — waiting 0.1s",
    "[retry] Attempt 4/21: Api — waiting 0.2s",
    "[retry] Attempt 5/21: Api — waiting 1s",
    "[retry] Recovered after 5 retries",
]


@pytest.mark.parametrize(
    ("scenario", "speed", "lines", "told"),
    [
        ("fix", "100", [], ["retries survived   3  (429, 529, stream)"]),
        (
            "fallback",
            "2",
            FALLBACK_LINES,
            [
                "of 1 s, the HTTP connections",
                'api = "openai-chat"',
                'api_key_env = ["DEMO_KEY_1", "DEMO_KEY_2"]',
                "turns answered by  main (claude-opus-5-5) x",
                ", spare (gpt-5.4-mini)",
                "failures survived  2  (main 529, spare 429)",
                "changes of target  2  (main -> spare (overloaded), back on main)",
                "changes of key     1  (spare)",
                "seconds waited     0.0",
            ],
        ),
        (
            "outage",
            "5",
            OUTAGE_LINES,
            [
                "divided by 300: one second stands for 300",
                "In reality this outage would have lasted about 8 minutes",
                "retries survived   5  (stream, 529, 503, network x2)",
                "seconds waited     1.4  (405 in reality)",
            ],
        ),
    ],
)
def test_a_scenario_is_survived_and_the_work_and_the_story_that_it_keeps_are_real(
    ralph, ralph_here, directory, scenario, speed, lines, told
) -> None:
    ran = ralph("demo", "--scenario", scenario, "--speed", speed, "--keep", code=0)
    assert in_order(lines, ran.stderr), ran.stderr
    for words in ("scripted", "real", *told, "tests              pass"):
        assert words in ran.stdout
    [kept] = directory.iterdir()
    assert ran.stdout.splitlines()[-1] == f"Kept: {kept / 'invoice'}"
    log = ["git", "log", "--oneline"]
    shown = subprocess.run(log, cwd=kept / "invoice", check=True, capture_output=True, text=True).stdout
    assert len(shown.splitlines()) == 2
    assert "+ 50) // 100" in (kept / "invoice" / "invoice.py").read_text()
    ralph.cwd = kept / "invoice"
    shown = ralph_here("sessions", "show", "--session-dir", str(kept / "sessions")).stdout
    assert "[tool] Edit: invoice.py" in shown
    if scenario == "fix":
        tests = [sys.executable, "-m", "unittest", "-q"]
        assert subprocess.run(tests, cwd=kept / "invoice", check=False, capture_output=True).returncode == 0
        for words in ("429 — waiting", "529 — waiting", "[discarded] an answer does not count"):
            assert words in shown
        assert shown.count("[retry] Recovered after 1 retries") == 3


def test_the_command_line_offers_the_scenarios_that_there_are() -> None:
    scenario = get_type_hints(demo)["scenario"]
    assert get_args(scenario) == tuple(SCENARIOS)


def test_an_unknown_scenario_is_misuse(ralph) -> None:
    ran = ralph("demo", "--scenario", "flood", code=2)
    assert ran.last_line.startswith("ralph: ")
    for words in ("--scenario", "flood", "fix", "fallback", "outage", "loop"):
        assert words in ran.last_line


def test_a_demo_whose_tests_do_not_pass_exits_1_and_does_not_claim_it_and_leaves_nothing_behind(
    ralph, directory, tmp_path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "unittest.py").write_text("raise SystemExit('no tests on this machine')\n")
    ralph.environment["PYTHONPATH"] += f":{broken}"
    ran = ralph("demo", "--speed", "50", code=1)
    assert "The tests still do not pass." in ran.stderr
    assert "tests              FAIL" in ran.stdout
    assert list(directory.iterdir()) == []


# --- `ralph loop`

LOOP_LINES = [
    "[loop] gate before the first iteration: passed",
    "[loop] iteration 1 of 5: completed, 4 turns, ",
    "[error] HTTP 529",
    "[ralph] api_unavailable (exit 75)",
    "[loop] the API is unavailable: waiting 0.1s (outage 1, by the schedule loop.outage_waits_s)",
    "[error] connection refused",
    "[loop] the API is unavailable: waiting 0.2s (outage 2 in a row, by the schedule loop.outage_waits_s)",
    "[notice] resuming",
    "[loop] iteration 2 of 5: completed, 4 turns, ",
    "[loop] iteration 3 of 5: completed, 4 turns, ",
    "[loop] completed: the gate passes and no task in IMPLEMENTATION_PLAN.md is open; 3 iterations, 12 turns, ",
]


def test_the_loop_finishes_in_its_third_iteration_through_an_outage_and_the_work_is_real(
    ralph, directory
) -> None:
    ran = ralph("demo", "--scenario", "loop", "--speed", "10", "--keep", code=0)
    rest = iter(ran.stderr.splitlines())
    assert all(any(line.startswith(begin) for line in rest) for begin in LOOP_LINES), ran.stderr
    assert "  tests              pass (run once more, by the demo itself)" in ran.stdout
    for words in ("scripted", "real", "a second of the outage stands for 10 minutes", "in earnest [60, 120]"):
        assert words in ran.stdout
    [kept] = directory.iterdir()
    assert ran.stdout.splitlines()[-1] == f"Kept: {kept / 'duration'}"
    log = ["git", "log", "--reverse", "--format=%s"]
    shown = subprocess.run(log, cwd=kept / "duration", check=True, capture_output=True, text=True).stdout
    assert shown.splitlines()[1:] == [
        "Read hours",
        "Pad the seconds with a zero",
        "Refuse what is not a duration",
    ]
    tests = [sys.executable, "-m", "unittest", "-q"]
    assert subprocess.run(tests, cwd=kept / "duration", check=False, capture_output=True).returncode == 0


def test_without_git_and_without_a_reader_the_loop_finishes_and_nothing_of_the_users_is_touched(
    ralph, directory, tmp_path
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    bash = shutil.which("bash")
    assert bash is not None
    (programs / "bash").symlink_to(bash)
    summary = tmp_path / "summary"
    ralph.environment |= {
        "PATH": str(programs),
        "GITHUB_STEP_SUMMARY": str(summary),
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        "RALPH_MODEL": "opus",
        "XDG_CONFIG_HOME": str(tmp_path / "settings"),
    }
    (tmp_path / "settings" / "ralph").mkdir(parents=True)
    (tmp_path / "settings" / "ralph" / "config.toml").write_text("what = no TOML\n")
    process = ralph.start("demo", "--scenario", "loop", "--speed", "100", stderr=subprocess.STDOUT)
    told = read_until(process, "[loop] gate")
    process.stdout.close()
    assert process.wait(timeout=PATIENCE_S) == 0
    assert "left out   there is no git on this machine" in told
    assert "--commit --max" not in told
    assert list(directory.iterdir()) == []
    assert not summary.exists()
    assert list(Path(ralph.environment["HOME"]).iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")
@pytest.mark.parametrize(
    ("scenario", "line", "number"),
    [
        ("loop", "ralph demo:", signal.SIGHUP),
        ("loop", "[tool]", signal.SIGINT),
        ("loop", "waiting", signal.SIGTERM),
        ("fix", "[retry]", signal.SIGINT),
    ],
)
def test_a_demo_that_is_stopped_leaves_neither_processes_nor_a_directory_and_says_so(
    ralph, directory, scenario, line, number
) -> None:
    process = ralph.start("demo", "--scenario", scenario, "--speed", "0.1", stderr=subprocess.STDOUT)
    read_until(process, line)
    process.send_signal(number)
    rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert b"Traceback" not in rest
    assert b"directory is removed, so there is nothing to resume" in rest
    assert list(directory.iterdir()) == []
    assert not [entry for entry in Path("/proc").glob("[0-9]*") if str(directory) in environment_of(entry)]


def read_until(process: subprocess.Popen[bytes], words: str) -> str:
    """All lines up to the first one with these words. Fails if the output ends before."""
    told = ""
    assert process.stdout is not None
    for line in process.stdout:
        told += line.decode()
        if words in told:
            return told
    raise AssertionError(told)


def environment_of(process: Path) -> str:
    """The environment of a process. Empty if the process has ended or belongs to another user."""
    try:
        return (process / "environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


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
        process.communicate(timeout=PATIENCE_S)
    assert ran.stdout == "Hi from a file.\n"
    line = record.read_text()
    assert json.loads(line)["path"].startswith("/v1/messages")
    assert ralph.environment["ANTHROPIC_API_KEY"] not in line


def test_the_demo_leaves_the_repository_it_is_called_in_alone_although_its_reader_leaves(ralph) -> None:
    """Git sets GIT_DIR and GIT_WORK_TREE for hooks and for `git rebase --exec`."""
    subprocess.run(["git", "init", "-q"], cwd=ralph.cwd, check=True)
    before = (ralph.cwd / ".git" / "config").read_text()
    ralph.environment |= {"GIT_DIR": str(ralph.cwd / ".git"), "GIT_WORK_TREE": str(ralph.cwd)}
    reading, writing = os.pipe()
    os.close(reading)
    process = ralph.start("demo", "--speed", "100", stdout=writing)
    os.close(writing)
    assert "Traceback" not in ralph.finish(process).having(0).stderr
    assert (ralph.cwd / ".git" / "config").read_text() == before
    assert not list((ralph.cwd / ".git" / "refs" / "heads").iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "command",
    ["--version", "--help", "run --help", "demo --speed 100", "doctor", "sessions ls", "loop init"],
)
def test_a_full_disk_is_one_line_and_an_io_error(ralph, serve, command) -> None:
    serve(Turn("Hello."))
    ralph("-p", "hi", code=0)
    ran = ralph.to_full_disk(*command.split()).having(74)
    assert re.fullmatch("ralph: cannot write.*: No space left on device", ran.last_line)
    assert len(ran.stderr.splitlines()) == 1 or command.startswith("demo")
