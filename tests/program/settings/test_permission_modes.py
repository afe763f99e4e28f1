"""Tests what a permission mode allows, both from the command line and by a driver's request."""

from __future__ import annotations

import pytest

from tests.patience import wait_until
from tests.program.model_answers import DONE, bash, calls, results, told, tools_of

READERS = ["Read", "Glob", "Grep"]
WRITE = calls(("Write", {"file_path": "made.txt", "content": "x"}))
NOT_RUN = "This call was not run: the permission mode is plan, in which only Read, Glob, Grep run."


def test_plan_offers_and_runs_only_what_reads(ralph, serve) -> None:
    (ralph.cwd / "there.txt").write_text("hello")
    server = serve(WRITE, bash("touch made.txt"), calls(("Read", {"file_path": "there.txt"})), DONE)
    ran = ralph(
        "go",
        "--permission-mode",
        "plan",
        "--output-format",
        "stream-json",
        "--allowed-tools",
        "Write,Bash",
        code=0,
    )
    assert not (ralph.cwd / "made.txt").exists()
    assert [tools_of(server, nth) for nth in range(4)] == [READERS] * 4
    assert [results(server, nth)[0][1] for nth in (1, 2, 3)] == [True, True, False]
    init = ran.objects[0]
    assert (init["permissionMode"], init["tools"]) == ("plan", READERS)
    assert [text for text in ran.notices if text.startswith("tools of this run")] == [
        "tools of this run: Read, Glob, Grep (flag --allowed-tools; permission mode plan)"
    ]


@pytest.mark.parametrize("mode", [None, "auto", "acceptEdits"])
def test_other_modes_run_everything_and_say_where_nobody_is_asked(ralph, serve, mode) -> None:
    serve(WRITE, DONE)
    options = () if mode is None else ("--permission-mode", mode)
    ran = ralph("go", *options, "--output-format", "stream-json", code=0)
    assert (ralph.cwd / "made.txt").exists()
    assert ran.objects[0]["permissionMode"] == (mode or "bypassPermissions")
    told = [text for text in ran.notices if "nobody is asked here" in text]
    assert len(told) == (mode in ("default", "acceptEdits"))


def test_a_driver_goes_to_plan_and_back_to_what_the_start_allowed(drive, serve, ralph) -> None:
    server = serve(WRITE, DONE, WRITE, bash("touch ran"), DONE)
    driver = drive("--disallowed-tools", "Bash")
    assert driver.ask("set_permission_mode", mode="plan") == {"mode": "plan"}
    assert driver.event("status")["permissionMode"] == "plan"
    driver.say("plan it")
    planned = driver.result()
    assert planned["subtype"] == "success"
    [denied] = planned["permission_denials"]
    assert (denied["tool_name"], denied["tool_input"]["content"]) == ("Write", "x")
    assert denied["tool_use_id"] in str(server.requests[1].json()["messages"][-1])
    [(said, is_error)] = results(server, 1)
    assert is_error
    assert said.startswith(NOT_RUN)
    assert not (ralph.cwd / "made.txt").exists()
    for mode in ("askMe", "what"):
        assert isinstance(driver.ask("set_permission_mode", mode=mode), str)
    assert driver.ask("set_permission_mode", mode="bypassPermissions") == {"mode": "bypassPermissions"}
    driver.say("do it")
    assert driver.result(2)["permission_denials"] == []
    driver.finish().having(0)
    assert (ralph.cwd / "made.txt").exists()
    assert not (ralph.cwd / "ran").exists()
    assert "There is no tool 'Bash'" in results(server, 4)[0][0]
    assert {tuple(tools_of(server, nth)) for nth in range(5)} == {("Read", "Write", "Edit", "Glob", "Grep")}


def test_a_command_that_follows_the_request_in_one_answer_is_not_run_any_more(drive, serve, ralph) -> None:
    """The first call runs when the request arrives. The second call is judged by the new mode."""
    serve(
        calls(
            ("Bash", {"command": "touch began; until test -e go; do sleep 0.02; done"}),
            ("Bash", {"command": "touch late"}),
        ),
        DONE,
    )
    driver = drive()
    driver.say("go")
    wait_until((ralph.cwd / "began").exists)
    assert driver.ask("set_permission_mode", mode="plan") == {"mode": "plan"}
    (ralph.cwd / "go").touch()
    assert driver.finish().code == 0
    assert not (ralph.cwd / "late").exists()


def test_a_run_that_was_started_in_plan_is_not_led_out_of_it(drive, serve, ralph) -> None:
    server = serve(WRITE, DONE)
    driver = drive("--permission-mode", "plan")
    refused = driver.ask("set_permission_mode", mode="bypassPermissions")
    assert (
        refused
        == "the run was started with --permission-mode plan and stays in it; start another one for the work"
    )
    driver.say("go")
    assert driver.finish().code == 0
    assert tools_of(server) == READERS
    assert not (ralph.cwd / "made.txt").exists()


def test_a_session_continues_in_plan_with_its_list_of_tools_and_out_of_it_by_a_word(ralph, serve) -> None:
    server = serve(DONE, WRITE, DONE, WRITE, DONE)
    assert ralph("go").code == 0
    assert ralph("-c", "look again", "--permission-mode", "plan").code == 0
    assert results(server, 2)[0][0].startswith(NOT_RUN)
    assert tools_of(server, 0) == tools_of(server, 2)
    assert not (ralph.cwd / "made.txt").exists()
    assert ralph("-c", "now do it").code == 0
    assert (ralph.cwd / "made.txt").exists()


def test_a_session_that_began_in_plan_keeps_to_reading_until_tools_are_named(ralph, serve) -> None:
    server = serve(DONE, WRITE, DONE, WRITE, DONE)
    assert ralph("go", "--permission-mode", "plan").code == 0
    kept = ralph("-c", "do it", "--model", "opus")
    assert (
        "tools of this run: Read, Glob, Grep (as in the session so far; --tools default gives all)"
        in kept.stderr
    )
    assert tools_of(server, 2) == READERS
    assert not (ralph.cwd / "made.txt").exists()
    assert ralph("-c", "do it now", "--tools", "default").code == 0
    assert (ralph.cwd / "made.txt").exists()


def test_without_anybody_to_ask_a_call_that_would_ask_is_denied(ralph, serve) -> None:
    server = serve(bash("touch ran"), DONE)
    ralph("go", "--permission-prompts", "none", "--permission-mode", "default", code=0)
    assert "nobody is asked here (--permission-prompts none)" in told(server)[0]["content"]
    assert not (ralph.cwd / "ran").exists()
