"""MCP servers that cannot be started as they are configured end a run before anything is spent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.program.conftest import KEY


def config(**server: Any) -> str:
    return json.dumps({"mcpServers": {"one": server}})


@pytest.mark.parametrize(
    ("word", "code", "says"),
    [
        ("{no JSON", 2, "--mcp-config: no valid JSON"),
        (
            '{"mcpServers": {}, "mcpServers": {}}',
            2,
            "--mcp-config: no valid JSON: the key 'mcpServers' occurs twice",
        ),
        ("lacking.json", 2, "lacking.json: no such file"),
        (config(), 78, "the MCP server 'one' needs a command, or a url"),
        (config(command="x", args=["${LACKING}"]), 78, "needs the variable LACKING"),
        (config(type="sdk", name="one"), 78, "is one of a driver (type sdk)"),
        ('{"servers": {}}', 78, "must contain"),
    ],
)
def test_a_wrong_configuration(ralph_here, word, code, says) -> None:
    ran = ralph_here("go", "--output-format", "json", "--mcp-config", word, code=code)
    assert says in ran.stderr + ran.stdout


def test_without_the_package_one_line_says_what_to_install(ralph_here, monkeypatch) -> None:
    monkeypatch.setattr("ralph.mcp.helper_process.find_spec", lambda _name: None)
    ran = ralph_here("go", "--output-format", "json", "--mcp-config", config(command="x"), code=78)
    [error] = json.loads(ran.stdout)["errors"]
    assert (
        error
        == "MCP servers (one) need a package: pip install '.[mcp]' in ralph's clone, with ralph's Python"
    )
    told = ralph_here("doctor", "--mcp-config", config(command="x"), "--base-url", "http://127.0.0.1:9")
    assert f"  FAIL  MCP servers: {error} -> " in told.stdout
    assert told.code == 78


def test_a_repositorys_settings_cannot_name_servers(ralph, ralph_here) -> None:
    (ralph.cwd / "ralph.toml").write_text('[mcp.servers.one]\ncommand = "x"\n')
    ran = ralph_here("go", "--output-format", "json", code=78)
    assert "does not count here, as an agent" in ran.stdout


def test_a_file_in_the_working_directory_cannot_ask_for_a_credential(ralph, ralph_here) -> None:
    (ralph.cwd / ".mcp.json").write_text(config(url="https://x", headers={"A": "${ANTHROPIC_API_KEY}"}))
    ran = ralph_here("go", "--output-format", "json", "--mcp-config", ".mcp.json", code=78)
    assert "needs the variable ANTHROPIC_API_KEY, which is not set, or is kept from tools" in ran.stdout
    assert KEY not in ran.stdout + ran.stderr


def test_the_users_own_file_may_name_a_credential_which_is_shown_nowhere(ralph, ralph_here) -> None:
    ralph.user_file.write_text(
        '[mcp.servers.one]\nurl = "https://x"\nheaders = { Authorization = "Bearer tok-9876543210" }\n'
    )
    ran = ralph_here("doctor")
    assert "tok-9876543210" not in ran.stdout + ran.stderr
    assert "mcp.servers" in ran.stdout
