"""Rules and hooks that people wrote for Claude Code. ralph does not follow them yet, and must say so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.program.model_answers import DONE


def write(path: Path, document: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))


def about_rules(ran) -> list[str]:
    return [
        one["text"]
        for one in ran.objects
        if one.get("subtype") == "notice" and "not honoured yet" in one["text"]
    ]


def test_rules_and_hooks_of_three_files_are_one_notice_and_a_warning_of_the_doctor(
    ralph, ralph_here, serve
) -> None:
    serve(DONE)
    hook = {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "exit 2"}]}]}
    project, local = (ralph.cwd / ".claude" / name for name in ("settings.json", "settings.local.json"))
    user = Path(ralph.environment["HOME"], ".claude", "settings.json")
    write(project, {"permissions": {"deny": ["Bash(rm *)"], "allow": ["Read"]}})
    write(local, {"permissions": {"ask": ["Write"], "defaultMode": "plan"}})
    write(user, {"hooks": hook})
    expected = (
        f"not honoured yet, so that no call is stopped by them: {project}: permissions.deny; "
        f"{local}: permissions.ask, permissions.defaultMode; {user}: hooks"
    )
    ran = ralph("go", "-q", "--output-format", "stream-json")
    assert ran.code == 0
    assert about_rules(ran) == [
        f"{expected}; take tools away by --disallowed-tools, or use --permission-mode plan"
    ]
    doctor = ralph_here("doctor", "--offline")
    assert f"  warn  rules of Claude Code: {expected} -> take tools away" in doctor.stdout
    assert doctor.code == 0


def test_rules_of_the_repository_above_count_too(ralph, serve) -> None:
    serve(DONE)
    (ralph.cwd / ".git").mkdir()
    write(ralph.cwd / ".claude" / "settings.json", {"permissions": {"deny": ["Bash"]}})
    (ralph.cwd / "below").mkdir()
    [said] = about_rules(ralph("go", "-C", "below", "--output-format", "stream-json"))
    assert f"{ralph.cwd}/.claude/settings.json: permissions.deny" in said


HARMLESS: list[object] = [
    {},
    [],
    {
        "permissions": {"allow": ["Bash(*)"], "deny": [], "defaultMode": "acceptEdits"},
        "hooks": {},
        "model": "opus",
    },
    {"hooks": {"PreToolUse": []}},
]


@pytest.mark.parametrize("document", HARMLESS, ids=range(len(HARMLESS)))
def test_what_stops_no_call_is_not_mentioned(ralph_here, ralph, document) -> None:
    write(ralph.cwd / ".claude" / "settings.json", document)
    assert "Claude Code" not in ralph_here("doctor", "--offline").stdout


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_huge_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * 1024**4)


def a_directory(path: Path) -> None:
    path.mkdir()


def a_broken_file(path: Path) -> None:
    path.write_text('{"permissions": ')


def a_deep_file(path: Path) -> None:
    path.write_text("[" * 200_000)


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


def a_link_to_nothing_of_its_kind(path: Path) -> None:
    path.symlink_to("/proc/self/environ")


BROKEN = {
    a_pipe: "no regular file, whatever rules are behind it",
    a_directory: "no regular file, whatever rules are behind it",
    a_huge_file: "more than 1,000,000 bytes, whatever rules it holds",
    a_broken_file: "no valid JSON, whatever rules it holds",
    a_deep_file: "no valid JSON, whatever rules it holds",
    no_text: "no valid JSON, whatever rules it holds",
    a_link_to_nothing_of_its_kind: "no valid JSON, whatever rules it holds",
}


@pytest.mark.parametrize(("make", "says"), BROKEN.items(), ids=[make.__name__ for make in BROKEN])
def test_a_file_whose_rules_cannot_be_seen_is_said_and_holds_nothing_up(
    ralph, ralph_here, make, says
) -> None:
    path = ralph.cwd / ".claude" / "settings.json"
    path.parent.mkdir()
    make(path)
    assert f"{path}: {says}" in ralph_here("doctor", "--offline").stdout


def test_a_pipe_of_that_name_holds_no_run_up(ralph, serve) -> None:
    serve(DONE)
    (ralph.cwd / ".claude").mkdir()
    a_pipe(ralph.cwd / ".claude" / "settings.json")
    a_huge_file(ralph.cwd / ".claude" / "settings.local.json")
    ran = ralph("go", "--output-format", "stream-json")
    assert ran.code == 0
    [said] = about_rules(ran)
    assert "no regular file" in said
    assert "more than 1,000,000 bytes" in said
