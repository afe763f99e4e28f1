"""A misspelt key that asks for a protection ends the run. Other unknown keys have no effect."""

from __future__ import annotations

from typing import Any

import pytest

from ralph.permissions.claude_settings import GuardError, read_settings
from ralph.values.claude_file import ClaudeFile
from tests.rows import every_row

USER, PROJECT = (ClaudeFile("f.json", kind, "", "") for kind in ("user", "project"))
HOOK = {"type": "command", "command": "true"}

# A key, what it is perhaps meant as, and the document.
MISSPELT: list[tuple[str, str, dict[str, Any]]] = [
    ("permissons", "permissions", {"permissons": {"deny": ["Bash"]}}),
    ("Permissions", "permissions", {"Permissions": {"deny": ["Bash"]}}),
    ("deny", "permissions.deny", {"deny": ["Bash(rm:*)"]}),
    ("ask", "permissions.ask", {"ask": ["Bash"]}),
    ("allow", "permissions.allow", {"allow": ["Read"]}),
    ("defaultMode", "permissions.defaultMode", {"defaultMode": "plan"}),
    ("Deny", "permissions.deny", {"Deny": ["Bash"]}),
    ("PreToolUse", "hooks.PreToolUse", {"PreToolUse": [{"hooks": [HOOK]}]}),
    ("hook", "hooks", {"hook": {"PreToolUse": []}}),
    ("sandbx", "sandbox", {"sandbx": {"enabled": True}}),
    ("permissions.denny", "deny", {"permissions": {"denny": ["Bash"]}}),
    ("permissions.asks", "ask", {"permissions": {"asks": ["Bash"]}}),
    ("permissions.defaultMode = plann", "plan", {"permissions": {"defaultMode": "plann"}}),
    ("hooks.preToolUse", "PreToolUse", {"hooks": {"preToolUse": [{"hooks": [HOOK]}]}}),
    (
        "hooks.PreToolUse: matchers",
        "matcher",
        {"hooks": {"PreToolUse": [{"matchers": "x", "hooks": [HOOK]}]}},
    ),
    ("hooks.Stop: timeouts", "timeout", {"hooks": {"Stop": [{"hooks": [{**HOOK, "timeouts": 5}]}]}}),
    ("sandbox.failifunavailable", "failIfUnavailable", {"sandbox": {"failifunavailable": True}}),
]


@every_row(("key", "meant", "document"), MISSPELT)
def test_a_misspelt_guard_is_an_error_that_names_file_and_key(key, meant, document) -> None:
    with pytest.raises(GuardError) as raised:
        read_settings(document, USER)
    assert str(raised.value).startswith(f"f.json: {key} is not known, and is perhaps meant as {meant}")


@every_row(
    ("entry", "says"),
    [
        ({"matcher": "bash", "hooks": [HOOK]}, "the matcher 'bash' cannot be kept: no tool is called 'bash': did you"),
        ({"matcher": "Read|Writ", "hooks": [HOOK]}, "no tool is called 'Writ': did you mean Write?"),
        ({"matcher": "Bassh|Bash|Writ", "hooks": [HOOK]}, "no tool is called 'Writ': did you mean Write?"),
        ({"matcher": "(", "hooks": [HOOK]}, "the matcher '(' cannot be kept: it is not a regular expression"),
        ({"hooks": [{**HOOK, "if": "Bash(rm *)"}]}, "a hook with 'if' cannot be run"),
        ({"hooks": [{**HOOK, "shell": "powershell"}]}, "a hook with 'shell' cannot be run"),
        ({"hooks": [{**HOOK, "args": "x"}]}, "args must be a list of texts"),
        ({"hooks": [{**HOOK, "args": ["x", 1]}]}, "args must be a list of texts"),
    ],
)  # fmt: skip
def test_a_hook_that_would_not_be_called_as_asked_is_an_error(entry, says) -> None:
    with pytest.raises(GuardError) as raised:
        read_settings({"hooks": {"PreToolUse": [entry]}}, USER)
    assert says in str(raised.value)


@every_row(
    ("hook", "line"),
    [
        ({"shell": "bash", "command": "jq -r .x | cat"}, "jq -r .x | cat"),
        ({"command": "/my hooks/check", "args": []}, "'/my hooks/check'"),
        (
            {"command": "belay", "args": ["hook", "a b;c", "~", "$HOME", "'", ""]},
            """belay hook 'a b;c' '~' '$HOME' ''"'"'' ''""",
        ),
        (
            {
                "command": "${CLAUDE_PROJECT_DIR}/check",
                "args": ["--in=${CLAUDE_PROJECT_DIR}/a b", "$CLAUDE_PROJECT_DIR"],
            },
            """"$CLAUDE_PROJECT_DIR"/check --in="$CLAUDE_PROJECT_DIR"'/a b' '$CLAUDE_PROJECT_DIR'""",
        ),
    ],
)
def test_a_hook_with_arguments_starts_a_program_without_a_shell_that_reads_them(hook, line) -> None:
    document = {"hooks": {"PreToolUse": [{"hooks": [HOOK | hook]}]}}
    assert read_settings(document, USER).hooks[0].command == line


@every_row("matcher", ["Task|MultiEdit|NotebookEdit", "bash|Bash", "mcp__x", "NotebookE.*", ""])
def test_a_matcher_may_name_tools_that_ralph_lacks(matcher) -> None:
    document = {"hooks": {"PreToolUse": [{"matcher": matcher, "hooks": [HOOK]}]}}
    assert read_settings(document, USER).hooks[0].matcher == matcher


def test_rules_of_a_repository_are_guards_too() -> None:
    with pytest.raises(GuardError):
        read_settings({"permissions": {"denny": ["Bash"]}}, PROJECT)


def test_other_keys_pass_and_unknown_ones_of_permissions_are_named() -> None:
    others = "model env statusLine disableAutoMode allowManagedPermissionRulesOnly".split()
    document = {
        **dict.fromkeys(others, 1),
        "permissions": {"additionalDirectories": ["x"], "forbid": ["Bash"], "defaultMode": "auto"},
        "sandbox": {"autoAllowBashIfSandboxed": True, "excludedCommands": ["git"]},
        "hooks": {"PostToolBatch": [{"hooks": [HOOK]}], "Stop": [{"hooks": [{**HOOK, "async": True}]}]},
    }
    found = read_settings(document, USER)
    assert (found.unknown_permissions, found.unused_hooks) == (("forbid",), ("PostToolBatch",))


@every_row("key", ["permissions", "hooks", "sandbox"])
@every_row("value", [[], "", 0, False, ["x"]])
def test_what_holds_guards_must_be_an_object(key, value) -> None:
    with pytest.raises(GuardError, match=f"{key} must be an object"):
        read_settings({key: value}, USER)
    assert read_settings({key: None}, USER) == read_settings({}, USER)


def test_hooks_of_a_repository_that_are_no_object_are_named() -> None:
    for hooks in ([], ["x"], False):
        assert read_settings({"hooks": hooks}, PROJECT).unused_hooks == ("which are not objects",)


def test_any_request_not_to_bypass_counts() -> None:
    for requested in ("disable", "disabled", True):
        assert read_settings(
            {"permissions": {"disableBypassPermissionsMode": requested}}, USER
        ).forbids_bypass
