"""Commands in the background of whole runs: a real server and a real client, at each level of the sandbox."""

from __future__ import annotations

import json
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Turn
from tests.patience import wait_until, within_s
from tests.processes.owned import processes_of
from tests.program.model_answers import DONE, bash, calls, results, told
from tests.program.namespaces import forbidding_namespaces, needs_namespaces
from tests.program.tools.test_command_hooks import hooks, start

if TYPE_CHECKING:
    import subprocess

    from tests.program.conftest import Ralph

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")


def in_background(command: str) -> tuple[str, dict[str, Any]]:
    return "Bash", {"command": command, "run_in_background": True}


def output_of(command_id: str) -> tuple[str, dict[str, Any]]:
    return "BashOutput", {"bash_id": command_id}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def server_at(port: int) -> str:
    return f"{sys.executable} -u -m http.server -b 127.0.0.1 {port}"


def client_of(port: int) -> str:
    """A command that asks the server until it answers."""
    return (
        f"for i in $(seq 200); do {sys.executable} -c 'import urllib.request as u; "
        f'print(u.urlopen("http://127.0.0.1:{port}/").status)\' 2>/dev/null && break; sleep 0.1; done'
    )


LEVELS = [
    "off",
    pytest.param("landlock", marks=[pytest.mark.sandboxed, linux_only]),
    pytest.param("namespaces", marks=[pytest.mark.sandboxed, needs_namespaces]),
]


def begin(ralph: Ralph, level: str, *words: str) -> subprocess.Popen[bytes]:
    options = ("--sandbox", "off") if level == "off" else ()
    how = forbidding_namespaces() if level == "landlock" else {}
    return ralph.start(*words, "--output-format", "stream-json", *options, **how)


@pytest.mark.parametrize("level", LEVELS)
def test_a_server_in_the_background_answers_later_commands_and_is_stopped_with_the_run(
    ralph, serve, level
) -> None:
    port = free_port()
    server = serve(
        calls(in_background(server_at(port))),
        bash(client_of(port)),
        calls(output_of("bash_1")),
        Turn("The server answers."),
    )
    ran = ralph.finish(begin(ralph, level, "-p", "serve")).having(0)
    started, asked, shown = (results(server, index)[0][0] for index in (1, 2, 3))
    assert started.startswith("Command running in background with ID: bash_1\n")
    assert asked == "200"
    assert '"GET / HTTP/1.1" 200' in shown
    assert "[bash_1 is running, " in shown
    about = {one.get("subtype"): one for one in ran.objects if str(one.get("subtype")).startswith("task_")}
    assert about["task_started"]["task_id"] == about["task_notification"]["task_id"] == "bash_1"
    assert about["task_notification"]["status"] == "stopped"
    assert about["task_notification"]["stopped_by"] == "run"
    assert ran.result["background_stopped"] == 1
    assert processes_of(ralph.environment) == {}


STUBBORN = "trap '' TERM HUP INT; echo ready; while :; do sleep 0.2; done"


@linux_only
@pytest.mark.parametrize("level", LEVELS)
def test_after_a_kill_of_ralph_nothing_is_left_and_the_model_of_the_resumed_run_is_told(
    ralph, serve, level
) -> None:
    server = serve(
        calls(in_background("(setsid sleep 300 &) ; sleep 300")),
        calls(output_of("bash_1")),
        calls(in_background("echo again; sleep 300")),
        DONE,
    )
    process = begin(ralph, level, "-p", "work")
    wait_until(lambda: len(server.requests) == 2)
    wait_until(lambda: sum("sleep 300" in one for one in processes_of(ralph.environment).values()) >= 2)
    process.kill()
    ralph.finish(process)
    wait_until(lambda: not any("sleep 300" in one for one in processes_of(ralph.environment).values()))
    ran = ralph.finish(begin(ralph, level, "--continue")).having(0)
    content = told(server, 2)
    assert [block["type"] for block in content] == ["tool_result", "text"]
    gone = "System notice: These background commands of the earlier run are gone: bash_1 ((setsid sleep 300"
    assert content[1]["text"].startswith(gone)
    said = results(server)[0][0]
    assert said.startswith("Command running in background with ID: bash_2\n"), "no id comes twice"
    assert ran.result["background_stopped"] == 1
    wait_until(lambda: processes_of(ralph.environment) == {})


def test_a_run_that_follows_on_one_with_commands_in_the_background_tells_once_that_they_are_gone(
    ralph, serve
) -> None:
    server = serve(calls(in_background("sleep 300")), Turn("Done."), Turn("Well."), Turn("Good."))
    for prompt in ("one", "two", "three"):
        assert ralph("--continue", prompt).code == 0
    found = [
        "These background commands" in json.dumps(json.loads(one.body)["messages"][-1])
        for one in server.requests
    ]
    assert found == [False, False, True, False]


@linux_only
@pytest.mark.parametrize("ends", ["signal", "time"])
def test_a_stop_ends_commands_that_ignore_it_within_six_seconds(ralph, serve, ends) -> None:
    server = serve(
        calls(in_background(STUBBORN), in_background(f"({STUBBORN}) & {STUBBORN}")),
        calls(output_of("bash_2")),
        calls(output_of("bash_2")),
    )
    limit = ["--max-time", "6s"] if ends == "time" else []
    process = ralph.start("-p", "work", "--output-format", "stream-json", *limit)
    wait_until(lambda: len(server.requests) == 3 or process.poll() is not None)
    if ends == "signal":
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=within_s(6.5))
    ran = ralph.finish(process).having(143 if ends == "signal" else 124)
    assert ran.result["background_stopped"] == 2
    assert processes_of(ralph.environment) == {}


def test_a_driver_finds_them_again_with_its_next_message_until_its_input_ends(ralph, serve, drive) -> None:
    server = serve(calls(in_background("echo hello; sleep 300")), DONE, calls(output_of("bash_1")), DONE)
    driver = drive()
    driver.say("start it")
    assert "background_stopped" not in driver.result()
    driver.say("look at it")
    assert "background_stopped" not in driver.result(2)
    assert results(server, 3)[0][0].startswith("hello\n[bash_1 is running, ")
    ran = driver.finish().having(0)
    assert "1 command in the background stopped" in ran.stderr
    assert processes_of(ralph.environment) == {}


def test_hooks_judge_the_tools_by_any_of_their_names_and_a_stop_hook_is_told_what_runs(ralph, serve) -> None:
    server = serve(calls(in_background("sleep 300")), calls(("TaskStop", {"task_id": "bash_1"})), DONE)
    settings = hooks("PreToolUse", "echo no >&2; exit 2", "KillShell")
    settings["hooks"] |= hooks("Stop", "cat > told")["hooks"]
    start(ralph, settings).having(0)
    assert results(server, 2) == [("PreToolUse:KillBash hook error: no", True)]
    running = json.loads((ralph.cwd / "told").read_text())["background_tasks"]
    assert [(one["id"], one["command"]) for one in running] == [("bash_1", "sleep 300")]


@pytest.mark.sandboxed
@needs_namespaces
def test_a_hook_shares_no_process_namespace_with_it(ralph, serve) -> None:
    """It could kill what decides in the hook."""
    space = "readlink /proc/self/ns/pid"
    server = serve(calls(in_background(f"{space} > space; sleep 300")), bash(space), DONE)
    start(ralph, hooks("PreToolUse", f"{space} >> hooks", "Bash")).having(0)
    shared = (ralph.cwd / "space").read_text()
    assert results(server, 2)[0][0] == shared.strip()
    last = (ralph.cwd / "hooks").read_text().splitlines()[-1]
    assert last not in (shared.strip(), str(Path("/proc/self/ns/pid").readlink()))


@pytest.mark.sandboxed
@linux_only
def test_what_a_command_in_the_background_writes_to_a_protected_file_is_undone(ralph, serve) -> None:
    """It writes while no other command runs: the next command finds it, or the end of the run."""
    writes = "until test -e {0}; do sleep 0.05; done; sleep 1; echo x > ralph.toml; echo wrote {0}"
    server = serve(
        calls(in_background(f"{writes.format('a')}; {writes.format('b')}; sleep 300")),
        bash("touch a"),
        calls(output_of("bash_1")),
        bash("touch b"),
        calls(output_of("bash_1")),
        DONE,
    )
    ran = ralph.finish(ralph.start("-p", "work", **forbidding_namespaces())).having(0)
    assert [results(server, at)[0][0].partition("\n")[0] for at in (3, 5)] == ["wrote a", "wrote b"]
    assert any("[undone: changes to ralph.toml" in results(server, at)[0][0] for at in (2, 4))
    assert "changes to ralph.toml" in ran.stderr
    assert not (ralph.cwd / "ralph.toml").exists()


def test_the_page_and_the_text_of_a_session_tell_of_them(ralph, serve) -> None:
    serve(calls(in_background("sleep 301")), DONE)
    assert ralph("-p", "work").code == 0
    lines = [
        "[background] bash_1 started: sleep 301",
        "[background] bash_1 was stopped at the end of the run",
    ]
    shown = ralph("sessions", "show").stdout
    assert all(one in shown for one in lines)
    assert ralph("report", "-o", "page.html").code == 0
    page = (ralph.cwd / "page.html").read_text()
    assert all(one in page for one in lines)
