"""If a driver asks for a safeguard that ralph does not have, nothing may run."""

from __future__ import annotations

import json

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.driven.driver_lines import request, user
from tests.patience import wait_until
from tests.program.driver import results
from tests.program.model_answers import DONE, bash

AGENTS = {"reviewer": {"description": "reads", "prompt": "review it"}}
HOOKS = {"PreToolUse": [{"matcher": "Bash", "hookCallbackIds": ["hook_0"], "timeout": 60}]}


@pytest.mark.parametrize(
    "guard", [{"agents": AGENTS}, {"canUseTool": True}], ids=lambda guard: next(iter(guard))
)
def test_after_a_refused_guard_every_message_ends_with_78_and_nothing_is_asked(
    drive, serve, ralph, guard
) -> None:
    server = serve(bash("touch ran"), DONE, bash("touch ran"), DONE)
    driver = drive()
    # As an SDK may send it: the message at once, without waiting for the answer.
    driver.send(
        request("initialize", "r1", **guard),
        user("go"),
        request("initialize", "r2", hooks=None),
        user("again"),
    )
    refused = driver.answer("r1")
    assert refused.startswith(f'initialize asked for "{next(iter(guard))}", which ralph cannot honour')
    assert driver.answer("r2") == refused, "who has asked once is not served without it later"
    driver.result(2)
    driver.say("and now")
    ran = driver.finish().having(78)
    told = results(ran)
    assert [(one["subtype"], one["terminal_reason"], one["exit_code"], one["num_turns"]) for one in told] == [
        ("error_during_execution", "config", 78, 0)
    ] * 3
    assert {one["errors"][-1] for one in told} == {refused}
    assert server.request_count == 0
    assert not (ralph.cwd / "ran").exists()
    assert ralph("-c").code == 2, "nothing was said in that session, so it is not kept"


def test_a_message_at_work_ends_when_a_guard_is_refused_and_its_calls_are_not_run(
    drive, serve, ralph
) -> None:
    server = serve(Step(bash("touch ran"), Fault(stall_before_headers_s=60)))
    driver = drive()
    driver.say("go")
    wait_until(lambda: server.request_count == 1)
    refused = driver.ask("initialize", agents=AGENTS)
    ended = driver.result()
    assert (ended["terminal_reason"], ended["exit_code"], ended["errors"][-1]) == ("config", 78, refused)
    driver.say("again")
    assert driver.result(2)["exit_code"] == 78
    assert driver.finish().code == 78
    assert server.request_count == 1
    assert not (ralph.cwd / "ran").exists()


def test_after_a_refused_mode_nothing_runs_until_one_is_set_that_can_be_kept(drive, serve, ralph) -> None:
    server = serve(bash("touch ran"), DONE)
    driver = drive()
    # Without waiting for the answer, as before.
    driver.send(request("set_permission_mode", "r1", mode="askMe"), user("go"))
    refused = driver.answer("r1")
    ended = driver.result()
    assert (ended["terminal_reason"], ended["exit_code"], server.request_count) == ("config", 78, 0)
    assert ended["errors"][-1].startswith(f"set_permission_mode was refused: {refused}")
    assert driver.ask("set_permission_mode", mode="plan") == {"mode": "plan"}
    assert isinstance(driver.ask("set_permission_mode", mode="askMe"), str), "plan is tighter, and stays"
    driver.say("go")
    assert driver.result(2)["subtype"] == "success"
    assert driver.finish().code == 0
    assert server.request_count == 2
    assert not (ralph.cwd / "ran").exists()


@pytest.mark.parametrize(
    "line",
    [
        {"request": {"subtype": "initialize", "hooks": HOOKS}},
        {"request_id": 1, "request": {"subtype": "initialize", "hooks": HOOKS}},
        {"request_id": 1, "request": {"subtype": "set_permission_mode", "mode": "plan"}},
    ],
)
def test_a_guard_in_a_request_without_a_proper_id_is_a_guard(drive, serve, ralph, line) -> None:
    server = serve(bash("touch ran"), DONE)
    driver = drive()
    driver.send(json.dumps({"type": "control_request", **line}).encode(), user("go"))
    assert '"request_id" must be a text' in driver.answer(None)
    assert driver.finish().code == 78
    assert server.request_count == 0
    assert not (ralph.cwd / "ran").exists()


def test_hooks_that_hook_nothing_are_no_guard(drive, serve) -> None:
    serve(Turn("Hello."))
    driver = drive()
    assert driver.ask("initialize", hooks={"PreToolUse": [], "Stop": None})["commands"] == []
    driver.say("hi")
    assert driver.finish().code == 0


def test_a_prompt_tool_needs_a_driver_exits_2(ralph, serve) -> None:
    server = serve(DONE)
    ran = ralph("hi", "--permission-prompt-tool", "stdio")
    assert (ran.code, server.request_count) == (2, 0)
    assert "nobody can be asked without --input-format stream-json" in ran.stderr
    assert "ask only the driver" in ralph("hi", "--permission-prompt-tool", "mcp__a__b").stderr.replace(
        "asks", "ask"
    )
