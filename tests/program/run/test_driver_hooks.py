"""A driver's hooks and its permission callback decide about the calls of whole runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Turn
from tests.driven.driver_lines import user
from tests.program.driver import results
from tests.program.model_answers import DONE, bash, calls, told

if TYPE_CHECKING:
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


@pytest.mark.parametrize("failing", ["error", "nonsense", "misspelt", "late", "gone"])
def test_a_hook_that_fails_denies(drive, serve, ralph, failing) -> None:
    server = serve(bash("touch ran"), DONE)
    driver = drive()
    timeout = {"timeout": 0.05} if failing == "late" else {}
    driver.ask("initialize", hooks=hooks("PreToolUse", **timeout))
    driver.say("go")
    request = asked(driver)
    match failing:
        case "error":
            reply(driver, request, error="the hook crashed")
        case "nonsense":
            reply(driver, request, decision("perhaps"))
        case "misspelt":
            reply(driver, request, {"hookSpecificOutput": {"permission_decision": "deny"}})
        case "late":
            cancel = driver.wait_for(lambda line: line["type"] == "control_cancel_request")
            assert cancel["request_id"] == request["request_id"]
            reply(driver, request, decision("allow"))
    ran = driver.finish()
    assert ran.code == 0
    said = told(server)[0]
    assert said["is_error"]
    assert "hook error" in said["content"]
    assert not (ralph.cwd / "ran").exists()


def test_a_hook_changes_the_input_and_adds_to_the_result(drive, serve, ralph) -> None:
    server = serve(bash("touch ran"), DONE)
    driver = drive()
    driver.ask("initialize", hooks=hooks("PreToolUse", "PostToolUse"))
    driver.say("go")
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


def test_a_hook_ends_the_run_and_the_call_does_not_run(drive, serve, ralph) -> None:
    server = serve(bash("touch ran"), DONE)
    driver = drive()
    driver.ask("initialize", hooks=hooks("PreToolUse"))
    driver.say("go")
    reply(driver, asked(driver), {"continue": False, "stopReason": "enough for today"})
    ended = driver.result()
    assert (ended["subtype"], ended["terminal_reason"]) == ("error_during_execution", "interrupted")
    assert ended["errors"] == ["a hook ended the run: enough for today"]
    driver.hang_up()
    assert driver.ended().code == 130
    assert not (ralph.cwd / "ran").exists()
    assert server.request_count == 1


def test_a_prompt_hook_adds_to_the_task_or_refuses_it(drive, serve) -> None:
    server = serve(DONE, DONE)
    driver = drive()
    driver.ask("initialize", hooks=hooks("UserPromptSubmit"))
    driver.say("go")
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


def test_a_stop_hook_sends_the_model_back_to_work(drive, serve) -> None:
    server = serve(Turn("Done."), Turn("Really done."))
    driver = drive()
    driver.ask("initialize", hooks=hooks("Stop"))
    driver.say("go")
    first = asked(driver)
    about = first["request"]["input"]
    assert (about["stop_hook_active"], about["last_assistant_message"]) == (False, "Done.")
    reply(driver, first, {"decision": "block", "reason": "the tests fail"})
    second = asked(driver, 2)
    assert second["request"]["input"]["stop_hook_active"] is True
    reply(driver, second, {})
    [result] = results(driver.finish())
    assert told(server)[0]["text"] == "Stop hook feedback:\nthe tests fail"
    assert (result["result"], result["num_turns"]) == ("Really done.", 2)


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


@pytest.mark.parametrize("failing", ["error", "nonsense", "gone", "late"])
def test_a_permission_that_nobody_gives_is_denied(drive, serve, ralph, failing) -> None:
    server = serve(bash("touch ran"), DONE)
    config = ralph.cwd.parent / "own.toml"
    config.write_text(f"[clocks]\ndriver_s = {0.05 if failing == 'late' else 3600}\n")
    driver = drive(*ASKS, "--config", str(config))
    driver.say("go")
    request = asked(driver)
    if failing == "error":
        reply(driver, request, error="no window")
    if failing == "nonsense":
        reply(driver, request, {"behavior": "sure"})
    if failing == "late":
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
