"""Full contexts, as a user meets them (A20, D8, P1, P15)."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from ralph.agent.compaction import FROM_HERE, MOST_SUMMARY_TOKENS, SUMMARIZE
from ralph.mock_api import Model, Text, Thinking, ToolUse, Turn
from tests.journals.reading import read_lines
from tests.program.kept_sessions import only_journal
from tests.program.several import at, settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.mock_api import MockApi, Playable, RecordedRequest
    from tests.program.conftest import Finished, Ralph

TASK = "Fix the parser:\n\n  * keep `a  b`\t* never touch größe.py"
RULES = "Use tabs.\n\n  Never   touch größe.py.\n"
SUMMARY = "The parser is half fixed, the tests are red."
DONE = Turn("All done.")


def works(number: int, **usage: int) -> Turn:
    """A turn that thinks, reads 6 KB and writes a file."""
    return Turn(
        [
            Thinking(f"THOUGHT {number}", signature="U0lHTkVE"),
            Text(f"Step {number}."),
            ToolUse("Read", {"file_path": "notes.txt", "offset": number}),
            ToolUse("Write", {"file_path": f"new {number}.txt", "content": str(number)}),
        ],
        usage=usage or None,
    )


def sent(request: RecordedRequest) -> dict[str, Any]:
    assert request.body is not None
    body: dict[str, Any] = json.loads(request.body.replace(b',"cache_control":{"type":"ephemeral"}', b""))
    return body


def is_summary_call(request: RecordedRequest) -> bool:
    return bool(sent(request)["messages"][-1]["content"][-1].get("text") == SUMMARIZE)


def is_fresh(request: RecordedRequest) -> bool:
    [*_, last] = sent(request)["messages"][0]["content"]
    return bool(last.get("text") == FROM_HERE)


def texts_of(request: RecordedRequest) -> list[str]:
    return [block["text"] for block in sent(request)["messages"][0]["content"] if block["type"] == "text"]


@pytest.fixture
def notes(ralph: Ralph) -> None:
    (ralph.cwd / "notes.txt").write_text(("x" * 60 + "\n") * 200)


def counted(turn: Turn, request: RecordedRequest) -> Turn:
    """The turn with the usage of a server that counts one token for three bytes."""
    return replace(turn, usage={"input_tokens": request.body_bytes // 3, "output_tokens": 200})


def in_turn(*turns: Turn) -> Callable[[RecordedRequest, int], Playable]:
    """A script that plays the turns in order, and answers any number of requests for a summary in between."""
    left = list(turns)

    def script(request: RecordedRequest, number: int) -> Playable:
        return counted(Turn(SUMMARY) if is_summary_call(request) else left.pop(0), request)

    return script


def in_a_window_of(ralph: Ralph, server: MockApi, window: int, model: str = "local", **more: Any) -> str:
    """Writes a settings file whose target has this window. Returns its path for `--config`."""
    return str(settings(ralph, at("main", server.base_url, model, context_window=window, **more)))


def test_d8_a_long_run_in_a_small_window_keeps_task_rules_and_files_exits_0(ralph, serve, notes) -> None:
    window, turns = 8_000, 12
    (ralph.cwd / "AGENTS.md").write_text(RULES)
    server = serve(script=in_turn(*[works(number) for number in range(turns)], DONE))
    ran = ralph(
        TASK, "--config", in_a_window_of(ralph, server, window), "--output-format", "stream-json", code=0
    )
    assert ran.result["num_turns"] == turns + 1
    compactions = ran.of("compact_boundary")
    assert len(compactions) >= 3
    fresh = [
        request for request in server.requests if is_fresh(request) and len(sent(request)["messages"]) == 1
    ]
    assert len(fresh) == len(compactions)
    written = 0
    for request in fresh:
        assert TASK in texts_of(request)
        [files] = [one for one in texts_of(request) if one.startswith("# Files changed so far")]
        assert files.splitlines()[2] == f"- {ralph.cwd}/new 0.txt"
        assert len(files.splitlines()) > written
        written = len(files.splitlines())
        assert not any(
            word in json.dumps(sent(request)["messages"]) for word in ("THOUGHT", "U0lHTkVE", "toolu_")
        )
    systems = {json.dumps(sent(request)["system"], ensure_ascii=False) for request in server.requests}
    assert len(systems) == 1
    assert json.dumps(RULES.strip(), ensure_ascii=False)[1:-1] in systems.pop()
    for request in server.requests:
        longest = MOST_SUMMARY_TOKENS if is_summary_call(request) else 32_000
        assert sent(request)["max_tokens"] <= longest
        assert request.body_bytes / 3 + sent(request)["max_tokens"] <= window, (
            "a server that reserves the answer"
        )


@pytest.mark.parametrize(("own", "window"), [(None, 8_000), (900_000, 900_000)])
def test_d8_the_window_that_a_server_names_is_kept_to_unless_the_user_names_one_exits_0(
    ralph, serve, notes, own, window
) -> None:
    fills = {"input_tokens": 7_000, "output_tokens": 50}
    steps = [Turn(SUMMARY)] if own is None else []
    server = serve(
        works(1),
        works(2, **fills),
        *steps,
        DONE,
        models=[Model("local", max_input_tokens=8_000, max_tokens=2_000)],
    )
    named = {} if own is None else {"context_window": own}
    config = str(settings(ralph, at("main", server.base_url, "local", **named)))
    ran = ralph(TASK, "--config", config, "--output-format", "stream-json", code=0)
    assert len(server.lookups) == (1 if own is None else 0), "once, and not before it matters"
    compactions = ran.of("compact_boundary")
    assert len(compactions) == (1 if own is None else 0)
    longest = 2_000 if own is None else 32_000
    assert sent(server.requests[-1])["max_tokens"] == longest
    assert ran.result["modelUsage"]["local"]["contextWindow"] == window


def test_d8_a_task_that_fills_the_window_gets_a_closing_answer_exits_3(ralph, serve, notes) -> None:
    (ralph.cwd / "task.txt").write_text("Fix the parser. " * 2_000)
    server = serve(script=in_turn(works(1), Turn("This is how far I got.")))
    config = in_a_window_of(ralph, server, 8_000)
    ran = ralph((ralph.cwd / "task.txt").read_text(), "--config", config, "--output-format", "json")
    assert (ran.code, ran.result["result"]) == (3, "This is how far I got.")
    assert "[turn] Final turn: the context is full" in ran.stderr


def records_of(ralph: Ralph) -> Any:
    return read_lines(only_journal(ralph).read_bytes()).records


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_p15_memory_stays_flat_across_eight_compactions_exits_0(ralph, serve, notes) -> None:
    """The run has so many turns that a growth in each of them would be visible."""
    turns = 100
    resident: list[int] = []
    process: Any = None

    def script(request: RecordedRequest, number: int) -> Playable:
        if process is not None:
            resident.append(_resident_kib(process.pid))
        turn = DONE if len(resident) > turns else works(number)
        return counted(Turn(SUMMARY) if is_summary_call(request) else turn, request)

    server = serve(script=script)
    config = in_a_window_of(ralph, server, 32_000)
    process = ralph.start(TASK, "--config", config, "--quiet")
    ran: Finished = ralph.finish(process)
    assert ran.code == 0, ran.stderr
    assert [record.kind for record in records_of(ralph)].count("compacted") >= 8
    early, late = resident[len(resident) // 3], resident[-2]
    assert late - early < 2 * 1024, "KiB"


def _resident_kib(process_id: int) -> int:
    from pathlib import Path

    status = Path(f"/proc/{process_id}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])
