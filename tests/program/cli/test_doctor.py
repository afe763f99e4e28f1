"""`ralph doctor`: what it shows and checks, and that it neither hangs nor prints a secret."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from ralph.mock_api import Fault, Step, ToolUse, Turn
from ralph.settings.tables import KEYS
from tests.patience import PATIENCE_S
from tests.processes.terminals import read_all
from tests.program.conftest import KEY


@pytest.fixture
def silent():
    """The port of a server that accepts connections and never reads. A TLS handshake with it never ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def user_settings(ralph, text: str) -> None:
    ralph.user_file.write_text(text)


def checks(stdout: str) -> dict[str, tuple[str, str]]:
    """The level and the text of each check, by its subject."""
    lines = stdout[stdout.index("Checks\n") :].splitlines()[1:]
    found = (re.fullmatch(r"  (ok|warn|FAIL) +([^:]+): (.*)", line) for line in lines)
    return {match[2]: (match[1], match[3]) for match in found if match}


# --- Settings


def test_every_setting_is_shown_with_its_value_and_origin(ralph, ralph_here) -> None:
    user_settings(ralph, '[clocks]\nconnect_s = 2.5\n[tools]\npass_env = ["A", "B"]')
    (ralph.cwd / "ralph.toml").write_text("retry.policy = 'off'\nclocks.response_s = 0")
    ralph.environment["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:1"
    shown = ralph_here("doctor")
    assert (shown.code, shown.stderr) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in shown.stdout.split("\n\n")[0].splitlines()[1:]}
    assert list(rows) == [*(key.name for key in KEYS), "tools", "targets"]
    assert rows["clocks.connect_s"][0] == "2.5"
    assert rows["clocks.connect_s"][1].endswith("/config.toml")
    assert rows["retry.policy"] == ["off", str(ralph.cwd / "ralph.toml")]
    assert rows["clocks.response_s"] == ["1800", "default"]
    assert f"{ralph.cwd}/ralph.toml: clocks.response_s = 0 is ignored" in checks(shown.stdout)["settings"][1]
    assert rows["tools.pass_env"][:2] == ["A", "B"]
    assert rows["model.base_url"][1] == "ANTHROPIC_BASE_URL"
    assert rows["model.max_tokens"] == ["32000", "default"]
    assert rows["model.effort"] == ["not", "set", "default"]


def test_each_target_is_shown_with_what_is_known_of_it(ralph, ralph_here) -> None:
    user_settings(
        ralph,
        """
        [[targets]]
        name = "main"
        model = "opus"
        api_key_env = ["ANTHROPIC_API_KEY", "SECOND"]
        headers = { X-Team = "blue-team" }
        [[targets]]
        name = "own"
        model = "qwen3"
        base_url = "http://localhost:8080"
        [[targets]]
        name = "priced"
        model = "qwen3"
        base_url = "http://localhost:8080"
        context_window = 4096
        price = { input = 1, output = 2, cache_write = 3, cache_read = 0.5 }
        """,
    )
    ralph.environment["SECOND"] = "second-key-0123"
    shown = ralph_here("doctor", code=0)
    main, own, priced = re.split(r"\n  (?=\S)", shown.stdout.split("\n\n")[1])[1:]
    for part in ("claude-opus-5-5", "https://api.anthropic.com", "X-Team", "1000000 tokens", "output 20,"):
        assert part in main
    assert "ANTHROPIC_API_KEY (set), SECOND (set)" in main
    assert "blue-team" not in shown.stdout
    assert re.search(r"keys +none\n +headers +none", own)
    assert re.search(r"window +unknown", own)
    assert "unknown: costs are not counted" in own
    assert "4096 tokens" in priced
    assert "input 1, output 2, cache write 3, cache read 0.5 USD per million tokens" in priced


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[model]\nnam = 'x'", "unknown key 'model.nam'"),
        ("[[targets]]\nname = 'a'", "targets 'a': needs name, model; missing: model"),
        (
            "[[targets]]\nname = 'a'\nmodel = 'm'\napi_key_env = 'UNSET'",
            "api_key_env names UNSET, which is not set",
        ),
        ("not toml", "not valid TOML"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line_and_the_other_checks_still_run(
    ralph, ralph_here, toml, says
) -> None:
    user_settings(ralph, toml)
    shown = ralph_here("doctor", code=78)
    found = checks(shown.stdout)
    level, text = found["settings"]
    assert level == "FAIL"
    assert says in text
    assert [subject for subject, (level, _) in found.items() if level == "FAIL"] == ["settings"]
    assert {"ralph", "bash", "sandbox", "sessions", "working directory"} <= found.keys()
    assert shown.stderr == ""


def test_a_config_file_that_is_missing_is_78_and_a_directory_that_is_missing_2(ralph_here) -> None:
    shown = ralph_here("doctor", "--config", "absent.toml", code=78)
    assert "no such file" in checks(shown.stdout)["settings"][1]
    shown = ralph_here("doctor", "-C", "absent")
    assert (shown.code, shown.stdout) == (2, "")
    assert "absent" in shown.stderr


def test_servers_with_which_no_run_begins_fail(ralph_here) -> None:
    config = '{"mcpServers": {"one": {"command": "/no/such/program"}}}'
    level, text = checks(ralph_here("doctor", "--mcp-config", config, code=78).stdout)["MCP servers"]
    assert (level, "correct --mcp-config" in text) == ("FAIL", True)


def test_a_ca_file_that_cannot_be_used_fails(ralph, ralph_here, tmp_path) -> None:
    ralph.environment |= {
        "ANTHROPIC_BASE_URL": "https://127.0.0.1:1",
        "SSL_CERT_FILE": str(tmp_path / "absent.pem"),
    }
    shown = ralph_here("doctor", code=78)
    assert "absent.pem: No such file" in checks(shown.stdout)["settings"][1]


# --- It ends


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_at_once(ralph, silent, number, code) -> None:
    ralph.environment["ANTHROPIC_BASE_URL"] = f"https://127.0.0.1:{silent}"
    user_settings(ralph, "clocks.connect_s = 1e6")
    process = ralph.start("doctor", "--probe")
    while b"sessions:" not in process.stdout.readline():
        pass
    finished = ralph.stopped_by(process, number, code=code)
    assert finished.stderr == ""


def test_a_reader_that_leaves_is_no_error_and_the_exit_code_stays_true(ralph) -> None:
    user_settings(ralph, "[model]\nnam = 1")
    with ralph.start("doctor") as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=PATIENCE_S) == 78


# --- The machine and its places


def test_programs_that_are_missing_are_said_with_what_is_missing_without_them(
    ralph, ralph_here, tmp_path
) -> None:
    ralph.environment["PATH"] = str(tmp_path)
    shown = ralph_here("doctor", code=0)
    found = checks(shown.stdout)
    for program, without in (("bash", "/bin/sh"), ("git", "cannot commit")):
        level, text = found[program]
        assert level == "warn"
        assert text.startswith("not found: ")
        assert without in text
        assert "-> install" in text
    assert found["rg"][0] == "ok", "it comes with ralph, and is not looked for there"
    is_there = "bwrap" not in found or not found["bwrap"][1].startswith("none")
    assert is_there or found["bwrap"][0] == "note", "what is not there is not ok"


def test_the_machine_is_described(ralph) -> None:
    found = checks(ralph("doctor").stdout)
    if sys.platform == "linux":  # on other systems the memory cannot be protected
        assert found["memory"][0] == "ok"
    assert f"Python {'.'.join(map(str, sys.version_info[:3]))}" in found["ralph"][1]
    assert os.uname().sysname in found["system"][1]
    assert found["sandbox"][1].startswith(
        ("namespaces; network: full; in force: ", "landlock; network: full; in force: ", "none: ")
    )
    assert not {"PATH", "PYTHONPATH"} & found.keys()


@pytest.mark.parametrize("entry", ["", "{cwd}/bin"])
def test_search_paths_that_lead_into_the_checkout_are_warnings_and_its_programs_are_not_taken(
    ralph, entry
) -> None:
    (ralph.cwd / "bin").mkdir()
    for directory in (ralph.cwd, ralph.cwd / "bin"):
        (directory / "bash").touch(mode=0o755)
    entry = entry.format(cwd=ralph.cwd)
    for name in ("PATH", "PYTHONPATH"):
        ralph.environment[name] = f"{entry}:{ralph.environment[name]}"
    found = checks(ralph("doctor").stdout)
    assert found["bash"] == ("ok", shutil.which("bash"))
    assert ("PATH" in found) != entry.startswith("/"), (
        "what is in a PATH by its full name was put there on purpose"
    )
    assert f"names {entry or '.'}, where commands may write" in found["PYTHONPATH"][1]


def test_a_sessions_directory_that_cannot_be_made_fails(ralph, ralph_here, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    shown = ralph_here("doctor", "--session-dir", str(tmp_path / "file" / "sessions"), code=78)
    level, text = checks(shown.stdout)["sessions"]
    assert level == "FAIL"
    assert f"{tmp_path}/file/sessions is not writable: a file is in the way" in text
    assert "-> name another place with --session-dir" in text


def test_where_sessions_are_kept_is_said_and_nothing_is_left_there(ralph, ralph_here, tmp_path) -> None:
    shown = ralph_here("doctor", "--session-dir", "kept")
    assert checks(shown.stdout)["sessions"] == ("ok", f"{ralph.cwd}/kept is writable")
    assert [path.name for path in ralph.cwd.rglob("*")] == ["kept"]


def test_without_a_usable_home_the_place_that_may_be_cleared_is_a_warning(
    ralph, ralph_here, tmp_path
) -> None:
    ralph.environment["HOME"] = __file__
    ralph.environment["TMPDIR"] = str(tmp_path)
    shown = ralph_here("doctor", code=0)
    level, text = checks(shown.stdout)["sessions"]
    assert level == "warn"
    assert "may be cleared at any time" in text


def test_a_working_directory_that_is_gone_fails_and_the_rest_is_looked_at(ralph) -> None:
    command = f"mkdir gone && cd gone && rmdir ../gone && exec '{sys.executable}' -m ralph doctor"
    ran = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=ralph.cwd,
        env=ralph.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (78, "")
    found = checks(ran.stdout)
    assert found["working directory"][0] == "FAIL"
    assert found["sessions"][0] == "ok"


# --- Colour and secrets


@pytest.mark.parametrize(
    ("environment", "has_color"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_is_for_terminals_that_can_show_it_without_no_color(ralph, environment, has_color) -> None:
    ralph.environment |= environment
    ours, theirs = pty.openpty()
    process = ralph.start("doctor", stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    shown = read_all(ours)
    assert process.wait(timeout=PATIENCE_S) == 0
    assert (b"\x1b[32mok" in shown) is has_color
    assert (b"\x1b" in shown) is has_color


SECRETS = {
    "ANTHROPIC_API_KEY": KEY,
    "ANTHROPIC_AUTH_TOKEN": "auth-token-pa55word",
    "PLAIN_NAME": "plain-name-pa55word",
    "OTHER_AUTH_TOKEN": "other-token-pa55word",
    "SOME_PASSWORD": "some-pa55word-0123",
    "ANTHROPIC_CUSTOM_HEADERS": "X-Auth: header-pa55word\nX-Team: team-pa55word-is-no-name",
    "HTTPS_PROXY": "http://me:proxy-pa55word@127.0.0.1:1",
}
SECRETIVE = """
[model]
base_url = "https://gateway.example/plain-name-pa55word"
name = "some-pa55word-0123"
[[targets]]
name = "a some-pa55word-0123"
model = "plain-name-pa55word"
[[targets]]
name = "b"
model = "m"
base_url = "https://gateway.example/some-pa55word-0123/sk-ant-api03-pa55word0123"
api_key_env = ["PLAIN_NAME", "OTHER_AUTH_TOKEN"]
headers = { Authorization = "Bearer own-pa55word-0123", X-Team = "own-team-pa55word" }
[tools]
pass_env = ["SOME_PASSWORD"]
"""


@pytest.mark.parametrize(
    "breaks", ["", "[model.x]", "\nmax_turns = 3\n"], ids=["usable", "no toml", "unknown key"]
)
def test_a_secret_in_every_place_is_never_shown(ralph, ralph_here, breaks) -> None:
    ralph.environment |= SECRETS
    user_settings(ralph, SECRETIVE + breaks)
    directory = ralph.cwd / "some-pa55word-0123"
    directory.mkdir()
    shown = ralph_here(
        *("doctor", "--probe", "-C", str(directory)), "--session-dir", str(directory / "plain-name-pa55word")
    )
    assert shown.code == (78 if breaks else 75), "the proxy refuses"
    everything = shown.stdout + shown.stderr
    leaked = ("pa55word", KEY) if not breaks else (*SECRETS.values(), "some-pa55word", "own-pa55word", KEY)
    # If the settings cannot be read, ralph cannot know that PLAIN_NAME holds a key. So it is a directory's name here.
    for secret in leaked:
        if not (breaks and secret == SECRETS["PLAIN_NAME"]):
            assert secret not in everything
    assert "[redacted]" in everything


def test_options_of_a_run_count_here_too_and_are_named_as_their_source(ralph, ralph_here) -> None:
    told = ralph_here("doctor", "--model", "opus", "--max-time", "2h").stdout
    assert re.search(r"model\.name +claude-opus-5-5 .*flag --model", told)
    assert re.search(r"limits\.max_time_s +7200.* flag --max-time", told)
    refused = ralph_here("doctor", "--max-time", "never")
    assert (refused.code, len(refused.stderr.splitlines())) == (2, 1)


def test_a_variable_that_names_no_authority_is_a_warning(ralph, ralph_here) -> None:
    ralph.environment["NODE_EXTRA_CA_CERTS"] = "/nonexistent.pem"
    told = ralph_here("doctor", code=0)
    assert "NODE_EXTRA_CA_CERTS names /nonexistent.pem, which contains no certificate" in told.stdout


# --- The probe


def test_the_probe_asks_each_target_tries_a_push_and_ends_in_a_verdict(
    ralph, ralph_here, serve, tmp_path
) -> None:
    call = Turn(content=[ToolUse("tell_word", {"word": "ready"})])
    refused = Step(fault=Fault(status=401, message=f"invalid x-api-key {KEY}"))
    server = serve(call, refused, call, refused)
    user_settings(
        ralph,
        f"""
        [limits]
        max_turns = 50
        [[targets]]
        name = "main"
        model = "claude-haiku-5-5"
        base_url = "{server.base_url}"
        api_key_env = ["ANTHROPIC_API_KEY", "SECOND"]
        """,
    )
    ralph.environment["SECOND"] = "second-key-0123456789"
    for command in (
        ("init", "--quiet", "--initial-branch=main"),
        ("-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "--message=x"),
        ("remote", "add", "origin", str(tmp_path / "absent.git")),
    ):
        subprocess.run(["git", *command], cwd=ralph.cwd, env=ralph.environment, check=True)
    shown = ralph_here("doctor", "--probe", code=77)
    assert shown.stdout.splitlines()[-1].startswith(
        "Verdict: not ready for the night: 1. target main with SECOND: HTTP 401"
    )
    found = checks(shown.stdout)
    assert found["target main with ANTHROPIC_API_KEY"][0] == "ok"
    assert found["limits"] == ("ok", "a run ends after 50 turns")
    assert found["git identity"][0] == "warn"
    assert found["push"][0] == "warn"
    assert "absent.git" in found["push"][1]
    assert len(server.requests) == 2

    remote = ["git", f"--git-dir={tmp_path / 'absent.git'}"]
    subprocess.run([*remote, "init", "--quiet", "--bare"], check=True)
    told = ralph_here("doctor", "--probe", "--json")
    assert not subprocess.run([*remote, "for-each-ref"], check=True, capture_output=True).stdout
    written = json.loads(told.stdout)
    assert (told.code, written["exit_code"]) == (77, 77)
    assert {one["level"] for one in written["findings"]} - {"note"} == {"ok", "warn", "fail"}
    assert all(bool(one["remedy"]) == (one["level"] in {"warn", "fail"}) for one in written["findings"])
    (push,) = [one for one in written["findings"] if one["check"] == "push"]
    assert (push["level"], push["text"]) == ("ok", "remote origin, branch main would accept a push")
    figures = {one["check"]: one["figures"] for one in written["findings"] if "figures" in one}
    assert figures["target main with ANTHROPIC_API_KEY"]["called_tool"] is True
    assert not any(key in shown.stdout + told.stdout for key in (KEY, "second-key-0123456789"))


def test_a_budget_that_cannot_be_counted_or_a_missing_key_fails_before_anything_is_sent(
    ralph, ralph_here
) -> None:
    shown = ralph_here("doctor", "--model", "some-local-model", "--max-budget-usd", "5", code=78)
    assert "the price of some-local-model is not known -> Say it in" in checks(shown.stdout)["limits"][1]
    del ralph.environment["ANTHROPIC_API_KEY"]
    shown = ralph_here("doctor", "--probe", code=78)
    assert checks(shown.stdout)["targets"][0] == "warn", (
        "a request without the key that a run needs says nothing"
    )
    assert "not ready for the night: 1. settings: " in shown.stdout.splitlines()[-1]
    assert "cannot be used together" in ralph_here("doctor", "--sandbox", "--probe").stderr
