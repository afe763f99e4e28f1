"""The order in which hooks, rules, the mode and somebody who is asked decide about a call, and who has the last word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from msgspec.structs import replace

from ralph.permissions.gate import CallGate, CommandRules, Decision, HookFailedError, RulesInForce
from ralph.permissions.hook_answers import hook_answer
from ralph.permissions.judge import Permissions, RulePlaces
from ralph.permissions.rule import Effect, parse_matcher, parse_rule
from ralph.values.answer import Runnable, ToolCall, ToolOutput
from ralph.values.controls import PermissionMode, RunControls
from ralph.values.events import Notice
from ralph.values.ports import EndRefused, GuardRefused, HookStopped
from ralph.values.redaction import Redactor
from ralph.values.tool_choice import TOOL_NAMES
from tests.fakes import RecordingEvents
from tests.permissions.worlds import FakeDisk, permissions
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.permissions.hook_answers import HookAnswer
    from ralph.permissions.rule import Matcher
    from ralph.values.answer import Ruling


class Steps:
    """All who decide about a call. They share a list of who was asked about which command."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def hooks(self, name: str, **answer: Any) -> ScriptedHooks:
        return ScriptedHooks(self, name, answer)

    def asker(self, decision: Decision) -> ScriptedAsker:
        return ScriptedAsker(self, decision)


class ScriptedHooks(NamedTuple):
    steps: Steps
    name: str
    answer: dict[str, Any]

    def answers(
        self, event: str, fields: Mapping[str, Any], covers: Callable[[Matcher], bool]
    ) -> Sequence[HookAnswer]:
        self.steps.asked.append((self.name, str(fields.get("tool_input", {}).get("command", event))))
        assert covers(parse_matcher(fields.get("tool_name")))
        if self.answer.get("fails"):
            raise HookFailedError("it broke")
        return [hook_answer(self.answer)]


class ScriptedAsker(NamedTuple):
    steps: Steps
    decision: Decision

    def decide(self, call: ToolCall, reason: str | None) -> Decision:
        self.steps.asked.append((f"somebody because {reason}", str(call.arguments["command"])))
        return self.decision


def decided(**fields: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": fields}


def changes_to(command: str) -> dict[str, Any]:
    return decided(updatedInput={"command": command})


def gate(
    hooks: Sequence[ScriptedHooks] = (),
    asker: ScriptedAsker | None = None,
    mode: str = "default",
    command: CommandRules | None = None,
    *,
    nobody: bool = False,
    **rules: Sequence[str],
) -> CallGate:
    in_force = RulesInForce(permissions(**rules) if rules else None)  # type: ignore[arg-type]  # lists of rules alone
    in_force.begin_task(command)
    controls = RunControls(permission_mode=PermissionMode(mode))
    return CallGate(controls, RecordingEvents(), in_force, hooks=hooks, asker=asker, refuses_unasked=nobody)


def called(command: str, *notes: str, tool: str = "Bash") -> Runnable:
    return Runnable(ToolCall("t", tool, {"command": command}), notes)


def judge(made: CallGate, command: str = "old", tool: str = "Bash") -> Ruling:
    return made.judge(called(command, tool=tool), Runnable)


def why_denied(made: CallGate, command: str = "old", tool: str = "Bash") -> str | None:
    ruling = judge(made, command, tool)
    return str(ruling.content) if isinstance(ruling, ToolOutput) else None


def test_hooks_come_first_and_each_later_step_judges_what_an_earlier_one_has_changed() -> None:
    steps = Steps()
    hooks = [steps.hooks("files", **changes_to("second")), steps.hooks("driver", **changes_to("third"))]
    made = gate(hooks, steps.asker(Decision(arguments={"command": "last"})), ask=["Bash(third)"])
    assert judge(made, "first") == called("last")
    reason = "the rule Bash(third) (the file) requires somebody to be asked first."
    assert steps.asked == [("files", "first"), ("driver", "second"), (f"somebody because {reason}", "third")]


def test_rules_judge_the_changes_of_a_hook_and_of_somebody_who_was_asked() -> None:
    steps = Steps()
    by_hook = judge(gate([steps.hooks("driver", **changes_to("rm x"))], deny=["Bash(rm:*)"]))
    assert isinstance(by_hook, ToolOutput)
    assert "the rule Bash(rm:*)" in by_hook.content
    by_somebody = judge(gate([], steps.asker(Decision(arguments={"command": "rm x"})), deny=["Bash(rm:*)"]))
    assert by_somebody == by_hook
    allowed = judge(gate([steps.hooks("driver", **changes_to("ls"))], deny=["Bash(rm:*)"]), "rm x")
    assert allowed == called("ls")


def test_rules_do_not_judge_what_one_hook_hands_to_the_next() -> None:
    steps = Steps()
    hooks = [steps.hooks("files", **changes_to("rm x")), steps.hooks("driver", **changes_to("ls"))]
    assert judge(gate(hooks, deny=["Bash(rm:*)"]), "rm x") == called("ls")
    assert steps.asked == [("files", "rm x"), ("driver", "rm x")]


def check_number(call: ToolCall) -> Ruling:
    """A check that converts a text to a number, and refuses a text that is none."""
    text = call.arguments["command"]
    if not text.isdecimal():
        return ToolOutput(f"{text} is not a number", is_error=True)
    return Runnable(replace(call, arguments={"command": int(text)}), (f"from {text!r}",))


def test_what_somebody_changes_is_converted_before_anybody_else_judges_it() -> None:
    steps = Steps()
    adds = decided(updatedInput={"command": "2"}, additionalContext="by a hook")
    hooks = [steps.hooks("files", **adds), steps.hooks("driver")]
    asker = steps.asker(Decision(arguments={"command": "3"}))
    ruling = gate(hooks, asker, ask=["Bash"]).judge(called("1"), check_number)
    reason = "the rule Bash (the file) requires somebody to be asked first."
    assert steps.asked == [("files", "1"), ("driver", "2"), (f"somebody because {reason}", "2")]
    assert ruling == Runnable(ToolCall("t", "Bash", {"command": 3}), ("from '3'", "by a hook"))
    assert gate(hooks).judge(called("1"), check_number) == Runnable(
        ToolCall("t", "Bash", {"command": 2}), ("from '2'", "by a hook")
    )


def lower(call: ToolCall) -> Ruling:
    return Runnable(replace(call, arguments={"command": call.arguments["command"].lower()}))


def test_rules_judge_a_change_as_it_was_converted() -> None:
    steps = Steps()
    by_hook = gate([steps.hooks("driver", **changes_to("RM x"))], deny=["Bash(rm:*)"])
    by_somebody = gate([], steps.asker(Decision(arguments={"command": "RM x"})), deny=["Bash(rm:*)"])
    for made in (by_hook, by_somebody):
        ruling = made.judge(called("ls"), lower)
        assert isinstance(ruling, ToolOutput)
        assert "the rule Bash(rm:*)" in ruling.content


def test_a_change_that_does_not_fit_the_schema_is_refused_before_anybody_else_judges_it() -> None:
    steps = Steps()
    hooks = [steps.hooks("files", **changes_to("x")), steps.hooks("driver")]
    refusal = ToolOutput("A hook changed the arguments of this call. x is not a number", is_error=True)
    assert gate(hooks, deny=["Bash(x)"]).judge(called("1"), check_number) == refusal
    assert steps.asked == [("files", "1")]
    asker = steps.asker(Decision(arguments={"command": "x"}))
    assert gate([], asker, deny=["Bash(x)"]).judge(called("1"), check_number) == refusal


@every_row(
    ("mode", "allow", "denied_by"),
    [
        ("plan", ["Bash"], "the permission mode is plan"),
        ("dontAsk", [], "only calls that a rule allows may run"),
        ("dontAsk", ["Bash(old)"], None),
        ("acceptEdits", [], None),
    ],
)
@every_row("is_in_answer", [True, False])
def test_a_mode_that_is_set_while_somebody_is_asked_holds_for_the_call_itself(
    mode, allow, denied_by, is_in_answer
) -> None:
    controls = RunControls(permissions_are_asked=True, permission_mode=PermissionMode.DEFAULT)

    class Sets:
        def decide(self, call: ToolCall, reason: str | None) -> Decision:
            if not is_in_answer:  # by another control request, before the answer comes
                controls.choose_mode(mode)
            return Decision(mode=mode if is_in_answer else None)

    rules = Permissions(
        (),
        None,
        RulePlaces("/w", "/h", FakeDisk()),
        narrow=[parse_rule(text, Effect.ALLOW, "the file") for text in allow],
        is_narrow=lambda: controls.permission_mode is PermissionMode.DONT_ASK,
    )
    denied = why_denied(CallGate(controls, RecordingEvents(), RulesInForce(rules), asker=Sets()))
    assert denied is None if denied_by is None else denied_by in str(denied)


@every_row(
    ("deny", "mode", "hook", "denied_by"),
    [
        (["Bash(old)"], "plan", {"decision": "block", "reason": "no"}, "PreToolUse:Bash hook error: no"),
        (["Bash(old)"], "plan", {"fails": True}, "hook error: it broke. The call was not run"),
        (["Bash(old)"], "plan", decided(permissionDecision="allow"), "the rule Bash(old)"),
        (["Bash(new)"], "plan", decided(permissionDecision="allow"), "the permission mode is plan"),
        (["Bash(new)"], "default", {}, "not today"),
    ],
)
def test_the_first_that_refuses_is_the_last_that_is_asked(deny, mode, hook, denied_by) -> None:
    steps = Steps()
    made = gate([steps.hooks("driver", **hook)], steps.asker(Decision("not today")), mode, deny=deny)
    assert denied_by in str(why_denied(made))
    assert len(steps.asked) == (2 if denied_by == "not today" else 1)


@every_row(
    ("mode", "hook", "is_asked"),
    [
        ("default", {}, True),
        ("default", decided(permissionDecision="allow"), False),
        ("bypassPermissions", {}, False),
        ("bypassPermissions", decided(permissionDecision="ask"), True),
    ],
)
def test_somebody_is_asked_where_the_mode_a_rule_or_a_hook_wants_it(mode, hook, is_asked) -> None:
    steps = Steps()
    made = gate([steps.hooks("driver", **hook)], steps.asker(Decision("no")), mode)
    assert (why_denied(made) == "no") is is_asked
    ruled = gate([steps.hooks("driver", **hook)], steps.asker(Decision("no")), mode, ask=["Bash(old)"])
    assert why_denied(ruled) == "no", "a rule asks in every mode, whatever a hook allows"


def test_a_hook_of_a_file_that_allows_spares_a_driver_no_question() -> None:
    steps = Steps()
    hooks = [steps.hooks("files", **decided(permissionDecision="allow")), steps.hooks("driver")]
    assert why_denied(gate(hooks, steps.asker(Decision("no")))) == "no"


def test_what_asks_is_denied_where_nobody_is_asked() -> None:
    asking = decided(permissionDecision="ask", permissionDecisionReason="odd")
    for made, why in (
        (gate(ask=["Bash(old)"]), "the rule Bash(old) (the file) requires somebody to be asked first."),
        (gate([Steps().hooks("files", **asking)]), "a hook requires somebody to be asked first: odd."),
    ):
        assert why_denied(made) == f"This call was not run: {why} Nobody is asked in this run."
    told = str(why_denied(gate(nobody=True)))
    assert "in permission mode default it needs a permission, and nobody is asked here" in told
    assert judge(gate()) == called("old")


def test_a_command_file_narrows_tools_and_adds_rules_for_its_task() -> None:
    of_command = CommandRules("/fix", frozenset({"Read", "Bash"}), permissions(allow=["Bash(ls *)"]))
    made = gate(command=of_command, deny=["Bash(ls -l)"])
    assert why_denied(made, "ls x") is None
    assert "the rule Bash(ls -l)" in str(why_denied(made, "ls -l"))
    assert "only calls that a rule allows may run" in str(why_denied(made, "old"))
    assert why_denied(made, tool="Write") is not None
    assert "the command /fix allows Bash, Read alone" in str(made.why_refused("Write"))


def test_a_permission_may_widen_the_next_ones_and_a_limit_that_is_not_kept_ends_the_run() -> None:
    steps = Steps()
    made = gate([], steps.asker(Decision(allowed=("Bash",))))
    assert ([judge(made), judge(made)], len(steps.asked)) == ([called("old"), called("old")], 1)
    with pytest.raises(GuardRefused, match="which ralph cannot honour"):
        judge(gate([], steps.asker(Decision(refused="addRules (deny)"))))
    with pytest.raises(HookStopped, match="ended the run: enough"):
        judge(gate([], steps.asker(Decision("enough", ends_run=True))))


def test_a_judge_of_rules_that_fails_refuses() -> None:
    in_force = RulesInForce(permissions(deny=["Bash(rm:*)"]))
    error = ToolOutput("the permission rules failed inside ralph", is_error=True)
    made = CallGate(RunControls(), RecordingEvents(), in_force, aside=lambda _name, _work: error)
    assert judge(made) == error


def test_hooks_after_a_call_are_asked_in_reverse_and_a_failed_one_is_a_vital_notice() -> None:
    steps, events = Steps(), RecordingEvents()
    hooks = [steps.hooks("files", decision="block", reason="test it"), steps.hooks("driver", fails=True)]
    made = CallGate(RunControls(), events, hooks=hooks)
    output = made.observe(ToolCall("t", "Bash", {"command": "ls"}), ToolOutput("x"), 0.5)
    assert output.content == "x\n\nPostToolUse hook feedback:\ntest it"
    assert [name for name, _ in steps.asked] == ["driver", "files"]
    assert events.events == [Notice("the PostToolUse hook of Bash failed: it broke", is_vital=True)]


def test_a_stop_hook_is_told_what_runs_in_the_background() -> None:
    given: list[Any] = []

    class Listening(ScriptedHooks):
        def answers(self, event: str, fields: Mapping[str, Any], covers: Any) -> Sequence[HookAnswer]:
            given.append(fields["background_tasks"])
            return super().answers(event, fields, covers)

    hooks, running = Listening(Steps(), "files", {}), {"bash_1": "npm run dev"}
    made = CallGate(RunControls(), RecordingEvents(), hooks=[hooks], background=lambda: running)
    assert made.before_end("done", was_held=False) is None
    about = {"id": "bash_1", "type": "shell", "status": "running"}
    assert given == [[{**about, "description": "npm run dev", "command": "npm run dev"}]]


def test_a_hook_that_fails_at_the_beginning_or_the_end_of_a_task_ends_it() -> None:
    steps = Steps()
    broken = gate([steps.hooks("driver", fails=True)])
    with pytest.raises(GuardRefused, match="the UserPromptSubmit hook failed: it broke"):
        broken.before_task([])
    with pytest.raises(GuardRefused, match="the Stop hook failed: it broke"):
        broken.before_end("done", was_held=False)
    blocking = gate([steps.hooks("files", decision="block", reason="no"), steps.hooks("driver", fails=True)])
    refused = blocking.before_end("done", was_held=False)
    assert refused == EndRefused("", "no"), "the first that blocks is enough"
    with pytest.raises(HookStopped, match="refused the task: no"):
        blocking.before_task([])


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
    tools = [*TOOL_NAMES, "mcp__a__b"]
    nobody = Steps().asker(Decision("no"))
    assert {tool for tool in tools if why_denied(gate([], nobody, mode), tool=tool) == "no"} == asked
    controls = RunControls(permission_mode=PermissionMode(mode))
    named = CallGate(controls, RecordingEvents(), asker=nobody, allowed={"Bash"})
    assert why_denied(named, tool="Bash") is None, "allowed by name"


SECRET = "hunter2hunter2"


@every_row(
    "verdict",
    [
        {"permissionDecision": "allow"},
        {"permissionDecision": "ask", "permissionDecisionReason": SECRET},
        {"permissionDecision": "deny", "permissionDecisionReason": SECRET},
        {"permissionDecision": "deny"},
    ],
)
def test_no_hook_and_nobody_else_tells_the_model_a_credential(verdict) -> None:
    said = {"additionalContext": f"see {SECRET}", "updatedToolOutput": [SECRET]}
    hooks = Steps().hooks("one", reason=SECRET, **decided(**said, **verdict))
    denies = Steps().asker(Decision(denied=f"no {SECRET}"))
    made = CallGate(
        RunControls(), RecordingEvents(), hooks=[hooks], asker=denies, redact=Redactor([SECRET]).redact
    )
    told: list[object] = [
        made.judge(called("x", f"ignored {SECRET}"), Runnable),
        made.observe(ToolCall("t", "Bash", {}), ToolOutput("out"), 0.1),
    ]
    if verdict["permissionDecision"] == "deny":
        told.append(made.before_end("", was_held=False))
    else:
        told.append(made.before_task([{"type": "text", "text": "go"}]))
    for one in told:
        assert (SECRET in repr(one), "[redacted]" in repr(one)) == (False, True)


def test_what_a_hook_gives_a_call_is_not_changed() -> None:
    hooks = Steps().hooks("one", **decided(updatedInput={"command": f"echo {SECRET}"}))
    made = CallGate(RunControls(), RecordingEvents(), hooks=[hooks], redact=Redactor([SECRET]).redact)
    ruling = judge(made)
    assert isinstance(ruling, Runnable)
    assert ruling.call.arguments == {"command": f"echo {SECRET}"}
