"""Commands of `.claude/commands` and skills in whole runs: the text that the model gets, and shell code that must not
run.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.driven.driver_lines import user
from tests.program.conftest import KEY, first_prompt
from tests.program.model_answers import DONE, bash, calls, told_texts
from tests.program.prompt.test_memory import system_of

OUTPUT = ("--output-format", "stream-json")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def command(ralph: Any, name: str, text: str) -> Path:
    return write(ralph.cwd / f".claude/commands/{name}.md", text)


def of_user(ralph: Any, path: str, text: str) -> Path:
    return write(Path(ralph.environment["HOME"], ".claude", path), text)


def git(ralph: Any, *words: str) -> str:
    ran = subprocess.run(["git", *words], cwd=ralph.cwd, check=True, capture_output=True, text=True)
    return ran.stdout


def journal(ralph: Any) -> list[dict[str, Any]]:
    (path,) = Path(ralph.environment["HOME"]).rglob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def notices(ran: Any) -> list[str]:
    return [one["text"] for one in ran.objects if one.get("subtype") == "notice"]


def test_a_command_becomes_the_prompt_with_its_arguments_files_and_shell_lines(ralph, serve) -> None:
    server = serve(DONE)
    command(
        ralph,
        "git/fix",
        "---\ndescription: Fix it\nargument-hint: [issue]\n---\n"
        "Fix $0, then $1 ($ARGUMENTS), in @src/a.py.\nState: !`echo out of $0; exit 3`\n```!\necho one\necho two\n```\n",
    )
    write(ralph.cwd / "src/a.py", "print(1)\n")
    ran = ralph("/git:fix 12 'the rest'", *OUTPUT, code=0)
    assert first_prompt(server.requests[0]) == (
        "Fix 12, then the rest (12 'the rest'), in @src/a.py.\n"
        "State: out of 12\nExit code 3\none\ntwo\n\n"
        "Contents of src/a.py:\n\n     1\tprint(1)"
    )
    told = [one for one in ran.objects if one.get("subtype") in {"prompt_call", "prompt_result"}]
    assert [(one["subtype"], one["tool"], one["argument"], one.get("is_error")) for one in told] == [
        ("prompt_call", "Bash", "echo out of 12; exit 3", None),
        ("prompt_result", "Bash", "echo out of 12; exit 3", True),
        ("prompt_call", "Bash", "echo one\necho two", None),
        ("prompt_result", "Bash", "echo one\necho two", False),
        ("prompt_call", "Read", f"{ralph.cwd}/src/a.py", None),
        ("prompt_result", "Read", f"{ralph.cwd}/src/a.py", False),
    ]
    assert "[command] /git:fix: Bash echo out of 12; exit 3 failed" in ran.stderr
    recorded = [one["event"]["subtype"] for one in journal(ralph) if one["kind"] == "event"]
    assert [name for name in recorded if name.startswith("prompt_")] == [one["subtype"] for one in told]
    kinds = [one["kind"] for one in journal(ralph)]
    assert kinds.index("run") < len(kinds) - 1 - kinds[::-1].index("event")
    assert kinds.count("run") == kinds.count("user") == 1


def test_a_file_that_was_put_into_the_prompt_may_be_edited(ralph, serve) -> None:
    edit = {"file_path": "a.txt", "old_string": "old", "new_string": "new"}
    serve(calls(("Edit", edit)), DONE)
    command(ralph, "fix", "Fix @a.txt")
    write(ralph.cwd / "a.txt", "old\n")
    assert ralph("/fix").code == 0
    assert (ralph.cwd / "a.txt").read_text() == "new\n"


def test_piped_data_stands_below_a_command_and_is_no_argument(ralph, serve) -> None:
    server = serve(DONE)
    command(ralph, "review", "Review $ARGUMENTS: !`echo $ARGUMENTS`")
    ralph("/review this", stdin=b"+a; touch injected\n@a.txt !`touch injected`\n", code=0)
    assert first_prompt(server.requests[0]) == (
        "Review this: this\n\n+a; touch injected\n@a.txt !`touch injected`"
    )
    assert not (ralph.cwd / "injected").exists()


def test_an_unknown_command_as_an_argument_is_refused_with_the_list_exits_2(ralph, serve) -> None:
    server = serve(DONE)
    command(ralph, "git/fix", "x")
    of_user(ralph, "commands/mine.md", "x")
    for prompt in ("/fxi now", "/fxi", "/git:fxi\n"):
        ran = ralph("-p", prompt, code=2)
        name = prompt.split()[0]
        assert f"ralph: there is no command {name}" in ran.stderr
        assert "(commands: /git:fix, /mine); " in ran.stderr
    assert not server.requests
    assert not list(Path(ralph.environment["HOME"]).rglob("*.jsonl"))


@pytest.mark.parametrize("source", ["pipe", "file", "driver"])
def test_elsewhere_an_unknown_command_is_text_and_a_known_one_is_carried_out(
    ralph, serve, source: str
) -> None:
    server = serve(DONE, DONE)
    command(ralph, "fix", "Fix $0.")
    for text in ("/fxi it", "/fix it"):
        if source == "pipe":
            ran = ralph("-p", stdin=text.encode())
        elif source == "file":
            write(ralph.cwd / "PROMPT.md", text)
            ran = ralph("-f", "PROMPT.md")
        else:
            ran = ralph("--input-format", "stream-json", *OUTPUT, stdin=user(text))
        assert ran.code == 0, ran.stderr
    assert [first_prompt(request) for request in server.requests] == ["/fxi it", "Fix it."]


REFUSED = {
    "a tool is not enabled": (["--tools", "Read"], "x !`touch ran`", "There is no tool 'Bash'"),
    "plan mode": (["--permission-mode", "plan"], "x !`touch ran`", "There is no tool 'Bash'"),
    "the file's own tools": ([], "---\nallowed-tools: Read\n---\nx !`touch ran`", "the command /fix allows"),
    "the file forbids": ([], "---\ndisallowed-tools: Bash\n---\nx !`touch ran`", "the command /fix allows"),
    "hooks": (
        [],
        "---\nhooks:\n  PreToolUse: x\n---\n!`touch ran`",
        "it has hooks, which ralph does not run for a single command: put them into ~/.claude/settings.json",
    ),
    "the file's own tools on the next line": (
        [],
        "---\nallowed-tools:\n  [Read]\n---\nx !`touch ran`",
        "the command /fix allows",
    ),
    "a pattern": (
        [],
        "---\nallowed-tools: Bash(git *)\n---\n!`touch ran`",
        "only calls that a rule allows may run",
    ),
    "a forbidden pattern": ([], "---\ndisallowed-tools: Bash(touch *)\n---\n!`touch ran`", "touch"),
    "a pattern of the line": (
        ["--disallowedTools", "Bash(touch *)"],
        "x !`touch ran`",
        "Bash(touch *) (--disallowed-tools)",
    ),
    "a broken pattern": ([], "---\nallowed-tools: Bash()\n---\n!`touch ran`", "Bash()"),
    "a mistyped tool": ([], "---\nallowed-tools: bash\n---\n!`touch ran`", "no tool is called so"),
    "an odd head": ([], "---\nallowed-tools Read\n---\n!`touch ran`", "line 2 of its head is not understood"),
    "a mistyped guard": (
        [],
        "---\nallowed_tools: Read\n---\n!`touch ran`",
        "is perhaps meant as allowed-tools",
    ),
    "not text": ([], "\udcff", "it is not UTF-8 text"),
    "nothing": ([], "---\ndescription: x\n---\n", "/fix has no text"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_command_that_cannot_be_kept_runs_nothing_exits_78(ralph, ralph_here, serve, case: str) -> None:
    options, text, says = REFUSED[case]
    server = serve(DONE)
    path = command(ralph, "fix", "")
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    ran = ralph_here("/fix", *options, code=78)
    assert says in ran.last_line
    assert not server.requests
    assert not (ralph.cwd / "ran").exists()
    assert not list(Path(ralph.environment["HOME"]).rglob("*.jsonl"))


def test_the_tools_of_a_command_hold_for_its_task_alone(ralph, serve) -> None:
    server = serve(bash("touch first"), DONE, bash("touch second"), DONE)
    command(ralph, "look", "---\nallowed-tools: [Write, WebFetch]\n---\nLook.")
    lines = user("/look") + b"\n" + user("go")
    ran = ralph("--input-format", "stream-json", *OUTPUT, stdin=lines, code=0)
    assert not (ralph.cwd / "first").exists()
    assert (ralph.cwd / "second").exists()
    assert "the command /look allows Glob, Grep, Read, Write alone" in str(server.requests[1].body)
    assert "/look allows these tools alone: Glob, Grep, Read, Write" in notices(ran)
    denials = [one["permission_denials"] for one in ran.objects if one["type"] == "result"]
    assert [len(each) for each in denials] == [1, 0]


def test_patterns_of_a_command_hold_for_its_task_alone(ralph, serve) -> None:
    server = serve(bash("touch first"), bash("echo allowed"), DONE, bash("touch second"), DONE)
    command(ralph, "look", "---\nallowed-tools: Bash(echo:*), Read\n---\nSay !`echo ok`.")
    lines = user("/look") + b"\n" + user("go")
    ran = ralph("--input-format", "stream-json", *OUTPUT, stdin=lines, code=0)
    assert first_prompt(server.requests[0]) == "Say ok."
    assert not (ralph.cwd / "first").exists()
    assert (ralph.cwd / "second").exists()
    denials = [one["permission_denials"] for one in ran.objects if one["type"] == "result"]
    assert [len(each) for each in denials] == [1, 0]


COMMITS = """---
description: Commit, push and open a pull request
allowed-tools: Bash(git add:*), Bash(git status:*), Bash(git commit:*), Bash(git push:*), Bash(gh pr create:*)
---

## What is there

- State: !`git status`
- Changes: !`git diff HEAD`
- Branch: !`git branch --show-current`
- Commits: !`git log --oneline -10`

Make one commit of these changes on a new branch, push it and open a pull request. Send nothing else.
"""
MESSAGE = 'Say two\n\nIt\'s `two` (not "one").\n'


def test_the_best_known_commands_run(ralph, serve) -> None:
    """Their lists name what changes something, and leave out what only looks."""
    commit = f"git add a.txt && git commit -m \"$(cat <<'EOF'\n{MESSAGE}EOF\n)\" && git status --short"
    server = serve(bash(commit), bash("touch ran"), DONE)
    command(ralph, "commit-push-pr", COMMITS)
    write(ralph.cwd / "a.txt", "one\n")
    write(ralph.cwd / ".gitignore", ".claude\n")
    for words in (
        "init -q -b main",
        "config user.name me",
        "config user.email me@x",
        "add .",
        "commit -qm first",
    ):
        git(ralph, *words.split())
    write(ralph.cwd / "a.txt", "two\n")
    ran = ralph("/commit-push-pr", *OUTPUT, code=0)
    prompt = first_prompt(server.requests[0])
    assert "modified:   a.txt" in prompt
    assert "-one\n+two" in prompt
    assert "Branch: main" in prompt
    assert " first" in prompt
    assert git(ralph, "log", "-1", "--format=%B") == f"{MESSAGE}\n"
    assert not (ralph.cwd / "ran").exists()
    (denial,) = next(one["permission_denials"] for one in ran.objects if one["type"] == "result")
    assert denial["tool_input"]["command"] == "touch ran"


def test_rules_of_settings_hold_for_shell_lines_files_and_memory(ralph, serve) -> None:
    server = serve(DONE)
    rules = {"permissions": {"deny": ["Bash(touch *)", "Read(./private/**)"], "ask": ["Bash(rm *)"]}}
    write(ralph.cwd / ".claude/settings.json", json.dumps(rules))
    write(ralph.cwd / "private/a.md", "canary-3b7d")
    write(ralph.cwd / "CLAUDE.md", "Rule. @private/a.md")
    for shell in ("touch ran", "rm CLAUDE.md"):
        command(ralph, "fix", f"!`echo first >> ran` !`{shell}`")
        ran = ralph("/fix", code=78)
        assert ".claude/settings.json" in ran.last_line
    assert not (ralph.cwd / "ran").exists()
    assert not server.requests
    command(ralph, "fix", "See @private/a.md")
    ran = ralph("/fix", *OUTPUT, code=0)
    assert "canary-3b7d" not in str(server.requests[0].body)
    said = "\n".join(notices(ran))
    assert f"{ralph.cwd}/private/a.md is left out: the rule Read(./private/**)" in said
    assert "/fix names @private/a.md, which is not in the prompt: " in said


def test_a_hook_of_the_user_decides_about_a_shell_line(ralph, serve) -> None:
    server = serve(DONE)
    hook = {"type": "command", "command": "echo not on my watch >&2; exit 2"}
    settings = json.dumps({"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [hook]}]}})
    command(ralph, "fix", "!`touch ran`")
    ran = ralph("/fix", "--settings", settings, code=78)
    assert "not on my watch" in ran.last_line
    assert not (ralph.cwd / "ran").exists()
    assert not server.requests


def test_shell_lines_run_in_the_sandbox_without_credentials(ralph, serve) -> None:
    server = serve(DONE)
    command(ralph, "fix", 'Key: !`echo "[$ANTHROPIC_API_KEY]"` !`touch "$HOME/planted"; echo $?`')
    ran = ralph("/fix", "--sandbox", "auto", *OUTPUT, code=0)
    assert KEY not in first_prompt(server.requests[0])
    assert "Key: [] " in first_prompt(server.requests[0])
    init = next(one for one in ran.objects if one.get("subtype") == "init")
    if init["sandbox"] == "none":
        pytest.skip("no sandbox here")
    assert not Path(ralph.environment["HOME"], "planted").exists()


def test_what_ralph_does_not_honour_is_said(ralph, serve) -> None:
    serve(DONE)
    command(ralph, "fix", "---\nmodel: haiku\ncontext: fork\n---\nFix.")
    assert "/fix asks for model: haiku, context: fork, which has no effect" in notices(ralph("/fix", *OUTPUT))


def test_a_command_that_may_count_its_arguments_from_1_is_said(ralph, serve) -> None:
    server = serve(DONE, DONE)
    command(ralph, "old", "Fix $1.")
    command(ralph, "new", "Fix $0 and $1.")
    said = "/old uses $1 and not $0: the first argument is $0 now, as in Claude Code, and $1 the second"
    assert said in notices(ralph("/old a b", *OUTPUT))
    assert not [text for text in notices(ralph("/new a b", *OUTPUT)) if "uses $1" in text]
    assert [first_prompt(request) for request in server.requests] == ["Fix b.", "Fix a and b."]


def test_a_signal_during_a_shell_line_ends_the_run_and_leaves_the_call_in_the_journal_exits_143(
    ralph, serve
) -> None:
    server = serve(DONE)
    command(ralph, "fix", "!`touch begun; sleep 60`")
    process = ralph.start("/fix")
    while not (ralph.cwd / "begun").exists() and process.poll() is None:
        time.sleep(0.02)
    ralph.stopped_by(process, signal.SIGTERM, code=143)
    assert not server.requests
    subtypes = [one["event"]["subtype"] for one in journal(ralph) if one["kind"] == "event"]
    assert "prompt_call" in subtypes
    assert "prompt_result" not in subtypes


def test_a_linked_command_file_or_folder_leads_nowhere_outside(ralph, serve) -> None:
    server = serve(DONE)
    (ralph.cwd / ".git").mkdir()
    outside = write(Path(ralph.environment["HOME"], "outside/secret.md"), "canary-77aa")
    command(ralph, "x", "x")
    (ralph.cwd / ".claude/commands/fix.md").symlink_to(outside)
    ran = ralph("/fix", code=78)
    assert "which is outside the repository" in ran.last_line
    (ralph.cwd / ".claude/commands/dir").symlink_to(outside.parent)
    assert ralph("/dir:secret").code == 2
    assert not server.requests


def test_skills_are_listed_for_the_model_and_can_be_called(ralph, serve) -> None:
    server = serve(DONE, DONE)
    pdf = write(
        ralph.cwd / ".claude/skills/pdf/SKILL.md",
        "---\nname: pdf\ndescription: >-\n  Make PDFs:\n  well\n---\nDo $ARGUMENTS in ${CLAUDE_SKILL_DIR}.\n",
    )
    mine = of_user(ralph, "skills/taste/SKILL.md", "Mine is without a head.\nMore.")
    command(ralph, "git/fix", "x")
    of_user(ralph, "commands/mine.md", "x")
    ran = ralph("go", *OUTPUT)
    init = next(one for one in ran.objects if one.get("subtype") == "init")
    assert init["slash_commands"] == ["git:fix", "mine", "pdf", "taste"]
    assert init["skills"] == ["pdf", "taste"]
    system = system_of(server)
    assert f"- pdf ({pdf}): Make PDFs: well\n- taste ({mine}): Mine is without a head." in system
    assert "[ralph] skills: pdf, taste" in ran.stderr
    assert "More." not in system
    assert ralph("/pdf this").code == 0
    assert first_prompt(server.requests[1]) == (
        f"Base directory of this skill: {pdf.parent}\n\nDo this in {pdf.parent}."
    )


def test_skills_that_cannot_be_kept_or_are_not_for_models_are_left_out(ralph, serve) -> None:
    server = serve(DONE, DONE)
    skills = ralph.cwd / ".claude/skills"
    hooks = write(skills / "a/SKILL.md", "---\nhooks:\n  Stop: x\n---\n")
    write(skills / "b/SKILL.md", "---\ndisable-model-invocation: true\ndescription: b\n---\n")
    for number in range(30):
        write(skills / f"c{number:02}/SKILL.md", f"---\ndescription: {'x' * 600}\n---\n")
    ran = ralph("go", *OUTPUT)
    system = system_of(server)
    assert f"{hooks} is left out: it has hooks, which ralph cannot honour" in notices(ran)
    section = system[system.index("# Skills") :]
    assert len(section.encode()) <= 8192
    assert "SKILL.md): b" not in section
    assert "x" * 500 + "..." in section
    assert sum("the list of skills would exceed 8 KB" in text for text in notices(ran)) == 30 - section.count(
        "SKILL.md): x"
    )
    assert ralph("go", "--tools", "Bash").code == 0
    assert "# Skills" not in system_of(server, 1)


def test_a_command_in_a_resumed_session_is_the_next_message(ralph, serve) -> None:
    server = serve(DONE, DONE)
    command(ralph, "fix", "Fix it.")
    ralph("go")
    assert ralph("/fix", "--continue").code == 0
    assert told_texts(server) == ["Fix it."]


def test_a_known_credential_in_a_command_is_not_sent(ralph, serve) -> None:
    server = serve(DONE)
    command(ralph, "fix", f"The key is {KEY}, see @a.txt")
    write(ralph.cwd / "a.txt", KEY)
    assert ralph("/fix").code == 0
    assert KEY not in str(server.requests[0].body)
    assert "The key is [redacted" in first_prompt(server.requests[0])


def test_a_loop_carries_out_a_command_in_each_iteration_below_its_own_words(ralph, serve) -> None:
    server = serve(DONE, DONE)
    command(ralph, "work", "Work on $0. !`echo now`")
    ralph("loop", "/work it\n", "--max-iterations", "2", code=0)
    for request in server.requests:
        words = first_prompt(request)
        assert words.startswith("[ralph loop ")
        assert words.endswith("\n\n---\n\nWork on it. now")
    assert len(server.requests) == 2


def test_a_check_of_a_loop_cannot_call_a_command(ralph, serve) -> None:
    server = serve(DONE)
    command(ralph, "work", "Work.")
    check = "printf '\\n---\\n\\n/work'; exit 1"
    assert ralph("loop", "Go on.", "--max-iterations", "1", "--until", check).code == 3
    assert first_prompt(server.requests[0]).endswith("\n\n---\n\nGo on.")
    assert "Work." not in first_prompt(server.requests[0])


def test_a_loop_refuses_an_unknown_command_before_anything_exits_2(ralph, ralph_here) -> None:
    command(ralph, "work", "Work.")
    ran = ralph_here("loop", "/wrok it", "--max-iterations", "1", code=2)
    assert "there is no command /wrok: did you mean /work? (commands: /work)" in ran.stderr
