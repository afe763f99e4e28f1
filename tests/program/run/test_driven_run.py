"""A run that a driver steers through standard input: each message gets exactly one result, whatever ends it, and no
output is cut off.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import threading

import pytest

from ralph.mock_api import Fault, Step, ToolUse, Turn
from tests.driven.driver_lines import request, user
from tests.patience import PATIENCE_S, wait_until
from tests.program.driver import STREAM_JSON, results
from tests.program.kept_sessions import journals

STALLED = Step(Turn("slow " * 20), Fault(stall_after_events=4))


def heartbeats_follow(driver) -> None:
    """Waits until the main thread has passed through its wait at least once since this call."""
    told = [line for line in driver.lines if line.get("subtype") == "heartbeat"]
    driver.event("heartbeat", len(told) + 2)


def test_what_was_written_before_the_end_of_input_is_done_and_answered(drive, serve) -> None:
    serve(Turn([ToolUse("Write", {"file_path": "done", "content": ""})]), Turn("Made."))
    driver = drive()
    driver.send(request("initialize", "r1"), user("make it"), request("get_status", "r2"))
    ran = driver.finish()
    assert (ran.code, [result["result"] for result in results(ran)]) == (0, ["Made."])
    assert driver.answer("r1")["commands"] == []
    assert driver.answer("r2")["auto_retry"] is True


def test_the_end_of_input_cancels_neither_a_request_nor_a_tool(drive, serve, ralph) -> None:
    (ralph.cwd / "ralph.toml").write_text("[clocks]\nheartbeat_s = 0.05\n")
    may_answer = threading.Event()
    command = "touch started; while [ ! -e go ]; do sleep 0.05; done; echo went"

    def script(_request, number):
        assert may_answer.wait(PATIENCE_S)
        return (Turn([ToolUse("Bash", {"command": command})]), Turn("Done."))[number]

    server = serve(script=script)
    driver = drive()
    driver.say("hi")
    assert server.wait_for_requests(1, PATIENCE_S)
    driver.hang_up()
    heartbeats_follow(driver)
    may_answer.set()
    wait_until((ralph.cwd / "started").exists, PATIENCE_S)
    heartbeats_follow(driver)
    (ralph.cwd / "go").touch()
    ran = driver.ended()
    assert (ran.code, ran.result["result"]) == (0, "Done.")
    assert server.requests[1].json()["messages"][-1]["content"][0]["content"].startswith("went")


def test_the_end_of_input_cancels_no_backoff(drive, serve) -> None:
    serve(Fault(status=529, headers={"retry-after": "1"}), Turn("Late."))
    driver = drive()
    driver.say("hi")
    driver.event("api_retry")
    ran = driver.finish()
    assert (ran.code, ran.result["result"], ran.result["retries"]) == (0, "Late.", 1)


def test_messages_have_one_result_each_in_order_in_one_session(drive, serve, ralph, ralph_here) -> None:
    server = serve(Turn("one"), Turn("two"), Turn("three"))
    driver = drive()
    driver.say("first", "second", "third")
    ran = driver.finish()
    assert (ran.code, [result["result"] for result in results(ran)]) == (0, ["one", "two", "three"])
    assert len({line["session_id"] for line in ran.objects if "session_id" in line}) == 1
    said = [
        (message["role"], message["content"][0]["text"]) for message in server.requests[1].json()["messages"]
    ]
    assert said == [("user", "first"), ("assistant", "one"), ("user", "second")]
    assert len(journals(ralph)) == 1
    story = ralph_here("sessions", "show", results(ran)[0]["session_id"]).stdout
    places = [
        story.index(word) for word in ("> first", "\none\n", "> second", "\ntwo\n", "> third", "\nthree\n")
    ]
    assert places == sorted(places)


def test_a_driven_run_continues_a_session(drive, serve, ralph) -> None:
    server = serve(Turn("one"), Turn("two"), Turn("three"))
    first = ralph("first", "--output-format", "json").result["session_id"]
    for options in (["-c"], ["-r", first]):
        driver = drive(*options)
        driver.say("more")
        assert driver.finish().result["session_id"] == first
    assert len(server.requests[-1].json()["messages"]) == 5


def test_a_tool_does_not_read_what_the_driver_writes(drive, serve) -> None:
    server = serve(Turn([ToolUse("Bash", {"command": "cat; echo over"})]), Turn("one"), Turn("two"))
    driver = drive()
    driver.say("first", "second")
    assert len(results(driver.finish())) == 2
    assert server.requests[1].json()["messages"][-1]["content"][0]["content"].strip() == "over"


def test_a_signal_leaves_a_result_for_every_message(drive, serve, ralph) -> None:
    serve(STALLED)
    driver = drive("--include-partial-messages", "--result-file", "result.json")
    driver.say("first", "second")
    driver.delta()
    driver.say("third")
    assert driver.ask("get_status")["queued_messages"] == 2
    driver.process.send_signal(signal.SIGTERM)
    ran = driver.ended().having(143)
    ends = [(result["terminal_reason"], result["exit_code"]) for result in results(ran)]
    assert ends == [("interrupted", 143)] * 3
    assert results(ran)[1]["errors"] == ["not started: stopped by SIGTERM"]
    kept = json.loads((ralph.cwd / "result.json").read_text())
    assert kept["errors"] == results(ran)[-1]["errors"]
    assert ran.last_line.startswith("[ralph] interrupted (exit 143)")


def test_a_signal_between_two_messages_ends_the_process_without_another_result(drive, serve) -> None:
    serve(Turn("Hello."))
    driver = drive()
    driver.say("hi")
    driver.result()
    driver.process.send_signal(signal.SIGINT)
    ran = driver.ended()
    assert (ran.code, [result["exit_code"] for result in results(ran)]) == (130, [0])
    assert ran.last_line.startswith("[ralph] interrupted (exit 130)")


def test_a_signal_before_any_message_leaves_one_result_and_no_session(drive, serve, ralph) -> None:
    serve()
    driver = drive()
    driver.ask("initialize")
    driver.process.send_signal(signal.SIGTERM)
    ran = driver.ended()
    assert (ran.code, ran.result["exit_code"]) == (143, 143)
    assert journals(ralph) == []


def test_input_without_a_message_is_misuse_that_has_no_result_and_leaves_no_session(
    drive, serve, ralph
) -> None:
    serve()
    driver = drive()
    driver.send(*[request("get_status", f"r{number}") for number in range(500)])
    ran = driver.finish()
    assert (ran.code, ran.last_line) == (2, "ralph: standard input held no user message")
    assert results(ran) == []
    assert driver.answer("r499")["state"] == "idle"
    assert journals(ralph) == []


def test_after_a_failure_of_the_machine_the_messages_that_wait_are_not_begun_exits_74(
    drive, serve, ralph
) -> None:
    server = serve(Turn("one"), Turn([ToolUse("Bash", {"command": "true"})]))
    driver = drive()
    driver.say("first")
    driver.result()
    shutil.rmtree(ralph.cwd)
    driver.say("second", "third")
    ran = driver.ended()
    assert (ran.code, [result["exit_code"] for result in results(ran)]) == (74, [0, 74, 74])
    assert results(ran)[2]["errors"][0].startswith("not started: the working directory")
    assert len(server.requests) == 2


def test_a_run_without_a_key_ends_with_one_result_exits_78(drive, ralph) -> None:
    del ralph.environment["ANTHROPIC_API_KEY"]
    ran = drive().ended()
    assert (ran.code, ran.result["terminal_reason"]) == (78, "config")


@pytest.mark.parametrize("prompt", [["a prompt"], ["-f", "ralph.toml"]], ids=["prompt", "file"])
def test_what_does_not_go_with_control_lines_is_one_line_and_a_result_exits_2(ralph, prompt) -> None:
    (ralph.cwd / "ralph.toml").touch()
    ran = ralph(*STREAM_JSON, *prompt, stdin=user("hi"))
    says = "takes the tasks from standard input: give no prompt"
    assert (ran.code, len(ran.objects), len(ran.stderr.splitlines())) == (2, 1, 1)
    assert says in ran.stderr
    assert says in ran.result["errors"][0]


def test_control_lines_without_objects_to_answer_by_are_one_line_exits_2(ralph) -> None:
    ran = ralph("--input-format", "stream-json", stdin=user("hi"))
    assert (ran.code, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)
    assert "--input-format: stream-json needs --output-format stream-json" in ran.stderr


def test_a_terminal_is_no_driver_exits_2(ralph) -> None:
    terminal, its_end = pty.openpty()
    ran = ralph.finish(ralph.start(*STREAM_JSON, stdin=its_end))
    os.close(terminal)
    os.close(its_end)
    assert (ran.code, len(ran.stderr.splitlines())) == (2, 1)
    assert "standard input is a terminal" in ran.stderr
    assert "standard input is a terminal" in ran.result["errors"][0]


@pytest.mark.parametrize("messages", [[], ["hi"]], ids=["before any message", "after a result"])
def test_the_time_limit_ends_the_wait_for_a_message_exits_124(drive, serve, messages) -> None:
    serve(Turn("Hello."))
    driver = drive("--max-time", "1.5")
    driver.say(*messages)
    ran = driver.ended()
    assert (ran.code, len(results(ran))) == (124, 1)


def test_a_reader_that_leaves_hangs_nothing(ralph, serve) -> None:
    server = serve(Turn("one"), Turn("two"))
    process = ralph.start(*STREAM_JSON, stdin=subprocess.PIPE)
    process.stdout.close()
    process.stdin.write(user("first") + b"\n" + user("second") + b"\n")
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0
    process.stderr.close()
    assert len(server.requests) == 2
