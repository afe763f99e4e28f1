"""Decides which commands of hooks run for an event, and with which time limits."""

from __future__ import annotations

from ralph.permissions.claude_settings import HookCommand
from ralph.run.hooks import CommandHooks
from ralph.tools.hook_command import HookEnding
from tests.fakes import RecordingEvents


def test_a_command_that_several_entries_name_runs_once_with_its_longest_limit() -> None:
    started: list[tuple[str, float]] = []

    def run(hook: HookCommand, _given: bytes, _waiting_for: str) -> HookEnding:
        started.append((hook.command, hook.timeout_s))
        return HookEnding(0, "", "")

    hooks = [
        HookCommand("PreToolUse", "Bash", "check", 5.0),
        HookCommand("PreToolUse", "", "other", 3.0),
        HookCommand("PreToolUse", "Bash|Edit", "check", 60.0),
        HookCommand("PreToolUse", "", "check", 1.0),
        HookCommand("PreToolUse", "Edit", "check", 600.0),
        HookCommand("Stop", "", "check", 900.0),
    ]
    commands = CommandHooks(hooks, run, RecordingEvents(), is_told=False)
    assert (
        len(commands.answers("PreToolUse", {"tool_name": "Bash"}, lambda matcher: matcher.names != {"Edit"}))
        == 2
    )
    assert started == [("check", 60.0), ("other", 3.0)]
