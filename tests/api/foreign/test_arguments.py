"""Inputs of tool calls that are not written as the schema asks, although their meaning is clear.
tests/agent/test_tool_arguments.py has each value.
"""

from __future__ import annotations

import json

import pytest

from ralph.mock_api import Text, ToolUse, Turn
from tests.api.foreign.wire import DONE, Row, play, stream
from tests.program.model_answers import SCHEMA

NUMBERS = "opencode#1328, opencode#26870, kimi-code#3383, claude-code#30197, pi#6577"
BREAKS = "pi#2681, pi#2981, omlx#1672, rhesis#2488, lotti#4310"
STRING = "claude-code#16018, claude-code#5504"
WRITE = "printf 'a' >> notes.txt"


def call(tool: str = "Bash", number: int = 1, **arguments: object) -> bytes:
    return stream(Turn([Text("I run it."), ToolUse(tool, arguments, id=f"t{number}")], id=f"m{number}"))


def written(tool: str, raw: str) -> bytes:
    return stream(Turn([Text("I run it."), ToolUse(tool, input_json=raw, id="t1")]))


ROWS = [
    Row(
        "a number as text",
        NUMBERS,
        (call(command=WRITE, timeout="5000"), DONE),
        notices=('Bash: "timeout" came as "5000" (string) and is taken as 5000 (integer)',),
        notes="a",
    ),
    Row(
        "options of Grep as text, night after night",
        NUMBERS,
        (
            *(call("Grep", number, pattern=f"{number}", **{"-C": "2", "-i": "false"}) for number in range(6)),
            DONE,
        ),
        notices=('Grep: "-C"', 'Grep: "-i"'),
    ),
    Row(
        "the whole input as one string",
        STRING,
        (written("Bash", json.dumps(json.dumps({"command": WRITE, "timeout": "5000"}))), DONE),
        notices=("its input must be a JSON object, got str", '"timeout" came as "5000"'),
        notes="a",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_input_is_taken_for_what_it_means(row, tmp_path) -> None:
    played = play(row, tmp_path)
    assert len([text for text in played.notices if " came as " in text]) <= 2, "one for each argument"


def test_the_model_gets_its_input_back_as_it_wrote_it(tmp_path) -> None:
    row = Row(
        "a number as text, resumed",
        NUMBERS,
        (call(command=WRITE, timeout="5000", description=None), DONE),
        notes="a",
    )
    played = play(row, tmp_path)
    given = {"command": WRITE, "timeout": "5000", "description": None}
    assert played.requests[1]["messages"][1]["content"][1]["input"] == given
    [journal] = [path for path in tmp_path.rglob("*.jsonl") if path.is_file()]
    assert f'"input":{json.dumps(given, separators=(",", ":"))}' in journal.read_text()


def test_rules_and_hooks_see_what_will_run(tmp_path) -> None:
    """A hook sees the number, and its own change is converted too. A rule about a path sees the input of one string."""
    seen = tmp_path / "seen.json"
    hook = tmp_path / "hook"
    answer = {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "updatedInput": {"command": WRITE, "timeout": "7000"},
        }
    }
    hook.write_text(
        f"#!/bin/sh\ncat > {seen}\necho '{json.dumps(answer)}'\n".replace("printf 'a'", "printf a")
    )
    hook.chmod(0o700)
    hooks = {
        "hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": str(hook)}]}]}
    }
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(hooks))
    row = Row(
        "a number as text, with a hook",
        NUMBERS,
        (
            call(command="true", timeout="5000"),
            written("Write", json.dumps('{"file_path": ".env", "content": "x"}')),
            DONE,
        ),
        words=("--settings", str(settings), "--disallowed-tools", "Write(./.env)"),
        notes="a",
    )
    (tmp_path / "run").mkdir()
    played = play(row, tmp_path / "run")
    assert json.loads(seen.read_text())["tool_input"] == {"command": "true", "timeout": 5000}
    [result] = played.requests[-1]["messages"][-1]["content"]
    assert "Write(./.env)" in result["content"]
    assert result["is_error"]


def test_a_report_with_raw_line_breaks_is_accepted(tmp_path) -> None:
    raw = '{"status": "success", "summary": "One.\nTwo.", "payload": {"files": 3}}'
    row = Row(
        "a report with raw line breaks",
        BREAKS,
        (written("final_report", raw),),
        words=("--json-schema", SCHEMA),
        result="One.\nTwo.",
        notices=("a call of final_report was taken for what it means",),
    )
    assert play(row, tmp_path).ran.result["structured_output"] == {"files": 3}
