"""When a driver is asked about a call, and what its answer means."""

from __future__ import annotations

import pytest

from ralph.run.driven.permission_requests import (
    Allow,
    Deny,
    permission_answer,
    permission_request,
    read_updates,
)
from ralph.values.permission_mode import PermissionMode, must_ask
from ralph.values.tool_calls import ToolCall
from tests.rows import every_row


@every_row(
    ("mode", "asked"),
    [
        ("bypassPermissions", set()),
        ("dontAsk", set()),
        ("default", {"Write", "Edit", "Bash", "mcp__a__b"}),
        ("auto", {"Write", "Edit", "Bash", "mcp__a__b"}),
        ("acceptEdits", {"Bash", "mcp__a__b"}),
    ],
)
def test_the_mode_decides_about_which_tools_somebody_is_asked(mode, asked) -> None:
    tools = ["Read", "Glob", "Grep", "Write", "Edit", "Bash", "mcp__a__b"]
    assert {tool for tool in tools if must_ask(PermissionMode(mode), tool, ())} == asked
    assert not must_ask(PermissionMode(mode), "Bash", {"Bash"}), "allowed by name"


def test_a_request_says_what_the_call_would_do() -> None:
    call = ToolCall("t1", "Bash", {"command": "ls", "description": "lists"})
    asked = permission_request(call, "a hook asks")
    assert asked["input"] == {"command": "ls", "description": "lists"}
    assert (asked["tool_name"], asked["tool_use_id"]) == ("Bash", "t1")
    assert (asked["description"], asked["decision_reason"]) == ("lists", "a hook asks")
    assert "decision_reason" not in permission_request(call, None)


def test_answers_allow_or_deny_and_anything_else_is_an_error() -> None:
    assert permission_answer({"behavior": "allow"}) == Allow()
    assert permission_answer({"behavior": "allow", "updatedInput": {"a": 1}, "toolUseID": "t"}) == Allow(
        {"a": 1}
    )
    assert permission_answer({"behavior": "deny", "message": "no", "interrupt": True}) == Deny(
        "no", interrupt=True
    )
    for wrong in ({}, {"behavior": "maybe"}, {"behavior": "allow", "updatedInput": "ls"}):
        with pytest.raises(ValueError, match=r"."):
            permission_answer(wrong)


def add(behavior: str, *rules: dict[str, str]) -> dict[str, object]:
    return {"type": "addRules", "behavior": behavior, "rules": list(rules), "destination": "session"}


def test_updates_that_widen_may_be_left_out_and_those_that_limit_may_not() -> None:
    bash, git = {"toolName": "Bash"}, {"toolName": "Bash", "ruleContent": "git *"}
    assert read_updates((add("allow", bash),)).allowed == ("Bash",)
    patterned = read_updates((add("allow", git),))
    assert (patterned.allowed, patterned.ignored, patterned.refused) == ((), ("addRules",), None)
    assert read_updates(({"type": "setMode", "mode": "plan", "destination": "session"},)).mode == "plan"
    assert read_updates(({"type": "addDirectories", "directories": ["/x"]},)).refused is None
    for limiting in (
        add("deny", bash),
        add("ask", git),
        {"type": "replaceRules", "behavior": "deny", "rules": []},
    ):
        assert read_updates((limiting,)).refused is not None
    assert read_updates(None) == read_updates(())
