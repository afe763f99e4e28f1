"""A machine without a free thread, process or file descriptor, or without memory, for a while. This is a temporary
problem and not a bug (P18).
"""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Text, ToolUse, Turn
from tests.driven.driver_lines import request, user
from tests.machine.test_launcher import line_for
from tests.patience import wait_until
from tests.program.conftest import Finished
from tests.program.driver import STREAM_JSON
from tests.program.faulty import DONE, stream
from tests.program.kept_sessions import only_journal
from tests.program.model_answers import bash, results, write
from tests.program.scarcity import scarcity

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from ralph.mock_api import MockApi, Playable, RecordedRequest
    from tests.api.harness import RawServer
    from tests.program.conftest import Ralph
    from tests.program.scarcity import Scarcity

__all__ = ["scarcity"]

NO_THREAD = "this machine has no thread left"
SHORT = f"[error] shortage: {NO_THREAD}"
WRITES = write("a", "x")


def ends_after(scarcity: Scarcity, refusals: int) -> None:
    """Ends the shortage as soon as this number of threads and processes were refused."""

    def end() -> None:
        scarcity.wait_for_refusals(refusals)
        scarcity.end()

    threading.Thread(target=end).start()


def short_for_the_first_calls(
    ralph: Ralph, scarcity: Scarcity, turns: list[Turn], serve: Any, *arguments: str
) -> tuple[MockApi, Finished]:
    """A run that can start no thread and no process from its first answer to its second request."""
    server = serve(script=play(*turns, on_first=scarcity.begin, on_second=scarcity.end))
    return server, ralph.finish(scarcity.start(ralph, *arguments))


def play(
    *turns: Playable, on_first: Callable[[], object], on_second: Callable[[], object] = lambda: None
) -> Callable[[RecordedRequest, int], Playable]:
    """A script that plays the turns in order. A repeated request gets the same turn again. Calls `on_first` before
    it sends the first answer, and `on_second` before the second.
    """

    def answer(request: RecordedRequest, index: int) -> Playable:
        if index < 2:
            (on_first, on_second)[index]()
        asked: int = sum(message["role"] == "assistant" for message in request.json()["messages"])
        return turns[min(asked, len(turns) - 1)]

    return answer


def short_from_the_first_request(
    ralph: Ralph, scarcity: Scarcity, end: Callable[[Path], None] = lambda _errors: None
) -> Finished:
    """A run that can start no thread and no process from its first request on. A driver lets it begin before. `end` is
    called when the shortage has begun, with the file of standard error.
    """
    errors = ralph.cwd.parent / "stderr.txt"
    with errors.open("wb") as stderr:
        process = scarcity.start(ralph, *STREAM_JSON, stdin=subprocess.PIPE, stderr=stderr, bufsize=0)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request("initialize", "1") + b"\n")
    while b"control_response" not in process.stdout.readline():
        assert process.poll() is None
    scarcity.begin()
    process.stdin.write(user("go") + b"\n")
    end(errors)
    ran = ralph.finish(process, b"")
    return Finished(ran.code, ran.stdout, errors.read_text())


def test_p18_no_thread_for_a_while_is_retried_like_any_outage_exits_0(ralph, serve, scarcity) -> None:
    def end(errors: Path) -> None:
        wait_until(lambda: SHORT in errors.read_text())
        scarcity.end()

    ralph.user_file.write_text("[retry]\npolicy = 'custom'\nbase_delay_s = 0.3\n")
    server = serve(WRITES, DONE)
    ran = short_from_the_first_request(ralph, scarcity, end)
    assert (ran.code, ran.result["terminal_reason"]) == (0, "completed"), ran.stderr
    assert "[retry] Recovered after " in ran.stderr
    retries = [one for one in ran.objects if one.get("subtype") == "api_retry"]
    assert {(one["kind"], one["message"]) for one in retries} == {("network", f"shortage: {NO_THREAD}")}
    assert (ralph.cwd / "a").read_text() == "x"
    assert len(server.requests) == 2


def test_p18_a_shortage_that_outlasts_the_retries_ends_with_a_hint_and_can_be_resumed_exits_75(
    ralph, serve, scarcity
) -> None:
    ralph.retry_quickly()
    server = serve(WRITES, DONE)
    ran = short_from_the_first_request(ralph, scarcity)
    assert (ran.code, ran.result["terminal_reason"], ran.result["retries"]) == (75, "api_unavailable", 4)
    assert ran.result["errors"] == [f"shortage: {NO_THREAD}"]
    hints = " ".join(ran.result["hints"])
    assert "ulimit -u" in hints
    assert "continue with: ralph" in hints
    assert "Traceback" not in ran.stderr
    scarcity.end()
    assert ralph("-c").code == 0
    assert len(server.requests) == 2


LASTS = "from ralph.retry import backoff\nbackoff.LASTS_S = 1.0\n"
"""Ten minutes, in a second."""


def test_p18_a_patient_run_that_met_one_shortage_for_ten_minutes_ends_exits_74(
    ralph, serve, scarcity
) -> None:
    ralph.run_first(LASTS)
    ralph.user_file.write_text("[retry]\npolicy = 'patient'\n")
    server = serve(WRITES, DONE)
    ran = short_from_the_first_request(ralph, scarcity)
    assert (ran.code, ran.result["terminal_reason"]) == (74, "io_error"), ran.stderr
    assert ran.result["errors"] == [f"shortage: {NO_THREAD}"]
    assert "giving up: the same shortage has lasted for " in ran.stderr
    scarcity.end()
    assert ralph("-c").code == 0
    assert len(server.requests) == 2


def limited(ralph: Ralph, most: int, *arguments: str) -> Finished:
    """A ralph that may have this number of descriptors from its start. With fewer than 5, the interpreter does not start."""
    command = ["bash", "-c", f'ulimit -n {most}; exec "$@"', "sh", sys.executable, "-P", "-m", "ralph"]
    ran = subprocess.run(
        [*command, *arguments],
        cwd=ralph.cwd,
        env=ralph.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return Finished(ran.returncode, ran.stdout, ran.stderr)


@pytest.mark.parametrize("command", [("-p", "hi"), ("loop", "-p", "hi")], ids=["run", "loop"])
def test_p18_too_few_descriptors_at_the_start_are_told_with_the_number_exits_78(
    ralph, serve, command
) -> None:
    server = serve(DONE)
    for most in (5, 12, 31):
        ran = limited(ralph, most, *command, "--output-format", "json", "--sandbox", "off")
        assert ran.code == 78, ran.stderr
        assert f"the limit on open files is {most}, and ralph needs 32: ulimit -n 32" in ran.last_line
        assert command[0] == "loop" or ran.result["exit_code"] == 78
        assert "Traceback" not in ran.stderr
    assert not server.requests


def test_p18_the_number_of_descriptors_that_is_told_is_enough_exits_0(ralph, checkout, serve) -> None:
    serve(bash("echo x > f"), Turn("All done."))
    ran = limited(ralph, 32, "loop", "-p", "go", "--commit", "--max-iterations", "1", "--sandbox", "off")
    assert ran.code == 0, ran.stderr
    assert checkout.git("log", "--format=%s").count("\n") == 1


def test_p18_a_request_needs_no_thread_that_the_last_one_has_left_exits_0(ralph, serve, scarcity) -> None:
    server = serve(script=play(WRITES, DONE, on_first=scarcity.begin))
    ran = ralph.finish(scarcity.start(ralph, "go")).having(0)
    assert "[retry]" not in ran.stderr
    assert len(server.requests) == 2


STARTS: dict[str, tuple[list[str], bytes | None]] = {
    "a prompt": (["hi", "--retry", "off"], None),
    "a piped prompt": (["-", "--result-file", "result.json"], b"hi"),
    "piped data": (["hi", "--retry", "off"], b"more"),
    "a driver": (
        ["--input-format", "stream-json"],
        b'{"type": "user", "message": {"role": "user", "content": "hi"}}\n',
    ),
}


@pytest.mark.sandboxed
@pytest.mark.parametrize("how", ["a piped prompt", "a driver"])
def test_p18_a_run_that_begins_without_a_thread_left_has_a_result_that_says_so_exits_75(
    ralph, serve, scarcity, how
) -> None:
    arguments, piped = STARTS[how]
    server = serve(DONE)
    scarcity.begin()
    stdin = subprocess.DEVNULL if piped is None else subprocess.PIPE
    process = scarcity.start(ralph, *arguments, "--output-format", "stream-json", stdin=stdin)
    ran = ralph.finish(process, piped)
    assert (ran.code, len(server.requests)) == (75, 0), ran.stderr
    assert (ran.result["terminal_reason"], ran.result["exit_code"]) == ("api_unavailable", 75)
    assert NO_THREAD in ran.last_line
    assert "ulimit -u" in ran.stderr
    assert "Traceback" not in ran.stderr
    if "--result-file" in arguments:
        written = json.loads((ralph.cwd / "result.json").read_text())
        assert {**written, "uuid": ""} == {**ran.result, "uuid": ""}


@pytest.mark.sandboxed
@pytest.mark.parametrize("how", ["a prompt", "piped data"])
def test_p18_a_run_that_begins_in_a_moment_of_shortage_waits_for_it_exits_0(
    ralph, serve, scarcity, how
) -> None:
    arguments, piped = STARTS[how]
    server = serve(DONE)
    scarcity.begin()
    stdin = subprocess.DEVNULL if piped is None else subprocess.PIPE
    process = scarcity.start(
        ralph, *arguments, "--retry", "standard", "--output-format", "stream-json", stdin=stdin
    )
    ends_after(scarcity, 5)  # two for the output, and some for what is waited for
    ran = ralph.finish(process, piped)
    assert (ran.code, len(server.requests)) == (0, 1), ran.stderr
    first = [block["text"] for block in server.requests[0].json()["messages"][0]["content"]]
    assert ("".join(first).strip() == "hi\n\nmore") is (how == "piped data"), "nothing of it is lost"


@pytest.mark.sandboxed
def test_p18_a_call_that_finds_no_process_is_told_so_and_may_be_made_again_exits_0(
    ralph, serve, scarcity
) -> None:
    calls = [
        ToolUse("Bash", {"command": "echo line >> effects"}, id="b"),
        ToolUse("Grep", {"pattern": "x"}, id="g"),
        ToolUse("Glob", {"pattern": "*"}, id="f"),
    ]
    again = [ToolUse(call.name, call.input, id=f"{call.id}2") for call in calls]

    server, ran = short_for_the_first_calls(
        ralph, scarcity, [Turn([*calls]), Turn([*again]), DONE], serve, "go"
    )
    assert ran.code == 0, ran.stderr
    refused, done = results(server, 1), results(server, 2)
    assert refused[0] == (
        "the command was not started: this machine has no process left. That passes: try again",
        True,
    )
    # A search in a sandbox needs a thread first, which counts as a process.
    expected = (
        r"this machine has no (process|thread) left; nothing is wrong with the call. That passes: try again"
    )
    assert all(re.fullmatch(expected, said) and is_error for said, is_error in refused[1:])
    assert len(refused) == 3
    assert [is_error for _, is_error in done] == [False] * 3
    assert (ralph.cwd / "effects").read_text() == "line\n"


SCHEMA = '{"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}'


def test_p18_a_report_that_cannot_be_checked_for_want_of_a_process_is_asked_for_again_exits_0(
    ralph, serve, scarcity
) -> None:
    def reports(name: str) -> Turn:
        arguments = {"status": "success", "summary": "Did it.", "payload": {"n": 1}}
        return Turn([Text("So."), ToolUse("final_report", arguments, id=name)])

    ralph.starts_afresh = True  # otherwise a fork server starts the check, and meets no shortage
    turns = [reports("r1"), reports("r2")]
    options = ("--json-schema", SCHEMA, "--output-format", "json")
    server, ran = short_for_the_first_calls(ralph, scarcity, turns, serve, "go", *options)
    assert ran.code == 0, ran.stderr
    assert ran.result["structured_output"] == {"n": 1}
    [(told, is_error)] = [one for one in results(server, 1) if "payload" in one[0]]
    assert is_error
    assert "could not be checked: this machine has no process left" in told
    assert "send the same report again" in told


def test_p18_doctor_says_what_the_machine_lacks_and_blames_no_setting_exits_75(
    ralph, ralph_here, serve, scarcity
) -> None:
    serve(DONE)
    scarcity.begin()
    ran = ralph.finish(scarcity.start(ralph, "doctor"))
    assert ran.code == 75, ran.stdout
    assert f"FAIL  machine: {NO_THREAD} -> wait until" in ran.stdout
    scarcity.end()
    assert ralph_here("doctor").code == 0


@pytest.mark.parametrize("command", [["mock-api", "hello"], ["demo"]], ids=lambda command: command[0])
def test_p18_a_server_that_finds_no_thread_says_so_in_a_line_exits_75(ralph, scarcity, command) -> None:
    scarcity.begin()
    ran = ralph.finish(scarcity.start(ralph, *command)).having(75)
    assert re.match(r"ralph: this machine has no (thread|process) left: wait until", ran.stderr)
    assert len(ran.stderr.splitlines()) == 1


def test_p18_traces_that_find_no_thread_never_end_the_run_exits_0(ralph, serve, scarcity) -> None:
    pytest.importorskip("opentelemetry.sdk")
    serve(DONE)
    ralph.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
    scarcity.begin()
    process = scarcity.start(ralph, "hi", "--otel")
    ends_after(scarcity, 3)
    ran = ralph.finish(process).having(0)
    assert "Traceback" not in ran.stderr


# --- File descriptors, and memory


def without_descriptors_until(
    told: str, first: Turn, ralph: Ralph, answer_with: Any, *words: str
) -> tuple[RawServer, Finished]:
    """A ralph that can open nothing from the first answer on until standard error contains `told`. Then it continues."""
    errors = ralph.cwd.parent / "stderr.txt"
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(descriptors: int) -> None:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (descriptors, most))

    def end() -> None:
        wait_until(lambda: told in errors.read_text())
        limit(most)

    def begin(sock: socket.socket) -> None:
        limit(3)
        threading.Thread(target=end).start()
        sock.sendall(stream(first))

    server = answer_with(begin, stream(DONE))
    with errors.open("wb") as stderr:
        process = ralph.start(*words, stderr=stderr)
        ran = ralph.finish(process)
    return server, Finished(ran.code, ran.stdout, errors.read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process can be set on Linux only")
def test_p18_no_descriptor_for_a_while_is_retried_and_told_to_the_model_exits_0(ralph, answer_with) -> None:
    ralph.user_file.write_text("[retry]\npolicy = 'custom'\nbase_delay_s = 0.3\n")
    told = "[error] shortage: this machine has no file descriptor left"
    turn = bash("echo line >> effects")
    server, ran = without_descriptors_until(told, turn, ralph, answer_with, "go")
    assert (ran.code, len(server.requests)) == (0, 2), ran.stderr
    result = json.loads(server.requests[1].partition(b"\r\n\r\n")[2])["messages"][-1]["content"][0]
    assert result["is_error"]
    assert "this machine has no file descriptor left" in result["content"]
    assert result["content"].endswith("That passes: try again")
    assert "[retry] Recovered after " in ran.stderr


def test_p18_a_command_whose_launcher_finds_no_process_was_not_started_and_says_so(scarcity, ralph) -> None:
    scarcity.begin()
    process = scarcity.start_python(ralph, *line_for(["touch", "effects"], grace_s=1)[3:])
    ran = ralph.finish(process).having(75)
    assert ran.stderr.startswith("the command was not started: this machine has no process left (")
    assert not (ralph.cwd / "effects").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process can be set on Linux only")
@pytest.mark.parametrize("is_stopped", [False, True])
def test_p18_a_result_file_that_finds_no_descriptor_is_no_end_but_told_once_more_when_asked_exits_75(
    ralph, answer_with, is_stopped
) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    file = ralph.cwd / "result.json"

    def begin(sock: socket.socket) -> None:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, most))
        sock.sendall(stream(DONE))

    server = answer_with(begin)
    process = ralph.start("go", "--result-file", str(file))
    if is_stopped:  # while it waits for a descriptor
        wait_until(lambda: bool(server.requests) and '"kind":"ended"' in only_journal(ralph).read_text())
        process.send_signal(signal.SIGTERM)
    ran = ralph.finish(process).having(75)
    assert f"cannot write the result file {file}: this machine has no file descriptor left" in ran.last_line
    again = ralph("-c", "--result-file", str(file))
    assert (again.code, len(server.requests)) == (0, 1), "nobody is asked again"
    assert json.loads(file.read_text())["result"] == "All done."


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process can be set on Linux only")
def test_p18_a_loop_that_finds_no_descriptor_for_its_record_waits_and_continues_exits_0(
    ralph, answer_with
) -> None:
    ralph.user_file.write_text("[loop]\noutage_waits_s = [0.1]\noutage_budget_s = 20\n")
    told, words = "this machine has no process, thread", ("loop", "go", "--max-iterations", "2")
    _, ran = without_descriptors_until(told, DONE, ralph, answer_with, *words)
    assert ran.code == 0, ran.stderr
    assert "[loop] completed: 2 iterations" in ran.stderr
