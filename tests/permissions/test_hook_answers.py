"""Tests what the answers of hooks mean."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.json import Decoder

from ralph.permissions.hook_answers import (
    HookAnswer,
    call_verdict,
    contexts,
    first_block,
    hook_answer,
    stop_if_asked,
)
from ralph.values.ports import HookStopped
from tests.rows import every_row


def answer(**fields: Any) -> HookAnswer:
    return hook_answer(fields)


def specific(**fields: Any) -> HookAnswer:
    return answer(hookSpecificOutput={"hookEventName": "PreToolUse", **fields})


def test_the_strictest_decision_counts() -> None:
    allow, ask = (
        specific(permissionDecision="allow"),
        specific(permissionDecision="ask", permissionDecisionReason="?"),
    )
    deny = specific(permissionDecision="deny", permissionDecisionReason="no")
    assert call_verdict([allow, ask, deny]).denied == "no"
    assert (call_verdict([allow, ask]).asks, call_verdict([allow, ask]).allows) == ("?", False)
    assert call_verdict([allow]).allows
    assert call_verdict([answer()]) == call_verdict([])


@every_row(
    "denying",
    [
        answer(decision="block", reason="no"),
        specific(permissionDecision="deny", permissionDecisionReason="no"),
        specific(permissionDecision="defer", permissionDecisionReason="no"),
    ],
)
def test_old_and_new_forms_of_a_refusal_deny(denying) -> None:
    assert (call_verdict([denying]).denied, first_block([answer(), denying])) == ("no", "no")


def test_a_hook_can_change_the_arguments_add_context_and_end_the_run() -> None:
    changing = specific(updatedInput={"command": "ls"}, additionalContext="look")
    verdict = call_verdict([answer(), changing])
    assert (verdict.arguments, verdict.context) == ({"command": "ls"}, ("look",))
    assert contexts([changing, answer()]) == ("look",)
    stop_if_asked([answer()])
    for more, why in (({"stopReason": "enough"}, "enough"), ({}, "no reason was given")):
        with pytest.raises(HookStopped, match=f"a hook ended the run: {why}"):
            stop_if_asked([answer(), hook_answer({"continue": False, **more})])


def test_an_asynchronous_hook_has_no_opinion() -> None:
    assert hook_answer({"async": True, "decision": "block"}) == HookAnswer()


@every_row(
    "fields",
    [
        {"decision": "blcok"},
        {"continue": "no"},
        {"hookSpecificOutput": {"permissionDecision": "maybe"}},
        {"hookSpecificOutput": {"updatedInput": "ls"}},
        {"hookSpecificOutput": ["deny"]},
        {"Decision": "block"},
        {"contine": False},
        {"hook_specific_output": {"permissionDecision": "deny"}},
        {"updatedInput": {"command": "ls"}},
        {"hookSpecificOutput": {"decision": "block"}},
        {"hookSpecificOutput": {"permissionDecisions": "deny"}},
    ],
)
def test_an_answer_of_the_wrong_kind_is_a_failure_and_not_a_permission(fields) -> None:
    with pytest.raises(ValueError, match=r"."):
        hook_answer(fields)


def test_keys_of_claude_code_without_effect_are_left_alone() -> None:
    more = {"updatedMCPToolOutput": "x", "watchPaths": [], "retry": True}
    assert specific(**more) == HookAnswer()
    assert answer(suppressOutput=True, asyncTimeout=5, terminalSequence="", decisionReason="") == HookAnswer()


def test_an_answer_can_be_decoded() -> None:
    Decoder(HookAnswer)
