"""A driver's hooks and its permission callback decide about the calls of whole runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.driven.driver_lines import user
from tests.program.driver import results
from tests.program.model_answers import DONE, bash, calls, told

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.program.driver import Driver, Line

ASKS = ("--permission-prompt-tool", "stdio")


def asked(driver: Driver, nth: int = 1) -> Line:
    """Waits for the nth request that ralph sends to the driver."""
    return driver.wait_for(lambda line: line["type"] == "control_request", nth)


def reply(
    driver: Driver, request: Line, answer: dict[str, Any] | None = None, error: str | None = None
) -> None:
    content = {"response": answer} if error is None else {"error": error}
    kind = "success" if error is None else "error"
    response = {"subtype": kind, "request_id": request["request_id"], **content}
    driver.send(json.dumps({"type": "control_response", "response": response}).encode())


def hooks(*events: str, **fields: Any) -> dict[str, Any]:
    return {event: [{"hookCallbackIds": [f"on-{event}"], **fields}] for event in events}


def decision(name: str, **fields: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": name, **fields}}


def hooked(drive: Callable[..., Driver], *events: str, options: Sequence[str] = (), **fields: Any) -> Driver:
    """A driver that has hooks for these events and has said what is to be done."""
    driver = drive(*options)
    driver.ask("initialize", hooks=hooks(*events, **fields))
    driver.say("go")
    return driver


def test_a_hook_denies_a_call_which_never_runs_and_is_told_to_the_model(drive, serve, ralph) -> None:
    server = serve(bash("touch ran"), DONE)
    driver = drive()
    introduction = driver.ask("initialize", hooks=hooks("PreToolUse", matcher="Bash"))
    assert (introduction["hooks_applied"], introduction["hook_on_failure_supported"]) == (True, True)
    driver.say("go")
    request = asked(driver)
    assert request["request"]["callback_id"] == "on-PreToolUse"
    about = request["request"]["input"]
    assert (about["hook_event_name"], about["tool_name"], about["tool_input"]) == (
        "PreToolUse",
        "Bash",
        {"command": "touch ran"},
    )
    assert about["session_id"] in about["transcript_path"]
    assert about["cwd"] == str(ralph.cwd)
    reply(driver, request, decision("deny", permissionDecisionReason="not tonight"))
    [result] = results(driver.finish())
    assert told(server)[0]["content"] == "PreToolUse:Bash hook error: not tonight"
    assert not (ralph.cwd / "ran").exists()
    assert [denied["tool_input"] for denied in result["permission_denials"]] == [{"command": "touch ran"}]


def test_a_matcher_with_a_pattern_is_a_rule_and_one_that_matches_nothing_is_refused(
    drive, serve, ralph
) -> None:
    server = serve(bash("touch ran"), bash("rm ran"), DONE)
    driver = hooked(drive, "PreToolUse", matcher="Bash(rm:*)")
    request = asked(driver)
    assert request["request"]["input"]["tool_input"] == {"command": "rm ran"}
    reply(driver, request, decision("deny", permissionDecisionReason="kept"))
    assert driver.finish().code == 0
    assert "kept" in told(server)[0]["content"]
    assert (ralph.cwd / "ran").exists()
    driver = drive()
    refused = driver.ask("initialize", hooks=hooks("PreToolUse", matcher="Shell"))
    assert "the matcher 'Shell' of a hook cannot be kept: no tool is called 'Shell'" in refused
    driver.say("go")
    assert driver.finish().code == 78


def test_a_hook_that_fails_denies(drive, serve, ralph) -> None:
    server = serve(*(bash(f"touch ran-{number}") for number in range(4)), DONE)
    driver = hooked(drive, "PreToolUse")
    reply(driver, asked(driver), error="the hook crashed")
    reply(driver, asked(driver, 2), decision("perhaps"))
    reply(driver, asked(driver, 3), {"hookSpecificOutput": {"permission_decision": "deny"}})
    asked(driver, 4)  # the driver leaves
    assert driver.finish().code == 0
    for nth in range(1, 5):
        [said] = told(server, nth)
        assert said["is_error"]
        assert "hook error" in said["content"]
    assert not [*ralph.cwd.glob("ran-*")]


def test_a_hook_that_is_late_denies_whatever_it_says_then(drive, serve, ralph) -> None:
    server = serve(bash("touch ran"), DONE)
    driver = hooked(drive, "PreToolUse", timeout=0.05)
    request = asked(driver)
    cancel = driver.wait_for(lambda line: line["type"] == "control_cancel_request")
    assert cancel["request_id"] == request["request_id"]
    reply(driver, request, decision("allow"))
    assert driver.finish().code == 0
    assert "hook error" in told(server)[0]["content"]
    assert not (ralph.cwd / "ran").exists()


def test_a_hook_changes_the_input_and_adds_to_the_result(drive, serve, ralph) -> None:
    server = serve(bash("touch ran"), DONE)
    driver = hooked(drive, "PreToolUse", "PostToolUse")
    reply(driver, asked(driver), decision("allow", updatedInput={"command": "echo other"}))
    after = asked(driver, 2)
    about = after["request"]["input"]
    assert about["tool_input"] == {"command": "echo other"}
    assert about["tool_response"] == {"stdout": "other", "stderr": "", "interrupted": False, "isImage": False}
    reply(
        driver,
        after,
        {"hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "well done"}},
    )
    driver.finish()
    assert told(server)[0]["content"] == "other\n\nwell done"
    assert not (ralph.cwd / "ran").exists()


def test_arguments_that_a_hook_changed_are_checked_again(drive, serve, ralph) -> None:
    server = serve(bash("touch ran"), DONE)
    driver = hooked(drive, "PreToolUse")
    reply(driver, asked(driver), decision("allow", updatedInput={"cmd": "touch ran"}))
    driver.finish()
    assert told(server)[0]["content"].startswith(
        "A hook changed the arguments of this call. This call was not run."
    )
    assert not (ralph.cwd / "ran").exists()


def test_a_hook_that_ends_the_run_after_a_call_loses_no_result(drive, serve, ralph) -> None:
    server = serve(bash("echo kept"), DONE)
    driver = hooked(drive, "PostToolUse")
    reply(driver, asked(driver), {"continue": False})
    driver.result()
    driver.ask("initialize", hooks=None)
    driver.say("go on")
    driver.result(2)
    assert driver.finish().code == 0
    assert told(server)[0]["content"] == "kept"


def test_a_prompt_hook_adds_to_the_task_or_refuses_it(drive, serve) -> None:
    server = serve(DONE, DONE)
    driver = hooked(drive, "UserPromptSubmit")
    request = asked(driver)
    assert request["request"]["input"]["prompt"] == "go"
    context = {
        "hookSpecificOutput": {"hookEventName": "UserPromptSubmit", "additionalContext": "it is Monday"}
    }
    reply(driver, request, context)
    driver.result()
    assert [block["text"] for block in told(server)] == ["go", "it is Monday"]
    driver.say("and now")
    reply(driver, asked(driver, 2), {"decision": "block", "reason": "not on Mondays"})
    refused = driver.result(2)
    assert refused["errors"] == ["a UserPromptSubmit hook refused the task: not on Mondays"]
    assert (refused["subtype"], refused["num_turns"]) == ("error_during_execution", 0)
    assert driver.finish().code == 130
    assert server.request_count == 1


def test_a_stop_hook_that_fails_is_no_permission_to_stop(drive, serve) -> None:
    serve(DONE)
    driver = hooked(drive, "Stop")
    reply(driver, asked(driver), error="crashed")
    assert driver.result()["errors"] == ["the Stop hook failed: crashed"]
    assert driver.finish().code == 78


def test_a_driver_is_asked_about_calls_that_the_mode_does_not_permit(drive, serve, ralph) -> None:
    server = serve(calls(("Read", {"file_path": "notes"})), bash("echo one > a"), bash("echo two > b"), DONE)
    (ralph.cwd / "notes").write_text("hello")
    driver = drive(*ASKS)
    driver.say("go")
    first = asked(driver)
    assert first["request"]["subtype"] == "can_use_tool"
    assert (first["request"]["tool_name"], first["request"]["input"]) == ("Bash", {"command": "echo one > a"})
    reply(driver, first, {"behavior": "allow", "updatedInput": {"command": "echo changed > a"}})
    reply(driver, asked(driver, 2), {"behavior": "deny", "message": "only one"})
    [result] = results(driver.finish())
    assert (ralph.cwd / "a").read_text() == "changed\n"
    assert not (ralph.cwd / "b").exists()
    assert told(server)[0]["content"] == "only one"
    assert [denied["tool_input"] for denied in result["permission_denials"]] == [{"command": "echo two > b"}]
    init = driver.event("init")
    assert init["permissionMode"] == "default"


def test_a_permission_that_nobody_gives_is_denied(drive, serve, ralph) -> None:
    server = serve(*(bash(f"touch ran-{number}") for number in range(3)), DONE)
    driver = drive(*ASKS)
    driver.say("go")
    reply(driver, asked(driver), error="no window")
    reply(driver, asked(driver, 2), {"behavior": "sure"})
    asked(driver, 3)  # the driver leaves
    assert driver.finish().code == 0
    for nth in range(1, 4):
        assert told(server, nth)[0]["content"].startswith("Tool permission request failed")
    assert not [*ralph.cwd.glob("ran-*")]


def test_a_permission_that_is_late_is_denied(drive, serve, ralph) -> None:
    server = serve(bash("touch ran"), DONE)
    config = ralph.cwd.parent / "own.toml"
    config.write_text("[clocks]\ndriver_s = 0.05\n")
    driver = drive(*ASKS, "--config", str(config))
    driver.say("go")
    driver.wait_for(lambda line: line["type"] == "control_cancel_request")
    assert driver.finish().code == 0
    assert told(server)[0]["content"].startswith("Tool permission request failed")
    assert not (ralph.cwd / "ran").exists()


def test_nobody_is_asked_with_permission_prompts_none_and_what_would_ask_is_denied(
    drive, serve, ralph
) -> None:
    server = serve(bash("touch ran"), DONE)
    driver = drive(*ASKS, "--permission-prompts", "none")
    driver.say("go")
    assert driver.finish().code == 0
    assert "nobody is asked here" in told(server)[0]["content"]
    assert not (ralph.cwd / "ran").exists()


def test_a_driver_that_skips_permissions_is_not_asked(drive, serve, ralph) -> None:
    serve(bash("touch ran"), DONE)
    driver = drive(*ASKS, "--dangerously-skip-permissions")
    driver.say("go")
    assert driver.finish().code == 0
    assert (ralph.cwd / "ran").exists()


def test_a_hook_that_asks_reaches_the_driver_even_if_everything_is_permitted(drive, serve, ralph) -> None:
    serve(bash("touch ran"), DONE)
    driver = hooked(drive, "PreToolUse", options=[*ASKS, "--permission-mode", "bypassPermissions"])
    reply(driver, asked(driver), decision("ask", permissionDecisionReason="sure?"))
    question = asked(driver, 2)
    assert (question["request"]["subtype"], question["request"]["decision_reason"]) == (
        "can_use_tool",
        "sure?",
    )
    reply(driver, question, {"behavior": "allow"})
    assert driver.finish().code == 0
    assert (ralph.cwd / "ran").exists()


def test_a_command_hook_that_asks_reaches_the_driver_even_if_everything_is_permitted(
    drive, serve, ralph
) -> None:
    serve(bash("touch ran"), DONE)
    answer = decision("ask", permissionDecisionReason="is that so?")
    hook = {"type": "command", "command": f"echo '{json.dumps(answer)}'"}
    settings = json.dumps({"hooks": {"PreToolUse": [{"hooks": [hook]}]}})
    driver = drive(*ASKS, "--permission-mode", "bypassPermissions", "--settings", settings)
    driver.ask("initialize")
    driver.say("go")
    request = asked(driver)
    about = request["request"]
    assert (about["subtype"], about["decision_reason"]) == ("can_use_tool", "is that so?")
    reply(driver, request, {"behavior": "allow"})
    driver.finish()
    assert (ralph.cwd / "ran").exists()


def test_a_denial_with_interrupt_ends_the_message(drive, serve) -> None:
    serve(bash("touch ran"), DONE)
    driver = drive(*ASKS)
    driver.say("go")
    reply(driver, asked(driver), {"behavior": "deny", "message": "stop it", "interrupt": True})
    assert driver.result()["errors"] == ["the driver denied a call and ended the run: stop it"]
    assert driver.finish().code == 130


def test_an_update_that_limits_and_cannot_be_kept_ends_the_run(drive, serve, ralph) -> None:
    serve(bash("touch ran"), DONE)
    driver = drive(*ASKS)
    driver.say("go")
    rule = {"type": "addRules", "behavior": "deny", "rules": [{"toolName": "Bash", "ruleContent": "rm *"}]}
    reply(driver, asked(driver), {"behavior": "allow", "updatedPermissions": [rule]})
    assert driver.finish().code == 78
    assert not (ralph.cwd / "ran").exists()


def test_states_are_told_to_a_driver_that_wants_them(drive, serve, ralph) -> None:
    serve(bash("echo hi"), DONE)
    ralph.environment["CLAUDE_CODE_SDK_READS_SESSION_STATE"] = "1"
    driver = drive(*ASKS)
    driver.send(user("go"))
    reply(driver, asked(driver), {"behavior": "allow"})
    driver.result()
    driver.wait_for(lambda line: line.get("state") == "idle")
    driver.finish()
    states = [line["state"] for line in driver.lines if line.get("subtype") == "session_state_changed"]
    assert states == ["running", "requires_action", "running", "idle"]


def test_the_first_line_shapes_the_session(drive, serve) -> None:
    server = serve(calls(("final_report", {"status": "success", "summary": "Two.", "payload": {"n": 2}})))
    driver = drive()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    driver.ask("initialize", systemPrompt=["You count."], appendSystemPrompt="Be brief.", jsonSchema=schema)
    late = driver.ask("initialize", systemPrompt=["You sing."])
    assert "must be in the first line" in late
    driver.say("go")
    [result] = results(driver.finish())
    system = json.dumps(server.requests[0].json()["system"])
    assert "You count." in system
    assert "Be brief." in system
    assert result["structured_output"] == {"n": 2}


@pytest.mark.parametrize(("options", "title"), [((), "x" * 200), (("--name", "Mine"), "Mine")])
def test_a_session_has_the_drivers_title_unless_the_command_line_names_one(
    drive, serve, ralph, options, title
) -> None:
    serve(DONE)
    driver = drive(*options)
    driver.ask("initialize", title="x" * 300)
    driver.say("go")
    assert driver.finish().code == 0
    assert title in ralph("sessions", "ls").stdout.split()


@pytest.mark.parametrize("prompt", [[""], "", None])
def test_an_empty_system_prompt_removes_that_of_ralph_and_none_keeps_it(drive, serve, prompt) -> None:
    server = serve(DONE)
    driver = drive()
    driver.ask("initialize", systemPrompt=prompt)
    driver.say("go")
    assert driver.finish().code == 0
    system = json.dumps(server.requests[0].json().get("system", ""))
    assert ("You are" in system) == (prompt is None)


RULES = ("--settings", '{"permissions": {"deny": ["Bash(rm:*)"], "ask": ["Bash(touch:*)"]}}')


def test_a_rule_that_asks_is_put_to_the_driver_also_where_nothing_else_is(drive, serve, ralph) -> None:
    server = serve(bash("touch one"), bash("touch two"), bash("rm one"), DONE)
    driver = drive(*ASKS, "--permission-mode", "bypassPermissions", *RULES)
    driver.say("go")
    first = asked(driver)
    assert first["request"]["decision_reason"].startswith(
        "the rule Bash(touch:*) (permissions.ask of --settings)"
    )
    reply(driver, first, {"behavior": "allow"})
    reply(driver, asked(driver, 2), {"behavior": "deny", "message": "one is enough"})
    [result] = results(driver.finish())
    assert (ralph.cwd / "one").exists()
    assert not (ralph.cwd / "two").exists()
    assert [told(server, nth)[0]["content"] for nth in (2, 3)] == [
        "one is enough",
        "This call was not run: the rule Bash(rm:*) (permissions.deny of --settings) forbids it.",
    ]
    assert len(result["permission_denials"]) == 2


def test_a_permission_does_not_get_past_a_rule_that_denies(drive, serve, ralph) -> None:
    serve(bash("touch one"), DONE)
    (ralph.cwd / "kept").touch()
    driver = drive(*ASKS, *RULES)
    driver.say("go")
    reply(driver, asked(driver), {"behavior": "allow", "updatedInput": {"command": "rm kept"}})
    [result] = results(driver.finish())
    assert (ralph.cwd / "kept").exists()
    assert len(result["permission_denials"]) == 1
