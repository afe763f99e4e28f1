"""Tests which configurations of MCP servers are accepted, and what they become."""

from __future__ import annotations

from typing import Any

import pytest

from ralph.mcp.configuration import entries_of, names_in, server_of
from ralph.values.credentials import known_secrets
from ralph.values.redaction import Redactor
from tests.rows import every_row

VARIABLES = {"SET": "value", "EMPTY": ""}


def made(raw: dict[str, Any], **options: Any) -> Any:
    return server_of("one", raw, VARIABLES, **options)


def test_a_program_with_arguments_and_variables() -> None:
    server = made({"command": "node", "args": ["a", "${SET}"], "env": {"A": "${SET}-${LACKING:-default}"}})
    assert (server.transport, server.command, server.arguments) == ("stdio", "node", ("a", "value"))
    assert server.environment.plain == {"A": "value-default"}
    assert server.is_confined
    assert server.call_s is None


@every_row(
    ("raw", "transport"),
    [
        ({"url": "https://x/mcp"}, "http"),
        ({"type": "http", "url": "http://x/mcp"}, "http"),
        ({"type": "streamable-http", "url": "https://x"}, "http"),
        ({"type": "sse", "url": "https://x"}, "sse"),
        ({"type": "sdk", "name": "calc"}, "sdk"),
        ({"type": "stdio", "command": "x", "autoApprove": ["a"], "disabled": False}, "stdio"),
    ],
)
def test_every_transport_and_keys_of_other_programs(raw, transport) -> None:
    assert made(raw).transport == transport


def test_a_default_stands_for_an_empty_variable_too_but_an_empty_one_is_set() -> None:
    assert made({"command": "${EMPTY:-x}"}).command == "x"
    assert made({"command": "x", "args": ["${EMPTY}"]}).arguments == ("",)


def test_a_call_limit_is_in_milliseconds() -> None:
    assert made({"command": "x", "timeout": 1500}).call_s == 1.5


def test_values_that_look_like_credentials_are_secrets_and_no_repr_shows_them() -> None:
    server = made({"url": "https://x", "headers": {"Authorization": "Bearer abc123456789", "X-Plain": "y"}})
    assert server.secrets == ("Bearer abc123456789", "abc123456789")
    assert "abc123456789" not in repr(server)


@every_row(
    ("raw", "secret"),
    [
        ({"url": "https://host/sse?apiKey=K1abcdefghij"}, "K1abcdefghij"),
        ({"url": "https://host/sse?a=b&api_key=K1%2Babcdefghij#x"}, "K1+abcdefghij"),
        ({"url": "https://host/mcp?profile=x&k=9f8e7d6c5b4a32109f8e7d6c"}, "9f8e7d6c5b4a32109f8e7d6c"),
        ({"url": "https://host/api/s/9f8e7d6c5b4a32109f8e7d6c/mcp"}, "9f8e7d6c5b4a32109f8e7d6c"),
        ({"url": "https://user:pw-word-long@host/mcp"}, "pw-word-long"),
        ({"url": "https://tokentoken@host/mcp"}, "tokentoken"),
        ({"command": "x", "args": ["-y", "server", "--api-key", "K1abcdefghij"]}, "K1abcdefghij"),
        ({"command": "x", "args": ["--token=K1abcdefghij"]}, "K1abcdefghij"),
        ({"command": "docker", "args": ["run", "-e", "GITHUB_TOKEN=K1abcdefghij"]}, "K1abcdefghij"),
        ({"command": "npx", "args": ["--header", "Authorization: Bearer K1abcdefghij"]}, "K1abcdefghij"),
        ({"command": "npx", "args": ["mcp-remote", "https://host/sse?apiKey=K1abcdefghij"]}, "K1abcdefghij"),
        ({"command": "x", "args": ["--db=postgres://u:pw-word-long@host/db"]}, "pw-word-long"),
        ({"command": "x", "args": ["--key", "K1abcdefghij"]}, "K1abcdefghij"),
        ({"command": "x", "args": ["--user", "me:K1abcdefghij"]}, "K1abcdefghij"),
        ({"command": "x", "args": ["--config", '{"a": 1, "apiKey": "K1abcdefghij"}']}, "K1abcdefghij"),
        ({"command": "x", "args": ['--config={"api_key":"K1abcdefghij"}']}, "K1abcdefghij"),
        ({"command": "x", "args": ["Server=h;Password=K1abcdefghij;"]}, "K1abcdefghij"),
        ({"command": "x", "args": ["--url=https://host/mcp?key=K1abcdefghij"]}, "K1abcdefghij"),
        ({"url": "https://host/sse#token=K1abcdefghij"}, "K1abcdefghij"),
        ({"url": "https://host/sse?x=1&signature=K1abcdefghij"}, "K1abcdefghij"),
    ],
)
def test_a_key_in_an_address_or_an_argument_is_a_secret(raw, secret) -> None:
    assert secret in made(raw).secrets
    assert secret not in Redactor(known_secrets({}, made(raw).secrets)).redact_all(f"got {secret}")


def test_ordinary_addresses_and_arguments_are_no_secrets() -> None:
    for url in (
        "https://api.example.com/v1/mcp-server?toolsets=repositories&read_only=true",
        "http://127.0.0.1:8080/sse",
    ):
        assert made({"url": url}).secrets == ()
    arguments = [
        "-y",
        "@scope/server-filesystem@2025.1.14",
        "--root=/home/me/projects",
        "C:/work",
        "--port",
        "8080",
        "--key",
        "name",
        '{"name": "issues"}',
    ]
    assert made({"command": "npx", "args": arguments}).secrets == ()


@every_row(
    ("raw", "says"),
    [
        ({"command": "${LACKING}"}, "needs the variable LACKING, which is not set"),
        ({"args": ["x"]}, "needs a command, or a url"),
        ({"type": "ws", "url": "wss://x"}, "has the type 'ws'; ralph knows stdio, http and sse"),
        ({"url": "file:///etc"}, "needs a url that begins with https:// or http://"),
        (
            {"url": "https://x", "headersHelper": "cat key"},
            "needs 'headersHelper', which ralph does not have",
        ),
        ({"command": "x", "args": "a"}, "is not configured as it must be"),
        ({"command": "x", "env": {"A": 1}}, "is not configured as it must be"),
        ({"command": "x", "sandbox": False}, "asks to leave the sandbox"),
    ],
)
def test_what_cannot_be_honoured_is_refused(raw, says) -> None:
    with pytest.raises(ValueError, match="the MCP server 'one' ") as refused:
        made(raw)
    assert says in str(refused.value)


def test_only_the_users_own_settings_let_a_server_out_of_the_sandbox() -> None:
    assert not made({"command": "x", "sandbox": False}, may_leave_sandbox=True).is_confined


@every_row("document", [None, [], {"servers": {}}, {"mcpServers": []}, {"mcpServers": {"a": 1}}])
def test_a_document_of_another_form_is_refused(document) -> None:
    with pytest.raises(ValueError, match="must contain"):
        entries_of(document)


def test_names_are_found_whatever_else_is_wrong() -> None:
    assert list(names_in({"mcpServers": {"a": 1, "b": None}})) == ["a", "b"]
    assert list(names_in(["mcpServers"])) == []
