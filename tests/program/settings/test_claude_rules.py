"""Permission rules and hooks in settings files made for Claude Code, in whole runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.program.model_answers import DONE, bash, calls, results
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable

RULES = {"permissions": {"deny": ["Bash(rm:*)", "Read(./.env)"]}}


def write(path: Path, document: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def denials(ran) -> list[dict[str, Any]]:
    return [one["tool_input"] for one in ran.result["permission_denials"]]


@pytest.fixture
def project(ralph) -> Path:
    """The repository's settings file, with two rules."""
    (ralph.cwd / ".env").write_text("KEY=hidden\n")
    (ralph.cwd / "kept").write_text("")
    return write(ralph.cwd / ".claude" / "settings.json", RULES)


def test_a_denied_call_is_a_result_for_the_model_a_line_for_people_and_a_denial(
    ralph, serve, project
) -> None:
    server = serve(bash("echo hi; rm kept"), calls(("Read", {"file_path": ".env"})), bash("echo fine"), DONE)
    ran = ralph("go", "--output-format", "stream-json", code=0)
    assert (ralph.cwd / "kept").exists()
    why = f"the rule Bash(rm:*) (permissions.deny of {project}) forbids it."
    assert results(server, 1) == [(f"This call was not run: {why}", True)]
    assert "Read(./.env)" in results(server, 2)[0][0]
    assert results(server, 3) == [("fine", False)]
    assert (
        "[tool] Bash failed: This call was not run: the rule Bash(rm:*) (permissions.deny of " in ran.stderr
    )
    assert denials(ran) == [{"command": "echo hi; rm kept"}, {"file_path": ".env"}]
    assert f"permission rules in force: 2 of {project}" in ran.notices


@pytest.mark.parametrize("checkout", ["work", ""])
def test_a_repository_that_a_command_made_takes_no_rule_out_of_the_project(
    ralph, serve, project, checkout
) -> None:
    home = ralph.cwd.parent  # may be a checkout of the user's own files
    ralph.environment["HOME"] = str(home)
    (home / checkout / ".git").mkdir(exist_ok=True)
    sub = ralph.cwd / "pkg/api"
    sub.mkdir(parents=True)
    serve(bash("mkdir .git"), DONE, bash("rm ../../kept"), calls(("Read", {"file_path": "../../.env"})), DONE)
    assert ralph("go", "--cd", str(sub)).code == 0
    assert (sub / ".git").is_dir()
    ran = ralph("go", "--cd", str(sub), "--output-format", "stream-json")
    assert denials(ran) == [{"command": "rm ../../kept"}, {"file_path": "../../.env"}]
    assert (ralph.cwd / "kept").exists()


@pytest.mark.sandboxed
@pytest.mark.parametrize("link", [".claude", ".claude/settings.json"])
def test_rules_behind_a_link_in_the_work_stay_as_they_are(ralph, serve, project, link) -> None:
    kept = ralph.cwd / "cfg"
    (ralph.cwd / link).rename(kept if link == ".claude" else kept.with_suffix(".json"))
    real = kept / "settings.json" if link == ".claude" else kept.with_suffix(".json")
    (ralph.cwd / link).symlink_to(kept if link == ".claude" else real)
    before, shown = real.read_text(), str(real.relative_to(ralph.cwd))
    server = serve(
        *(
            calls(("Write", {"file_path": path, "content": "{}"}))
            for path in (shown, ".claude/settings.json")
        ),
        *(bash(f"echo {{}} > {path}") for path in (shown, ".claude/settings.json")),
        bash(f"rm -f {shown}; echo {{}} > x; mv x {shown}"),
        DONE,
    )
    assert ralph("go").code == 0
    assert real.read_text() == before
    assert all("not written" in results(server, number)[0][0] for number in (1, 2))


def test_no_tool_shows_a_denied_file(ralph, serve, project) -> None:
    server = serve(
        calls(
            ("Grep", {"pattern": "KEY", "output_mode": "content"}),
            ("Grep", {"pattern": "KEY", "path": ".env", "output_mode": "content"}),
            ("Glob", {"pattern": "*"}),
            ("Read", {"file_path": "./innocent"}),
            ("Edit", {"file_path": ".env", "old_string": "KEY", "new_string": "X"}),
        ),
        bash("cat .env"),
        bash("cat < innocent"),
        bash("grep -r KEY ."),
        DONE,
    )
    (ralph.cwd / "innocent").symlink_to(".env")
    ran = ralph("go", "--output-format", "stream-json", code=0)
    told = str([results(server, nth) for nth in range(1, 5)])
    assert "hidden" not in told
    assert (ralph.cwd / ".env").read_text() == "KEY=hidden\n"
    assert len(denials(ran)) == 6


def test_a_rule_whose_path_leads_through_a_linked_directory_holds_for_every_tool(ralph, serve) -> None:
    home = Path(ralph.environment["HOME"])
    (home / "proj").symlink_to(ralph.cwd)
    secret = ralph.cwd / "secrets" / "k.txt"
    secret.parent.mkdir()
    secret.write_text("KEY=hidden\n")
    write(home / ".claude" / "settings.json", {"permissions": {"deny": ["Read(~/proj/secrets/**)"]}})
    server = serve(
        calls(
            ("Read", {"file_path": "secrets/k.txt"}),
            ("Grep", {"pattern": "KEY", "path": "secrets", "output_mode": "content"}),
            ("Edit", {"file_path": "secrets/k.txt", "old_string": "KEY", "new_string": "X"}),
        ),
        bash("cat secrets/k.txt"),
        DONE,
    )
    ran = ralph("go", "--output-format", "stream-json", code=0)
    assert "hidden" not in str([results(server, nth) for nth in (1, 2)])
    assert secret.read_text() == "KEY=hidden\n"
    assert len(denials(ran)) == 3


def test_rules_of_all_files_and_of_the_option_hold(ralph, serve, project) -> None:
    below = ralph.cwd / "below"
    below.mkdir()
    (ralph.cwd / ".git").mkdir()
    write(ralph.cwd / ".claude" / "settings.local.json", {"permissions": {"deny": ["Bash(local:*)"]}})
    user = Path(ralph.environment["HOME"], ".claude", "settings.json")
    write(
        user, {"permissions": {"deny": ["Bash(user:*)"], "ask": ["Bash(asked:*)"], "allow": ["Bash(rm:*)"]}}
    )
    option = write(ralph.cwd / "more.json", {"permissions": {"deny": ["Bash(option:*)"]}})
    server = serve(*(bash(f"{name} x") for name in ("local", "user", "option", "asked", "rm")), DONE)
    ran = ralph(
        "go",
        "-C",
        "below",
        "--settings",
        str(option),
        "--setting-sources=",
        "--output-format",
        "stream-json",
        code=0,
    )
    told = [results(server, nth)[0][0] for nth in range(1, 6)]
    assert [
        f"the rule Bash({name}:*)" in one
        for name, one in zip(("local", "user", "option", "asked", "rm"), told, strict=True)
    ] == [True] * 5
    assert str(option) in told[2]
    assert told[3].endswith("requires somebody to be asked first. Nobody is asked in this run.")
    assert len(denials(ran)) == 5


def test_dont_ask_runs_what_reads_and_what_an_allow_rule_names(ralph, serve) -> None:
    write(
        ralph.cwd / ".claude" / "settings.json",
        {"permissions": {"allow": ["Bash(echo *)", "Write(./out/**)"]}},
    )
    server = serve(
        bash("echo hi"),
        bash("id"),
        calls(
            ("Write", {"file_path": "out/x", "content": "x"}), ("Write", {"file_path": "y", "content": "y"})
        ),
        calls(("Glob", {"pattern": "*"})),
        DONE,
    )
    named = ("--setting-sources", "project")
    ran = ralph("go", "--permission-mode", "dontAsk", *named, "--output-format", "stream-json", code=0)
    assert [is_error for nth in range(1, 5) for _, is_error in results(server, nth)] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert ran.objects[0]["permissionMode"] == "dontAsk"


ALLOWS = {"permissions": {"allow": ["Bash(echo *)"]}}
NOT_COUNTED = "ralph ignores allow rules of the repository: {} (Bash(echo *)); --setting-sources user,project,local lets them"


def test_the_users_own_file_allows_nothing_where_sandbox_write_decides_what_it_says(
    ralph, serve, tmp_path
) -> None:
    (tmp_path / "dotfiles").mkdir()
    Path(ralph.environment["HOME"], ".claude").symlink_to(tmp_path / "dotfiles")
    write(tmp_path / "dotfiles/settings.json", ALLOWS)
    server = serve(bash("echo hi"), DONE, bash("echo hi"), DONE)
    mode = ("--permission-mode", "dontAsk")
    assert ralph("go", *mode).code == 0
    ralph.user_file.write_text(f"sandbox.write = ['{tmp_path}/dotfiles']\n")
    assert ralph("go", *mode).code == 0
    assert [results(server, nth)[0][1] for nth in (1, 3)] == [False, True]


def test_a_repository_allows_nothing_in_dont_ask_unless_the_user_names_it(ralph, serve) -> None:
    project = write(ralph.cwd / ".claude" / "settings.json", ALLOWS)
    server = serve(bash("echo hi"), DONE, bash("echo hi"), DONE)
    mode = ("--permission-mode", "dontAsk", "--output-format", "stream-json")
    ran = ralph("go", *mode)
    assert results(server, 1)[0][1]
    assert ran.notices[0] == NOT_COUNTED.format(project)
    assert not any("in force" in text for text in ran.notices)
    ran = ralph("go", *mode, "--setting-sources", "user")
    assert results(server, 3)[0][1]
    assert not any("do not count" in text for text in ran.notices)


def test_a_repository_that_asks_for_dont_ask_itself_allows_what_it_names(ralph, serve) -> None:
    asks = {"permissions": {**ALLOWS["permissions"], "defaultMode": "dontAsk"}}
    write(ralph.cwd / ".claude" / "settings.json", asks)
    server = serve(bash("echo hi; id"), bash("echo hi"), DONE)
    assert ralph("go").code == 0
    assert [results(server, nth)[0][1] for nth in (1, 2)] == [True, False]


@pytest.mark.parametrize("sources", [(), ("--setting-sources", "project")])
def test_a_repository_allows_a_driver_only_what_the_driver_lets_it(drive, serve, ralph, sources) -> None:
    asks = {"permissions": {**ALLOWS["permissions"], "defaultMode": "dontAsk"}}
    write(ralph.cwd / ".claude" / "settings.json", asks)
    server = serve(bash("echo hi"), DONE)
    driver = drive(*sources)
    driver.ask("set_permission_mode", mode="dontAsk")
    driver.say("go")
    assert driver.finish().code == 0
    assert results(server, 1)[0][1] == (not sources)


def test_a_mode_in_a_file_holds_unless_the_command_line_says_another(ralph, serve) -> None:
    write(ralph.cwd / ".claude" / "settings.json", {"permissions": {"defaultMode": "plan"}})
    serve(bash("touch made"), DONE, bash("touch made"), DONE)
    assert ralph("go").code == 0
    assert not (ralph.cwd / "made").exists()
    assert ralph("go", "--permission-mode", "bypassPermissions").code == 0
    assert (ralph.cwd / "made").exists()


REFUSED = {
    "a misspelt name": (
        {"permissons": {"deny": ["Bash"]}},
        "permissons is not known, and is perhaps meant as",
    ),
    "an unknown tool": (
        {"permissions": {"deny": ["Bsh(rm)"]}},
        "permissions.deny: 'Bsh(rm)': no tool is called 'Bsh'",
    ),
    "no rule": ({"permissions": {"ask": ["Bash(rm"]}}, "permissions.ask: 'Bash(rm' is not a rule"),
    "at the top": ({"deny": ["Bash"]}, "deny is not known, and is perhaps meant as permissions.deny"),
    "no list": ({"permissions": {"deny": "Bash"}}, "permissions.deny must be a list of rules"),
    "no object": ({"permissions": ["Bash"]}, "permissions must be an object"),
    "no text": ({"permissions": {"deny": [1]}}, "a rule must be a text, not int"),
    "no JSON": ('{"permissions": ', "is not valid JSON"),
    "a space that is none": (
        '{"permissions": {"deny": ["Bash(touch\\u00a0:*)"]}}',
        "white space that is no plain space",
    ),
    "a guard twice": (
        '{"permissions": {"deny": ["Bash(touch:*)"]}, "permissions": {}}',
        "the key 'permissions' occurs twice",
    ),
    "deep": ('{"permissions": ' + "[" * 200_000, "is not valid JSON"),
}


@every_row("name", REFUSED)
def test_without_a_rule_that_cannot_be_understood_nothing_runs(ralph, ralph_here, serve, name) -> None:
    document, says = REFUSED[name]
    server = serve(DONE)
    path = write(ralph.cwd / ".claude" / "settings.json", document)
    ran = ralph_here("go", "--output-format", "stream-json")
    assert (ran.code, server.request_count) == (78, 0)
    assert str(path) in ran.result["errors"][0]
    assert says in ran.result["errors"][0]


def test_an_allow_rule_that_cannot_be_understood_allows_nothing_and_stops_nothing(ralph, serve) -> None:
    serve(DONE)
    write(ralph.cwd / ".claude" / "settings.json", {"permissions": {"allow": ["Bsh(rm)", 3]}})
    assert ralph("go").code == 0


FOR_GUARDS = {
    "a hook of another type": {"hooks": {"PreToolUse": [{"hooks": [{"type": "prompt", "prompt": "x"}]}]}},
    "a hook that may refuse a permission": {
        "hooks": {"PermissionRequest": [{"hooks": [{"type": "command", "command": "true"}]}]}
    },
    "a matcher that is no expression": {
        "hooks": {"PreToolUse": [{"matcher": "(", "hooks": [{"type": "command", "command": "true"}]}]}
    },
    "no bypassing": {"permissions": {"disableBypassPermissionsMode": "disable"}},
    "a sandbox of another program": {"sandbox": {"network": {"allowedDomains": ["x.org"]}}},
}


def test_fail_if_unavailable_is_a_strict_sandbox(ralph, ralph_here, serve) -> None:
    serve(DONE, DONE)
    asked = ("--settings", json.dumps({"sandbox": {"failIfUnavailable": True}}))
    # What strict refuses on each machine: a home directory that commands may write.
    ran = ralph_here("go", *asked, "--cd", ralph.environment["HOME"], code=78)
    assert "--sandbox strict: " in ran.last_line
    ran = ralph_here("go", *asked, "--sandbox", "off", code=78)
    assert "sandbox.failIfUnavailable cannot be kept with --sandbox off" in ran.last_line


@every_row("name", FOR_GUARDS)
def test_without_a_guard_that_the_user_asks_for_nothing_runs(ralph_here, serve, name) -> None:
    server = serve(DONE)
    ran = ralph_here("go", "--settings", json.dumps(FOR_GUARDS[name]))
    assert (ran.code, server.request_count) == (78, 0)
    assert "--settings: " in ran.last_line


def test_no_bypassing_is_kept_by_a_mode_in_which_nothing_is_bypassed(ralph, serve) -> None:
    serve(DONE)
    document = json.dumps(FOR_GUARDS["no bypassing"])
    assert ralph("go", "--settings", document, "--permission-mode", "dontAsk").code == 0


def test_settings_that_cannot_be_read_are_a_wrong_option(ralph_here, serve) -> None:
    server = serve(DONE)
    for value in ("nowhere.json", "{", "."):
        ran = ralph_here("go", "--settings", value)
        assert (ran.code, server.request_count) == (2, 0)
        assert "--settings" in ran.stderr or "nowhere.json" in ran.stderr or "regular file" in ran.stderr


def test_hooks_of_a_repository_are_named_once_and_not_run(ralph, serve) -> None:
    serve(bash("true"), DONE)
    hook = {"hooks": [{"type": "command", "command": "touch ran"}]}
    sandbox = {"enabled": True, "excludedCommands": ["git"]}
    document = {"hooks": {"PreToolUse": [hook], "stopp": [hook]}, "sandbox": sandbox}
    path = write(ralph.cwd / ".claude" / "settings.json", document)
    ran = ralph("go", "--output-format", "stream-json", "--sandbox", "off", code=0)
    assert not (ralph.cwd / "ran").exists()
    not_started = "a repository may not start programs; pass hooks that you trust with --settings"
    only_restricts = (
        "a repository may only restrict commands; use --net, --allow-host or [sandbox] in your own settings"
    )
    assert [text for text in ran.notices if str(path) in text] == [
        f"hooks of {path} are not run (PreToolUse, stopp: stopp is perhaps meant as Stop): {not_started}",
        f"{path}: keys without effect: sandbox.excludedCommands: {only_restricts}",
        f"{path}: sandbox.enabled has no effect with --sandbox off ([sandbox] mode)",
    ]


def test_the_doctor_lists_rules_and_fails_where_no_run_would_begin(ralph, ralph_here, project) -> None:
    good = ralph_here("doctor")
    assert f"  ok    permission rules: {project}: 2 rules" in good.stdout
    assert good.code == 0
    write(
        project, {"permissions": {"disableBypassPermissionsMode": "disable"}, "sandbox": {"enabled": False}}
    )
    told = ralph_here("doctor").stdout
    assert f"{project}: permissions.disableBypassPermissionsMode is not honoured -> --permission-mode" in told
    assert f"{project}: keys without effect: sandbox.enabled -> " in told
    write(project, {"permissions": {"deny": ["Bsh"]}})
    bad = ralph_here("doctor")
    assert "  FAIL  permission rules: " in bad.stdout
    assert bad.code == 78


def test_an_empty_file_holds_no_rules_and_is_named(ralph, serve) -> None:
    serve(DONE)
    path = write(ralph.cwd / ".claude" / "settings.json", "\n")
    ran = ralph("go", code=0)
    assert f"{path} is empty" in ran.stderr


@pytest.mark.ordinary_user
def test_a_home_of_another_user_is_named_with_the_way_out(ralph, serve, tmp_path) -> None:
    server = serve(DONE)
    home = tmp_path / "theirs"
    (home / ".config/ralph").mkdir(parents=True)
    (home / ".config/ralph/config.toml").touch()
    home.chmod(0)
    ralph.environment["HOME"] = str(home)
    ran = ralph("go")
    home.chmod(0o755)
    assert (ran.code, server.request_count) == (78, 0)
    says = f"(HOME is {home}, which uid {os.geteuid()} may not read: set HOME to a directory of that user)"
    assert says in ran.last_line


def a_huge_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 10 * 1024**4)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (lambda path: path.write_text("{"), "is not valid JSON"),
    "a link": (lambda path: path.symlink_to("nothing"), "is a link that leads nowhere"),
    "a list": (lambda path: path.write_text("[]"), "is not a JSON object"),
    "a pipe": (os.mkfifo, "cannot be read (it is not a regular file)"),
    "a directory": (os.mkdir, "cannot be read (it is not a regular file)"),
    "a huge file": (a_huge_file, "has more than 1,000,000 bytes"),
    "no text": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is not valid JSON"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_whose_rules_cannot_be_seen_ends_the_run(ralph, ralph_here, serve, name) -> None:
    make, says = BROKEN[name]
    server = serve(DONE)
    path = ralph.cwd / ".claude" / "settings.json"
    path.parent.mkdir()
    make(path)
    ran = ralph_here("go", "--output-format", "stream-json")
    assert (ran.code, server.request_count) == (78, 0)
    assert f"{path} {says}: ralph cannot know which calls its rules forbid" in ran.result["errors"][0]
    assert f"{path} {says}" in ralph_here("doctor").stdout


def test_a_resumed_session_keeps_the_patterns_until_tools_are_named_again(ralph, serve) -> None:
    server = serve(DONE, bash("id"), bash("echo a; echo b"), DONE, bash("id"), DONE, bash("id"), DONE)
    assert ralph("go", "--allowedTools", "Bash(echo *)", "--disallowedTools", "Bash(echo b)").code == 0
    assert ralph("-c", "again").code == 0
    assert ["the session's options" in results(server, nth)[0][0] for nth in (2, 3)] == [False, True]
    assert results(server, 2)[0][0].endswith("no rule allows `id`.")
    assert ralph("-c", "and again").code == 0
    assert results(server, 5)[0][1]
    assert ralph("-c", "now all", "--tools", "default").code == 0
    assert not results(server, 7)[0][1]


def test_a_loop_keeps_the_rules_with_which_it_began(ralph, iterations, project) -> None:
    """Without a sandbox, a command could change the file for the next iteration."""
    more = write(ralph.cwd / "more.json", {"permissions": {"deny": ["Bash(touch:*)"]}})
    server = iterations(
        [bash(f"echo '{{}}' > {project}; echo '{{}}' > {more}")], [bash("rm kept"), bash("touch x")]
    )
    ralph(
        *("loop", "go", "--max-iterations", "2", "--sandbox", "off"),
        *("--settings", str(more), "--disallowedTools", "Bash(ls:*)"),
        code=0,
    )
    assert project.read_text() == "{}\n"
    assert (ralph.cwd / "kept").exists()
    assert not (ralph.cwd / "x").exists()
    told = str([results(server, nth) for nth in range(3, 5)])
    assert "the rule Bash(rm:*)" in told
    assert "the rule Bash(touch:*)" in told


def test_a_loop_does_not_begin_with_a_file_that_cannot_be_read(ralph, iterations) -> None:
    server = iterations([])
    (ralph.cwd / ".claude" / "settings.json").mkdir(parents=True)
    ran = ralph("loop", "go", "--max-iterations", "1")
    assert (ran.code, server.request_count) == (78, 0)
    assert "it is not a regular file): ralph cannot know which calls its rules forbid" in ran.stderr
