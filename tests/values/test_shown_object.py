"""Secrets are removed from values, and the rest of an object does not change."""

from __future__ import annotations

from typing import Any

from ralph.values.redaction import shown
from tests.rows import every_row


def cut(value: Any, secret: str = "canary-123") -> Any:
    return shown(value, lambda text: text.replace(secret, "[redacted]"))


def test_every_string_at_any_depth_is_looked_at() -> None:
    value = {"a": ["canary-123", {"b": "x canary-123"}], "c": 1, "d": None}
    assert cut(value) == {"a": ["[redacted]", {"b": "x [redacted]"}], "c": 1, "d": None}


@every_row("secret", ["completed", "result", '"success"'])
def test_a_secret_that_is_one_of_our_own_words_breaks_nothing(secret: str) -> None:
    value = {"type": "result", "subtype": '"success"', "terminal_reason": "completed"}
    assert cut(value, secret) == value


@every_row("name", ["Read", "Edit", "Write"])
def test_what_file_tools_were_given_stays_as_it_is(name: str) -> None:
    block = {"type": "tool_use", "id": "a", "name": name, "input": {"old_string": "canary-123"}}
    assert cut(block) == block


def test_what_other_tools_were_given_does_not() -> None:
    block = {"type": "tool_use", "id": "a", "name": "Bash", "input": {"command": "echo canary-123"}}
    assert cut(block)["input"] == {"command": "echo [redacted]"}


def test_results_come_redacted_already_or_must_match_the_file() -> None:
    block = {"type": "tool_result", "tool_use_id": "a", "content": "canary-123"}
    assert cut(block) == block


@every_row("holder", ["input", "structured_output"])
@every_row("key", ["type", "session_id", "content", "plain"])
def test_in_somebody_elses_object_no_key_is_our_own(holder: str, key: str) -> None:
    theirs = {key: "canary-123", "inner": [{"type": "tool_result", key: "canary-123"}], "n": 1}
    shown_object = cut({"type": "result", holder: theirs})
    assert "canary-123" not in str(shown_object)
    assert shown_object["type"] == "result"
    assert shown_object[holder]["n"] == 1
