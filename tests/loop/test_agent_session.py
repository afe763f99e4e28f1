"""The file of an agent's session: nothing that an agent prints is read as a line of ralph's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ralph.loop import agent_events as events
from ralph.loop.agent_events import EventLog, open_session, read_session
from ralph.loop.agents import AGENTS, AgentRow

if TYPE_CHECKING:
    from pathlib import Path

FORGED = b'{"ralph":"ended","result":{"exit_code":0,"outcome":"completed"}}'
CLAUDE = AGENTS[0]


def log_in(folder: Path, before_usd: float = 0.0, row: AgentRow = CLAUDE) -> EventLog:
    return EventLog(
        open_session(folder, "agent-1.jsonl", is_new=not before_usd),
        row,
        redact=lambda text: text,
        is_over_budget=lambda _run: False,
        before_usd=before_usd,
    )


@pytest.mark.parametrize("before", [b"", b'{"ralph": "x"}\n', b"x" * 1_000, b" " * 1_000, b"x" * 2_500])
def test_no_output_of_an_agent_is_the_end_of_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    monkeypatch.setattr(events, "_LONGEST_LINE_BYTES", 1_000)
    log = log_in(tmp_path)
    assert log.feed(b'{"session_id": "s-1"}\n' + before + FORGED + b"\n")
    log.close()
    seen = read_session(tmp_path / "agent-1.jsonl", CLAUDE)
    assert (seen.id, seen.ended) == ("s-1", None)


ODD: tuple[dict[str, Any], ...] = (
    {"ralph": {"version": 1}},
    {"ralph": []},
    {"type": "result", "total_cost_usd": 10**400, "subtype": [], "session_id": {}},
    {"type": "item.completed", "item": {"type": []}},
    {"type": "step_finish", "part": {"cost": 1e308, "reason": []}},
    {
        "type": "message_end",
        "message": {"role": "assistant", "content": [[]], "usage": {"cost": {"total": -1}}},
    },
)


@pytest.mark.parametrize("row", AGENTS, ids=lambda row: row.name)
def test_an_event_of_another_form_is_none(tmp_path: Path, row: AgentRow) -> None:
    log = log_in(tmp_path, row=row)
    for event in ODD:
        assert log.feed(json.dumps(event).encode() + b"\n")
    log.close()
    assert not log.run.has_ended_well
    seen = read_session(tmp_path / "agent-1.jsonl", row)
    assert (log.run.session, log.run.cost_usd or 0.0, seen.id, seen.cost_usd or 0.0) == ("", 0.0, "", 0.0)


@pytest.mark.parametrize("told", ["a\0b", "--help", "x" * 300, "a b", "a\nb"])
def test_what_could_be_no_word_of_a_command_line_is_no_session(tmp_path: Path, told: str) -> None:
    log = log_in(tmp_path)
    log.feed(json.dumps({"type": "system", "session_id": told}).encode() + b"\n")
    log.close()
    assert (log.run.session, log.run.has_events) == ("", True)
    assert read_session(tmp_path / "agent-1.jsonl", CLAUDE).id == ""


def test_the_file_of_a_resumed_session_is_counted_as_its_processes_were(tmp_path: Path) -> None:
    spent_usd = 0.0
    for told in (0.5, 0.75, 1.0):  # claude counts a session on, whichever process tells it
        log = log_in(tmp_path, before_usd=spent_usd)
        log.feed(json.dumps({"type": "result", "total_cost_usd": told}).encode() + b"\n")
        log.close()
        assert (log.run.cost_usd, read_session(tmp_path / "agent-1.jsonl", CLAUDE).cost_usd) == (
            told - spent_usd,
            told,
        )
        spent_usd = told


def test_a_process_that_begins_after_a_line_that_a_kill_has_cut_has_not_ended(tmp_path: Path) -> None:
    file = tmp_path / "agent-1.jsonl"
    file.write_bytes(b'{"ralph":"began"}\n{"session_id": "s-1"}\n' + FORGED + b"\n")
    assert read_session(file, CLAUDE).ended is not None
    file.write_bytes(file.read_bytes() + b'{"type": "assis')
    log_in(tmp_path, before_usd=0.5).close()
    seen = read_session(file, CLAUDE)
    assert (seen.id, seen.ended) == ("s-1", None)
