"""Whole runs with the keys of the user's own settings file for Claude Code and of `--settings` beside rules."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.patience import wait_until
from tests.program.model_answers import DONE, bash, calls, results

KEY = "sk-ant-test-of-the-settings-file"


@pytest.fixture
def own(ralph):
    """Writes the user's own settings file for Claude Code."""

    def write(**document: Any) -> Path:
        path = Path(ralph.environment["HOME"], ".claude", "settings.json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document))
        return path

    return write


def without_key(ralph) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        ralph.environment.pop(name, None)


def settings(**document: Any) -> tuple[str, str]:
    return "--settings", json.dumps(document)


def headers(server) -> set[str]:
    return {name.lower() for name in dict(server.requests[0].headers)}


def test_env_of_the_users_own_file_aims_the_request_and_reaches_commands(ralph, serve, own) -> None:
    server = serve(bash("echo $EDITION $ANTHROPIC_AUTH_TOKEN $PYTHONPATH_OF_MINE; env"), DONE)
    base_url = ralph.environment["ANTHROPIC_BASE_URL"]
    without_key(ralph)
    path = own(
        env={
            "ANTHROPIC_BASE_URL": base_url,
            "ANTHROPIC_AUTH_TOKEN": KEY,
            "ANTHROPIC_DEFAULT_SONNET_MODEL": "of-the-gateway",
            "EDITION": "first",
            "MY_SERVICE_TOKEN": "another-secret-value",
            "PATH": "/nowhere",
            "GIT_DIR": "/nowhere",
            "RALPH_STATE_DIR": "/nowhere",
            "LD_PRELOAD": "/nowhere.so",
            "PYTHONPATH": "/nowhere",
        }
    )
    ran = ralph("go", "--output-format", "stream-json", code=0)
    assert {"authorization", "x-api-key"} & headers(server) == {"authorization"}
    assert server.requests[0].json()["model"] == "of-the-gateway"
    [(said, _)] = results(server, 1)
    assert said.startswith("first\n")
    assert "/nowhere" not in said
    for secret in (KEY, "another-secret-value"):
        assert secret not in ran.stdout + ran.stderr + str([one.json() for one in server.requests])
    names = ", ".join(
        f"env.{name}" for name in ("PATH", "GIT_DIR", "RALPH_STATE_DIR", "LD_PRELOAD", "PYTHONPATH")
    )
    assert f"{path}: not honoured: {names}" in ran.stderr
    assert "not passed to tools because they look like credentials: MY_SERVICE_TOKEN" in ran.stderr


def test_the_environment_counts_before_the_users_file_and_the_option_before_both(ralph, serve, own) -> None:
    other, server = serve(DONE), serve(DONE, DONE)
    path = own(env={"ANTHROPIC_BASE_URL": other.base_url, "ANTHROPIC_MODEL": "m"}, model="haiku")
    ran = ralph("go")
    assert (other.request_count, server.request_count) == (0, 1)
    assert server.requests[0].json()["model"] == "m"
    assert f"{path}: env.ANTHROPIC_BASE_URL does not count, as the environment sets it" in ran.stderr
    assert ralph("go", *settings(env={"ANTHROPIC_BASE_URL": other.base_url}, model="typed")).code == 0
    assert (other.request_count, server.request_count) == (1, 1)
    assert other.requests[0].json()["model"] == "typed"


def test_another_cloud_in_a_file_is_as_strict_as_in_the_environment(ralph, serve, own) -> None:
    server = serve(DONE, DONE)
    wants = {"CLAUDE_CODE_USE_BEDROCK": "1"}
    ran = ralph("go", *settings(env=wants))
    assert (ran.code, server.request_count) == (78, 0)
    assert "CLAUDE_CODE_USE_BEDROCK is set, but ralph does not find Amazon Bedrock by it" in ran.last_line
    own(env=wants)
    assert ralph("go").code == 78
    assert ralph("go", "--setting-sources", "project").code == 0


def test_a_proxy_of_a_file_is_used(ralph, serve) -> None:
    serve(DONE)
    ralph.environment["ANTHROPIC_BASE_URL"] = "http://api.invalid"
    ran = ralph("go", "--retry", "off", *settings(env={"HTTP_PROXY": "http://127.0.0.1:9"}), code=75)
    assert "the proxy http://127.0.0.1:9 (HTTP_PROXY)" in ran.stderr


def test_the_model_of_a_file_is_weaker_than_ralphs_own_files_and_flags(ralph, serve, own) -> None:
    server = serve(*[Turn("Hello.")] * 4)
    own(model="from-claude")
    ralph("go")
    ralph("go", "--model", "flag")
    ralph.user_file.write_text("model.name = 'own'\n")
    ralph("go")
    ralph("go", *settings(model="typed"))
    sent = [request.json()["model"] for request in server.requests]
    assert sent == ["from-claude", "flag", "own", "typed"]


def test_additional_directories_of_the_settings_at_the_time_of_a_run_may_be_written(
    ralph, serve, own, tmp_path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    write = [
        calls(("Write", {"file_path": f"{tmp_path}/{name}/f", "content": "x"})) for name in ("one", "two")
    ]
    server = serve(write[0], DONE, write[1], write[0], DONE)
    own(permissions={"additionalDirectories": [f"{tmp_path}/one"]})
    assert ralph("go").code == 0
    assert (tmp_path / "one/f").exists()
    own(permissions={"additionalDirectories": ["../two", f"{tmp_path}/absent"]})
    (tmp_path / "one/f").unlink()
    assert ralph.cwd.parent == tmp_path
    ran = ralph("-c", "more", code=0)
    assert f"additionalDirectories: {tmp_path}/absent does not exist" in ran.stderr
    assert [is_error for nth in (3, 4) for _, is_error in results(server, nth)] == [False, True]
    assert not (tmp_path / "one/f").exists()


def test_all_keys_that_are_not_honoured_are_named_in_one_line(ralph, serve, own) -> None:
    serve(DONE, DONE)
    unread = {
        "statusLine": {"type": "command", "command": "x"},
        "cleanupPeriodDays": 3,
        "someKeyOfTomorrow": 1,
        "permissions": {"deny": ["Bash(rm:*)"], "disableAutoMode": "disable"},
        "sandbox": {"enabled": False, "excludedCommands": ["git"]},
        "$schema": "x",
        "model": "sonnet",
    }
    path = own(**unread)
    said = "statusLine, cleanupPeriodDays, someKeyOfTomorrow, permissions.disableAutoMode, sandbox.excludedCommands, "
    assert f"{path}: not honoured: {said}sandbox.enabled" in ralph("go").stderr
    assert f"{path}: not honoured: {said}sandbox.enabled" in ralph("doctor").stdout
    own(model="sonnet", env={"A": "b"}, permissions={"deny": ["Bash(rm:*)"]})
    assert "not honoured" not in ralph("go").stderr


HOOK = {"hooks": [{"type": "command", "command": "touch ran; exit 2"}]}


def test_disable_all_hooks_is_for_the_hooks_of_all_files(ralph, serve, own) -> None:
    serve(bash("true"), DONE, bash("true"), DONE)
    path = own(hooks={"PreToolUse": [HOOK], "PermissionRequest": [HOOK]})
    ran = ralph("go", *settings(disableAllHooks=True), code=0)
    assert not (ralph.cwd / "ran").exists()
    assert (
        f"{path}: hooks for PreToolUse, PermissionRequest are not run: disableAllHooks of --settings"
        in ran.stderr
    )
    project = ralph.cwd / ".claude/settings.json"
    project.parent.mkdir()
    project.write_text('{"disableAllHooks": true}')
    own(hooks={"PreToolUse": [HOOK]})
    assert ralph("go").code == 0
    assert (ralph.cwd / "ran").exists(), "a repository switches no hook off"


TRUSTED_ONLY = {
    "hooks": {"PreToolUse": [HOOK]},
    "env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"},
    "model": "opus",
    "apiKeyHelper": "echo sk-ant-0123456789",
    "disableAllHooks": True,
    "permissions": {"additionalDirectories": ["/"]},
}


def test_a_file_of_the_option_that_an_agent_may_write_only_tightens(
    ralph, ralph_here, serve, tmp_path
) -> None:
    server = serve(bash("rm x"), DONE)
    file = ralph.cwd / "mine.json"
    link = tmp_path / "link.json"
    link.symlink_to(file)
    rules = {"permissions": {"deny": ["Bash(rm:*)"]}}
    for key, value in TRUSTED_ONLY.items():
        file.write_text(json.dumps({**rules, key: value}))
        ran = ralph_here("go", "--settings", "mine.json")
        assert (ran.code, server.request_count) == (78, 0)
        name = "permissions.additionalDirectories" if key == "permissions" else key
        assert (
            f"{file}: {name} cannot be honoured, as an agent or a repository's author may write"
            in ran.last_line
        )
        assert 'give its text instead: --settings "$(cat FILE)"' in ran.last_line
        assert ralph_here("go", "--settings", str(link)).code == 78
    file.write_text(json.dumps(rules))
    assert ralph("go", "--settings", "mine.json").code == 0
    assert results(server, 1)[0][1], "its rules hold"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_the_option_that_belongs_to_another_user_only_tightens(ralph, serve, tmp_path) -> None:
    serve(DONE, DONE)
    (tmp_path / "theirs").mkdir()
    file = tmp_path / "theirs/s.json"
    file.write_text('{"model": "opus"}')
    os.chown(file, 12345, 12345)
    ran = ralph("go", "--settings", str(file), code=78)
    assert f"{file}: model cannot be honoured, as it belongs to another user (uid 12345)" in ran.last_line
    os.chown(file, 0, 0)
    assert ralph("go", "--settings", str(file)).code == 0


def test_a_users_file_that_an_agent_may_write_is_named_and_does_not_count(ralph, serve) -> None:
    server = serve(DONE)
    ralph.environment["HOME"] = str(ralph.cwd)
    file = ralph.cwd / ".claude/settings.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"model": "opus", "hooks": {"Stop": [HOOK]}}))
    ran = ralph("go", code=0)
    assert (
        f"{file}: model, hooks do not count, as an agent or a repository's author may write {ralph.cwd}"
        in ran.stderr
    )
    assert "opus" not in server.requests[0].json()["model"]


def test_a_directory_that_holds_the_file_itself_is_refused(ralph, serve, own) -> None:
    server = serve(DONE)
    path = own(permissions={"additionalDirectories": ["~/.claude"]})
    ran = ralph("go")
    assert (ran.code, server.request_count) == (78, 0)
    assert f"{path} does not count, as an agent" in ran.last_line


def test_a_value_of_a_wrong_type_is_named(ralph_here, serve, own) -> None:
    serve(DONE)
    for document, says in (
        ({"model": 3}, "model must be a text"),
        ({"env": ["A=b"]}, "env must be an object"),
        ({"env": {"A": {}}}, "env.A must be a text"),
        ({"permissions": {"additionalDirectories": "x"}}, "must be a list of directories"),
        ({"permissions": "x"}, "permissions must be an object"),
        ({"sandbox": "x"}, "sandbox must be an object"),
    ):
        path = own(**document)
        ran = ralph_here("go", code=78)
        assert f"{path}: " in ran.last_line
        assert says in ran.last_line


def test_a_loop_and_its_check_have_the_variables_too(ralph, serve, own) -> None:
    server = serve(DONE)
    base_url = ralph.environment["ANTHROPIC_BASE_URL"]
    without_key(ralph)
    own(env={"ANTHROPIC_BASE_URL": base_url, "ANTHROPIC_AUTH_TOKEN": KEY, "EDITION": "first"}, model="haiku")
    check = "echo $EDITION $ANTHROPIC_AUTH_TOKEN >> seen; test -e tried || { touch tried; exit 1; }"
    ralph("loop", "go", "--until", check, "--max-iterations", "2", code=0)
    assert (ralph.cwd / "seen").read_text() == "first\nfirst\n"
    assert {"authorization", "x-api-key"} & headers(server) == {"authorization"}
    assert "haiku" in server.requests[0].json()["model"]


def helper(ralph, script: str, name: str = "key") -> str:
    """Makes a program outside the working directory that may print a key. Returns its path."""
    path = Path(ralph.environment["HOME"], "bin", name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_key_in_the_environment_comes_before_the_program(ralph, serve, own) -> None:
    serve(DONE)
    own(apiKeyHelper="exit 1")
    assert ralph("go").code == 0


def test_a_refused_key_of_a_file_is_named_with_the_file_unless_the_environment_has_it(
    ralph, serve, own
) -> None:
    serve(Step(fault=Fault(status=401), repeat="forever"))
    path = own(env={"ANTHROPIC_API_KEY": KEY})
    assert "[hint] Check the key: ANTHROPIC_API_KEY.\n" in ralph("go").stderr
    del ralph.environment["ANTHROPIC_API_KEY"]
    assert f"[hint] Check the key: ANTHROPIC_API_KEY of {path}.\n" in ralph("go").stderr


def test_a_signal_ends_the_wait_for_the_program(ralph, serve, own) -> None:
    serve(DONE)
    del ralph.environment["ANTHROPIC_API_KEY"]
    began = Path(ralph.environment["HOME"], "began")
    own(apiKeyHelper=helper(ralph, f"touch {began}; sleep 600"))
    process = ralph.start("go")
    wait_until(began.exists)
    assert ralph.stopped_by(process, signal.SIGTERM).code == 143


def test_credentials_of_the_files_are_not_kept_on_the_disk(ralph, serve, own) -> None:
    serve(DONE, DONE)
    del ralph.environment["ANTHROPIC_API_KEY"]
    asked = {"env": {"ANTHROPIC_AUTH_TOKEN": KEY}, "permissions": {"deny": ["Bash(rm:*)"]}}

    def kept() -> list[str]:
        files = [one for one in Path(ralph.environment["HOME"]).rglob("*") if one.is_file()]
        return [one.name for one in files if KEY.encode() in one.read_bytes()]

    ran = ralph("go", *settings(**asked), "--max-turns", "1", "--output-format", "json")
    assert (ran.code, kept()) == (0, [])
    [journal] = Path(ralph.environment["HOME"]).rglob("sessions/*/*.jsonl")
    assert "Bash(rm:*)" in journal.read_text(), "the command that resumes names the rules"
    own(**asked)
    assert ralph("loop", "go", "--max-iterations", "1").code == 0
    assert kept() == ["settings.json"], "it is read again by --continue"
