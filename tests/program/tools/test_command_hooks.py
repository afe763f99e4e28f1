"""Hooks of the user's own settings, in whole runs: commands that decide about tool calls and the end of a task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.program.model_answers import DONE, bash, calls, results

if TYPE_CHECKING:
    from ralph.mock_api import Turn

KEEP = "cat >> $CLAUDE_PROJECT_DIR/told"
"""A hook that appends its input to a file, and leaves the decision to others."""


def hooks(event: str, command: str, matcher: str | None = None, **more: object) -> dict[str, Any]:
    hook = {"type": "command", "command": command, **more}
    return {"hooks": {event: [{"hooks": [hook], **({} if matcher is None else {"matcher": matcher})}]}}


def told(ralph) -> list[dict[str, Any]]:
    decoder, text, found = json.JSONDecoder(), (ralph.cwd / "told").read_text(), []
    while text:
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def start(ralph, settings: dict[str, Any], *options: str):
    return ralph("go", "--settings", json.dumps(settings), "--output-format", "stream-json", *options)


def test_a_hook_is_told_about_a_call_as_claude_tells_it(ralph, serve) -> None:
    serve(bash("echo hi"), DONE)
    ran = start(ralph, hooks("PreToolUse", KEEP, "Bash") | {}).having(0)
    [about] = told(ralph)
    assert about.pop("transcript_path").endswith(f"{ran.result['session_id']}.jsonl")
    assert about.pop("tool_use_id").startswith("toolu_")
    assert about == {
        "session_id": ran.result["session_id"],
        "cwd": str(ralph.cwd),
        "permission_mode": "bypassPermissions",
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "echo hi"},
    }


DENIED = {
    "exit 2": ("echo 'not today' >&2; exit 2", "PreToolUse:Bash hook error: not today"),
    "a decision": ("""echo '{"decision":"block","reason":"by word"}'""", "hook error: by word"),
    "a permission decision": (
        """echo '{"hookSpecificOutput":{"permissionDecision":"deny","permissionDecisionReason":"no"}}'""",
        "hook error: no",
    ),
    "a question": (
        """echo '{"hookSpecificOutput":{"permissionDecision":"ask"}}'""",
        "a hook requires somebody to be asked",
    ),
    "another exit code": ("echo oops >&2; exit 1", "it ended with exit 1: oops"),
    "a missing program": ("no-such-program-here", "it ended with exit 127"),
    "no JSON": ("echo '{'", "its answer is not valid"),
    "a wrong field": ("""echo '{"decision":"perhaps"}'""", "its answer is not valid"),
    "a word before": ("""echo 'OK: {"decision":"block"}'""", "something precedes it"),
    "a line of a log": (
        """echo checked; echo '{"decision":"block","reason":"behind it"}'""",
        "error: behind it",
    ),
    "a byte order mark": (
        """printf '\\xef\\xbb\\xbf{"decision":"block","reason":"marked"}'""",
        "error: marked",
    ),
    "a mark and lines": (
        """echo ' one'; echo; printf '\\xef\\xbb\\xbf {\n"decision":"block","reason":"far down"}\n\n'""",
        "error: far down",
    ),
    "UTF-16": ("""printf '{"decision":"block"}' | iconv -t utf-16""", "its answer is not valid"),
    "words behind": ("""echo '{"decision":"approve"}'; echo done""", "its answer is not valid"),
    "a key twice": ("""echo '{"decision":"block","decision":"approve"}'""", "'decision' occurs twice"),
    "a key twice inside": (
        """echo '{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"deny","permissionDecision":"allow"}}'""",
        "'permissionDecision' occurs twice",
    ),
    "two answers": ("""echo '{}'; echo '{"decision":"block"}'""", "its answer is not valid"),
    "a brace in a log": (
        """echo 'is {a} well?'; echo '{"decision":"block"}'""",
        "something precedes it",
    ),
    "a list": ("""echo '[{"decision":"block"}]'""", "something precedes it"),
    "a misspelt key": (
        """echo '{"decison":"block"}'""",
        "'decison' is not known there, and is perhaps meant as",
    ),
    "a key of another object": (
        """echo '{"permissionDecision":"deny"}'""",
        "'permissionDecision' is not known",
    ),
    "a key of the outer object": (
        """echo '{"hookSpecificOutput":{"hookEventName":"PreToolUse","permission_decision":"deny"}}'""",
        "'permission_decision' is not known there, and is perhaps meant as permissionDecision",
    ),
    "a signal": ("kill -9 $$", "it ended with exit 137"),
    "too much": ("yes", "it printed more than 1,000,000 bytes"),
}


def test_a_hook_that_refuses_or_fails_keeps_the_call_from_running(ralph, serve) -> None:
    """One hook is asked about a call for each row, which names the script that answers."""
    for number, (command, _) in enumerate(DENIED.values()):
        (ralph.cwd / f"hook-{number}").write_text(command)
    called = [("Bash", {"command": f"touch ran; : {number}"}) for number in range(len(DENIED))]
    server = serve(calls(*called), DONE)
    ran = start(
        ralph, hooks("PreToolUse", """. ./hook-$(sed -n 's/.*touch ran; : \\([0-9]*\\).*/\\1/p')""")
    ).having(0)
    assert not (ralph.cwd / "ran").exists()
    told_about = results(server, 1)
    assert len(told_about) == len(DENIED)
    for (name, (_, says)), (text, is_error) in zip(DENIED.items(), told_about, strict=True):
        assert is_error, name
        assert says in text, name
    assert [one["tool_name"] for one in ran.result["permission_denials"]] == ["Bash"] * len(DENIED)


def test_text_at_the_end_of_a_hook_that_succeeds_is_no_opinion_and_is_named_once(ralph, serve) -> None:
    server = serve(bash("echo one"), bash("echo two"), DONE)
    settings = hooks("PreToolUse", "echo 'looks good, [no] problem'")
    settings["hooks"] |= hooks("PostToolUse", "echo 'formatted {x}'")["hooks"]
    ran = start(ralph, settings).having(0)
    assert [results(server, nth) for nth in (1, 2)] == [[("one", False)], [("two", False)]]
    notice = "[notice] the PreToolUse hook (echo) printed text, and no answer: that is no opinion"
    assert [line for line in ran.stderr.splitlines() if line.startswith("[notice] the")] == [notice]


def test_a_hook_that_does_not_end_in_its_time_refuses_and_is_stopped(ralph, serve) -> None:
    server = serve(bash("touch ran"), DONE)
    start(ralph, hooks("PreToolUse", "sleep 600; touch late", timeout=0.3)).having(0)
    assert "it did not end before its timeout of 0.3 s" in results(server, 1)[0][0]
    assert not (ralph.cwd / "ran").exists()


@pytest.mark.parametrize("more", ["", "|Shell"])
def test_a_hook_is_about_the_calls_of_its_matcher_alone_and_a_name_without_a_tool_is_told(
    ralph, serve, more
) -> None:
    server = serve(bash("git commit -m x"), bash("git status --short"), bash("ls && git commit"), DONE)
    ran = start(ralph, hooks("PreToolUse", "echo 'not here' >&2; exit 2", f"Bash(git commit:*){more}"))
    if more:
        assert ran.code == 78
        assert f"the matcher 'Bash(git commit:*){more}' cannot be kept: no tool is called" in ran.stderr
        return
    assert ["not here" in results(server, nth)[0][0] for nth in (1, 2, 3)] == [True, False, True]
    serve(DONE)
    ran = start(ralph, hooks("PreToolUse", "exit 2", "Bash|Shell")).having(0)
    assert "no tool is called Shell, which the matcher 'Bash|Shell' names" in ran.stderr


def test_a_hook_may_change_a_call_and_the_rules_judge_the_change(ralph, serve) -> None:
    server = serve(bash("echo old"), bash("echo old"), DONE)
    answer = {"hookSpecificOutput": {"permissionDecision": "allow", "updatedInput": {"command": "echo new"}}}
    changes = hooks("PreToolUse", f"echo '{json.dumps(answer)}'")
    assert start(ralph, changes).code == 0
    assert results(server, 1) == [("new", False)]
    denied = {**changes, "permissions": {"deny": ["Bash(echo new)"]}}
    server = serve(bash("echo old"), DONE)
    assert start(ralph, denied).code == 0
    assert "the rule Bash(echo new)" in results(server, 1)[0][0]


def test_a_hook_after_a_call_gives_feedback_and_a_failed_call_has_an_event_of_its_own(ralph, serve) -> None:
    server = serve(bash("echo hi"), bash("exit 3"), DONE)
    settings = hooks("PostToolUse", f"{KEEP}; echo 'run the tests' >&2; exit 2")
    settings["hooks"] |= hooks("PostToolUseFailure", KEEP)["hooks"]
    assert start(ralph, settings).code == 0
    assert results(server, 1) == [("hi\n\nPostToolUse hook feedback:\nrun the tests", False)]
    fine, failed = told(ralph)
    assert fine["tool_response"] == {"stdout": "hi", "stderr": "", "interrupted": False, "isImage": False}
    assert (failed["hook_event_name"], failed["error"]) == ("PostToolUseFailure", "(no output)\nExit code 3")


def test_a_stop_hook_sends_the_model_back_to_work_and_is_told_so(ralph, serve) -> None:
    server = serve(DONE, DONE)
    once = f"{KEEP}; test -e held || {{ touch held; echo 'write the tests' >&2; exit 2; }}"
    start(ralph, hooks("Stop", once)).having(0)
    assert "Stop hook feedback:\\nwrite the tests" in json.dumps(server.requests[1].json()["messages"][-1])
    assert [one["stop_hook_active"] for one in told(ralph)] == [False, True]


def test_a_hook_after_a_call_may_replace_its_output(ralph, serve) -> None:
    server = serve(bash("echo long"), DONE)
    answer = {"hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedToolOutput": "short"}}
    assert start(ralph, hooks("PostToolUse", f"echo '{json.dumps(answer)}'")).code == 0
    assert results(server, 1) == [("short", False)]


def test_a_prompt_hook_is_told_the_task_and_what_it_prints_is_for_the_model(ralph, serve) -> None:
    server = serve(DONE)
    start(ralph, hooks("UserPromptSubmit", f"{KEEP}; echo 'It is Monday.'")).having(0)
    [about] = told(ralph)
    assert (about["hook_event_name"], about["prompt"]) == ("UserPromptSubmit", "go")
    assert "It is Monday." in json.dumps(server.requests[0].json()["messages"][-1])


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (
            "echo 'not on Mondays' >&2; exit 2",
            130,
            "a UserPromptSubmit hook refused the task: not on Mondays",
        ),
        ("exit 1", 78, "the UserPromptSubmit hook failed: exit: it ended with exit 1"),
        (
            """echo 'No: {"decision":"block"}'""",
            78,
            "the UserPromptSubmit hook failed: echo: its answer is not valid",
        ),
        ("""echo seen; echo '{"decision":"block","reason":"late"}'""", 130, "hook refused the task: late"),
    ],
)
def test_a_prompt_hook_that_refuses_or_fails_lets_nothing_be_sent(ralph, serve, command, code, says) -> None:
    server = serve(DONE)
    ran = start(ralph, hooks("UserPromptSubmit", command))
    assert (ran.code, server.request_count) == (code, 0)
    assert says in ran.result["errors"][-1]


BREAKS: list[tuple[str, str, dict[str, Any]]] = [
    ("exit 1", "exit: it ended with exit 1", {}),
    ("echo; echo lost >&2; exit 7", "echo: it ended with exit 7: lost", {}),
    ("echo said; exit 7", "echo: it ended with exit 7: said", {}),
    ("no-such-program-here --now", "no-such-program-here: it ended with exit 127", {}),
    ("seq 20000 >&2; exit 1", "seq: it ended with exit 1: 20000", {}),
    ("sleep 600", "sleep: it did not end before its timeout of 0.3 s", {"timeout": 0.3}),
    ("""printf 'built {12} files'""", "printf: its answer is not valid", {}),
    ("""echo 'No: {"decision":"block"}'""", "echo: its answer is not valid", {}),
]


def test_stop_hooks_that_break_after_finished_work_are_notices(ralph, serve) -> None:
    server = serve(DONE)
    each = [{"type": "command", "command": command, **more} for command, _, more in BREAKS]
    ran = start(ralph, {"hooks": {"Stop": [{"hooks": each}]}})
    assert (ran.code, ran.result["subtype"], server.request_count) == (0, "success", 1)
    told = [line for line in ran.stderr.splitlines() if line.startswith("[notice] the Stop hook failed: ")]
    for line, (_, says, _more) in zip(told, BREAKS, strict=True):
        assert line.startswith(f"[notice] the Stop hook failed: {says}")


@pytest.mark.parametrize("event", ["Stop", "PostToolUse"])
def test_a_hook_that_breaks_after_the_work_hides_no_other_hook(ralph, serve, event) -> None:
    server = serve(bash("echo hi"), DONE, DONE)
    settings = hooks(event, "exit 1")
    once = "test -e held || { touch held; echo 'write the tests' >&2; exit 2; }"
    settings["hooks"][event] += hooks(event, once)["hooks"][event]
    ran = start(ralph, settings).having(0)
    assert f"[notice] the {event} hook failed: exit: it ended with exit 1" in ran.stderr
    assert f"{event} hook feedback:\\nwrite the tests" in json.dumps(server.requests[-1].json()["messages"])


def write(number: int) -> Turn:
    return calls(("Write", {"file_path": "x", "content": str(number)}))


REFUSES = "echo 'never good' >&2; exit 2"
COUNTS = """echo x >> count; echo "failing: $(wc -l < count)" >&2; exit 2"""


STUCK = "8 times in a row for the same reason, and no file changed in between"


@pytest.mark.parametrize(
    ("command", "between", "requests", "says"),
    [
        (REFUSES, None, 8, f"{STUCK}: never good"),
        (REFUSES, write(1), 16, STUCK),
        (REFUSES, write, 40, "20 times: never good"),
        (REFUSES, lambda number: bash(f"echo {number} > y; exit 1"), 40, "20 times: never good"),
        (COUNTS, None, 20, "20 times: failing: 20"),
    ],
)
def test_a_stop_hook_that_never_agrees_ends_the_run_without_progress(
    ralph, serve, command, between, requests, says
) -> None:
    turns = []
    for number in range(25):
        made = between(number) if callable(between) else between
        turns += [DONE] if made is None else [made, DONE]
    server = serve(*turns)
    ran = start(ralph, hooks("Stop", command))
    assert (ran.code, server.request_count) == (4, requests)
    assert f"the Stop hook (echo) refused the end of the task {says}" in ran.result["errors"][-1]
    assert ran.result["subtype"] == "error_during_execution"


def test_a_hook_ends_the_run_and_the_call_does_not_run(ralph, serve) -> None:
    server = serve(bash("touch ran"), DONE)
    ran = start(ralph, hooks("PreToolUse", """echo '{"continue":false,"stopReason":"enough"}'"""))
    assert ran.code != 0
    assert "a hook ended the run: enough" in ran.result["errors"][-1]
    assert server.request_count == 1
    assert not (ralph.cwd / "ran").exists()


@pytest.mark.sandboxed
def test_a_hook_runs_in_the_sandbox_without_the_key(ralph, serve, tmp_path) -> None:
    serve(bash("true"), DONE)
    outside = tmp_path / "outside"
    outside.mkdir()
    command = f"env > env; echo x > .mcp.json; touch {outside}/x; exit 0"
    ran = start(ralph, hooks("PreToolUse", command)).having(0)
    assert "[notice] the PreToolUse hook: [undone: changes to .mcp.json." in ran.stderr
    assert not (ralph.cwd / ".mcp.json").exists()
    assert ralph.environment["ANTHROPIC_API_KEY"] not in (ralph.cwd / "env").read_text()
    assert not (outside / "x").exists()


def test_hooks_of_the_users_own_file_run_unless_the_sources_leave_them_out(ralph, serve) -> None:
    user = Path(ralph.environment["HOME"], ".claude", "settings.json")
    user.parent.mkdir()
    user.write_text(json.dumps(hooks("PreToolUse", "touch asked")))
    serve(bash("true"), DONE, bash("true"), DONE)
    assert ralph("go", "--setting-sources", "project,local").code == 0
    assert not (ralph.cwd / "asked").exists()
    assert ralph("go").code == 0
    assert (ralph.cwd / "asked").exists()


def test_a_call_that_a_rule_denies_is_told_to_no_hook_behind_it(ralph, serve) -> None:
    server = serve(bash("touch ran"), DONE)
    settings = hooks("PreToolUse", KEEP)
    settings["hooks"] |= hooks("PostToolUseFailure", KEEP)["hooks"]
    ran = start(ralph, {**settings, "permissions": {"deny": ["Bash(touch:*)"]}}).having(0)
    assert "the rule Bash(touch:*)" in results(server, 1)[0][0]
    assert [one["hook_event_name"] for one in told(ralph)] == ["PreToolUse"]
    assert len(ran.result["permission_denials"]) == 1


@pytest.mark.parametrize("is_asked", [True, False])
def test_only_a_run_that_was_asked_to_tells_of_each_hook(ralph, serve, is_asked) -> None:
    serve(bash("true"), DONE)
    settings = hooks("PreToolUse", "echo seen; echo bad >&2; exit 2")
    ran = start(ralph, settings, *(["--include-hook-events"] if is_asked else []))
    told_of = [one for one in ran.objects if str(one.get("subtype")).startswith("hook_")]
    about = {"hook_id": "hook_1", "hook_name": "PreToolUse:Bash", "hook_event": "PreToolUse"}
    assert [{key: one[key] for key in about} for one in told_of] == ([about, about] if is_asked else [])
    assert [one["subtype"] for one in told_of] == (["hook_started", "hook_response"] if is_asked else [])
    if is_asked:
        ended = told_of[1]
        assert (ended["stdout"].strip(), ended["stderr"].strip(), ended["exit_code"]) == ("seen", "bad", 2)
        assert ended["outcome"] == "error"


def test_events_that_need_an_output_for_them_are_exit_2(ralph_here) -> None:
    assert ralph_here("go", "--include-hook-events").code == 2
    assert ralph_here("go", "--replay-user-messages", "--output-format", "stream-json").code == 2
