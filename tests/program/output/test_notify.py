"""`--notify`: a program of the user's is told how a run or a loop has ended, and of a long outage. Whatever it does, the
outcome stays.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.patience import wait_until, within_s
from tests.program.conftest import KEY, processes_of
from tests.program.machine.test_disk import in_small_disk, needs_mounts
from tests.program.model_answers import DONE, bash

if TYPE_CHECKING:
    from tests.program.conftest import Ralph

COMMANDS = [("run", "go"), ("loop", "go", "--max-iterations", "1")]
AWAY = Step(fault=Fault(status=529))
STUBBORN = "trap '' TERM INT HUP; touch ~/begun; while :; do sleep 0.05; done"


def home(ralph: Ralph) -> Path:
    return Path(ralph.environment["HOME"])


def told(ralph: Ralph) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home(ralph) / "told").read_text().splitlines()]


def notices(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "--notify: " in line]


@pytest.fixture
def tells(ralph) -> str:
    """A command that keeps what it is told and its environment."""
    program = home(ralph) / "tell"
    program.write_text("#!/bin/sh\ncat >> ~/told; env > ~/environment; pwd >> ~/environment\n")
    program.chmod(0o755)
    return str(program)


def test_the_result_of_a_run_is_told_without_credentials(ralph, serve, tells) -> None:
    serve(Turn(f"The key is {KEY}."))
    ran = ralph("run", "go", "--notify", tells, "--output-format", "json", code=0)
    [result] = told(ralph)
    assert {**result, "uuid": ""} == {**ran.result, "uuid": ""}
    assert KEY not in (home(ralph) / "told").read_text()
    environment = (home(ralph) / "environment").read_text()
    assert KEY not in environment
    assert "HOME=" in environment
    assert environment.splitlines()[-1] == str(home(ralph))
    assert notices(ran.stderr) == []


def test_the_end_of_a_loop_is_told_once_and_its_iterations_are_silent(ralph, serve, tells) -> None:
    ralph.user_file.write_text(f'[notify]\ncommand = "{tells}"\n')
    serve(bash("touch new"), DONE, bash("touch newer"), DONE)
    ralph("loop", "go", "--max-iterations", "2", code=0)
    [end] = told(ralph)
    assert end.pop("elapsed_s") > 0
    assert end.pop("cost_usd") is not None
    assert end == {
        "type": "loop",
        "is_error": False,
        "terminal_reason": "completed",
        "exit_code": 0,
        "reason": "2 iterations are done",
        "directory": str(ralph.cwd),
        "iterations": 2,
        "turns": 4,
    }


@pytest.mark.parametrize(
    ("notify", "says"),
    [
        ("exit 3", "its command ended with exit 3"),
        ("echo no network >&2; exit 1", "no network"),
        ("no-such-program", "no-such-program"),
        ("kill -9 $$", "its command ended with exit 137"),
        ("exec <&-; exit 0", None),
        ("head -c 30000000 /dev/zero; exit 0", None),
        ("setsid sleep 1000 & exit 0", None),
    ],
)
def test_what_the_command_does_never_changes_the_exit_code(ralph, serve, notify, says) -> None:
    serve(DONE)
    ran = ralph("run", "go", "--notify", notify, code=0)
    assert [says in line for line in notices(ran.stderr)] == ([True] if says else [])
    if sys.platform == "linux":
        assert processes_of(ralph) == {}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_a_command_that_hangs_and_ignores_sigterm_is_killed_at_its_limit(ralph, serve, command) -> None:
    ralph.run_first("import ralph.output.notifier as one; one._LIMIT_S = 0.5")
    serve(DONE)
    ran = ralph(*command, "--notify", STUBBORN, code=0)
    [line] = notices(ran.stderr)
    assert "it took longer than 0.5 s and was stopped" in line
    assert processes_of(ralph) == {}


@needs_mounts
def test_the_end_is_told_although_the_disk_is_full(ralph, serve, tells, tmp_path) -> None:
    state = tmp_path / "state"
    ralph.environment["RALPH_STATE_DIR"] = str(state)
    serve(bash("head -c 20000 /dev/urandom | base64"))
    full = "mount -t tmpfs -o size=16k tmpfs"
    in_small_disk(ralph, full, state, "run", "go", "--notify", tells).having(74)
    [end] = told(ralph)
    assert (end["terminal_reason"], end["exit_code"]) == ("io_error", 74)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_a_stop_takes_six_seconds_at_most_whatever_the_command_ignores(ralph, serve, command) -> None:
    serve(bash("touch started; sleep 1000"))
    process = ralph.start(*command, "--notify", STUBBORN)
    wait_until((ralph.cwd / "started").exists)
    process.send_signal(signal.SIGTERM)
    process.wait(within_s(6))
    ran = ralph.finish(process).having(143)
    assert len(notices(ran.stderr)) == 1
    assert processes_of(ralph) == {}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_a_signal_while_it_runs_ends_the_command_and_the_outcome_stays(ralph, serve, command) -> None:
    serve(DONE)
    process = ralph.start(*command, "--notify", STUBBORN)
    wait_until((home(ralph) / "begun").exists)
    ran = ralph.stopped_by(process, signal.SIGTERM, code=0)
    [line] = notices(ran.stderr)
    assert "its command was stopped: " in line
    assert processes_of(ralph) == {}


def test_a_long_wait_of_a_run_is_told_once_each_outage(ralph, serve, tells) -> None:
    ralph.run_first("import ralph.output.notifier as one; one.LONG_WAIT_S = 0.015")
    ralph.user_file.write_text("[retry]\npolicy = 'custom'\nbase_delay_s = 0.01\nmax_retries = 6\n")
    serve(AWAY, AWAY, AWAY, AWAY, bash("true"), AWAY, AWAY, AWAY, DONE)
    ralph("run", "go", "--notify", tells, code=0)
    *outages, end = told(ralph)
    assert [one["type"] for one in outages] == ["outage", "outage"]
    assert all(one["wait_s"] > 0.015 and "529" in one["reason"] for one in outages)
    assert outages[0]["directory"] == str(ralph.cwd)
    assert end["type"] == "result"


def test_a_stop_while_an_outage_is_told_ends_the_chain_of_retries(ralph, serve) -> None:
    serve(Step(fault=Fault(status=429, headers={"retry-after": "3600"})))
    ralph.user_file.write_text("[retry]\npolicy = 'patient'\n")
    process = ralph.start("run", "go", "--notify", STUBBORN, "--output-format", "stream-json")
    wait_until((home(ralph) / "begun").exists)
    ran = ralph.stopped_by(process, signal.SIGTERM, code=143)
    assert [event["subtype"] for event in ran.objects if "retry" in event.get("subtype", "")] == [
        "api_retry",
        "retry_exhausted",
    ]


def test_a_long_wait_of_a_loop_is_told_and_75_at_its_end(ralph, serve, tells) -> None:
    ralph.run_first("import ralph.output.notifier as one; one.LONG_WAIT_S = 0.3")
    ralph.user_file.write_text(
        "[retry]\npolicy = 'off'\n[loop]\noutage_waits_s = [0.1, 0.4, 0.5]\noutage_budget_s = 1.1\n"
    )
    serve(*[AWAY] * 9)
    ralph("loop", "go", "--notify", tells, code=75)
    outage, end = told(ralph)
    assert (outage["type"], outage["wait_s"]) == ("outage", 0.4)
    assert "the API is unavailable" in outage["reason"]
    assert (end["type"], end["exit_code"]) == ("loop", 75)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_a_program_that_commands_may_replace_is_refused_before_a_request(ralph, serve, command) -> None:
    server = serve(DONE)
    ralph.environment["PROJ"] = str(ralph.cwd)
    program = ralph.cwd / "tell.sh"
    program.write_text("touch ~/told\n")
    program.chmod(0o755)
    # tests/places/test_own_commands.py has more lines.
    for notify in (f"true; cat|{program}", "sh $PROJ/later.sh", "PATH=$PROJ:$PATH tell.sh"):
        ran = ralph(*command, "--notify", notify)
        assert (ran.code, server.request_count) == (78, 0)
        assert "the command of --notify is not run: " in ran.stderr
    assert not (home(ralph) / "told").exists()


@pytest.mark.parametrize("command", COMMANDS, ids=["run", "loop"])
def test_a_variable_that_names_a_file_of_the_work_is_not_told_to_it(ralph, serve, tells, command) -> None:
    """As direnv sets it. A command writes the file."""
    given = {"DOCKER_CONFIG": f"{ralph.cwd}/d", "LESSOPEN": f"|{ralph.cwd}/x %s", "WORKSPACE": str(ralph.cwd)}
    ralph.environment |= given
    serve(bash("printenv DOCKER_CONFIG LESSOPEN > seen; touch x"), DONE)
    assert ralph(*command, "--notify", tells).code in (0, 2)
    assert (ralph.cwd / "seen").read_text() == f"{ralph.cwd}/d\n|{ralph.cwd}/x %s\n"
    told = (home(ralph) / "environment").read_text()
    assert ("DOCKER_CONFIG" in told, "LESSOPEN" in told, "WORKSPACE" in told) == (False, False, True)


@pytest.mark.parametrize("words", ["python3 -m mine", "mine"])
def test_what_the_work_installed_as_editable_is_not_run(ralph, serve, words) -> None:
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages, program = home(ralph) / f".local/lib/{name}/site-packages", home(ralph) / "bin/mine"
    python = f"{sys.base_prefix}/bin/python3"
    for place in (packages, program.parent, ralph.cwd / "src"):
        place.mkdir(parents=True)
    (packages / "__editable__.mine.pth").write_text(f"{ralph.cwd}/src\n")
    (ralph.cwd / "src/mine.py").touch()
    program.write_text(f"#!{python}\nimport mine\n")
    program.chmod(0o755)
    ralph.environment["PATH"] = f"{program.parent}:{sys.base_prefix}/bin:{ralph.environment['PATH']}"
    taken = home(ralph) / "taken"
    edit = bash(f"echo \"open('{taken}', 'w')\" > src/mine.py")
    serve(edit, DONE)
    ran = ralph("run", "go", "--notify", words, code=78)
    assert (
        f"the command of --notify is not run: {python} takes modules from {ralph.cwd}/src by {packages}/__editable__.mine.pth, "
        "where commands may write" in ran.stderr
    )
    assert not taken.exists()
    assert ralph("run", "go", "--notify", "python3 -s -c pass").code == 0
    assert not taken.exists()


def test_a_program_that_a_command_makes_on_its_way_is_not_run(ralph, serve) -> None:
    ralph.environment["PATH"] = f"{ralph.cwd}:{ralph.environment['PATH']}"
    serve(bash("echo 'touch ~/told' > tell-me; chmod +x tell-me"), DONE)
    ran = ralph("run", "go", "--notify", "tell-me", code=0)
    [notice] = notices(ran.stderr)
    assert f"{ralph.cwd}/tell-me does not count: commands may write {ralph.cwd}" in notice
    assert not (home(ralph) / "told").exists()


@pytest.mark.parametrize("place", ["project", "config"])
def test_only_the_users_own_file_names_a_command(ralph, serve, place, tmp_path) -> None:
    server = serve(DONE)
    file = ralph.cwd / "ralph.toml" if place == "project" else tmp_path / "more.toml"
    file.write_text('[notify]\ncommand = "touch ~/told"\n')
    ran = ralph("run", "go", *(["--config", str(file)] if place == "config" else []))
    assert (ran.code, server.request_count) == (78, 0)
    assert "notify.command" in ran.stderr
    assert not (home(ralph) / "told").exists()
