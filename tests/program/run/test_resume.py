"""A run must be resumed where it ended, however it ended: it was killed, gave up, was stopped, or its journal has
an incomplete last line.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import pytest

from ralph.conversation.journal_lines import sealed
from ralph.conversation.records import FORMAT
from ralph.mock_api import Fault, MockApi, Step, Text, Thinking, ToolUse, Turn
from ralph.sessions.journal import FileJournal
from tests.journals.corpus import EXPECTED, JOURNALS
from tests.journals.reading import read_lines
from tests.patience import PATIENCE_S, wait_until
from tests.program.conftest import Finished, Ralph, ralph_in
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ralph.mock_api import RecordedRequest

ID = "00000000-0000-4000-8000-00000000000a"
OTHER_ID = "00000000-0000-4000-8000-00000000000b"
APPEND = ToolUse("Bash", {"command": "echo done >> effects.txt"}, id="call")
THOUGHT = Thinking("Hm, 世界?", signature="c2lnbmF0dXJl")
READ = ToolUse("Read", {"file_path": "file.txt"}, id="call")


def journal_of(ralph: Ralph, session_id: str = ID) -> Path:
    [path] = ralph.cwd.parent.rglob(f"{session_id}.jsonl")
    return path


def result_in(request: RecordedRequest) -> dict[str, Any]:
    """The only tool result in the last message of a request."""
    blocks: list[dict[str, Any]] = request.json()["messages"][-1]["content"]
    [result] = [block for block in blocks if block["type"] == "tool_result"]
    return result


def effects(ralph: Ralph) -> list[str]:
    path = ralph.cwd / "effects.txt"
    return path.read_text().splitlines() if path.exists() else []


def messages_in(request: RecordedRequest) -> list[dict[str, Any]]:
    """The messages of a request without cache markers, which move to the newest messages."""
    messages: list[dict[str, Any]] = request.json()["messages"]
    for message in messages:
        for block in message["content"]:
            block.pop("cache_control", None)
    return messages


# What was killed: P1 and P2. The scene killed-and-resumed has a command that was under way.


@pytest.mark.parametrize(
    "options",
    [
        ("--settings", '{"permissions": {"deny": ["Bash(echo:*)"]}}'),
        ("--permission-prompts", "none"),
        ("--settings", '{"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "exit 2"}]}]}}'),
    ],
    ids=["a rule", "a mode", "a hook"],
)
def test_p2_a_forbidden_call_has_no_unknown_effects_wherever_the_run_was_killed_exits_0(
    ralph, serve, options
) -> None:
    server = serve(Turn([APPEND]), *[Turn("Done.")] * 9)
    assert ralph("go", "--session-id", ID, *options).code == 0
    whole = journal_of(ralph).read_bytes()
    lines = whole.splitlines(keepends=True)
    kinds = [record.kind for record in read_lines(whole).records]
    assert "tool_intent" not in kinds
    for length in range(kinds.index("assistant") + 1, kinds.index("tool_result") + 2):
        journal_of(ralph).write_bytes(b"".join(lines[:length]))
        assert ralph("--resume", ID, *options).code == 0
        assert result_in(server.requests[-1])["is_error"]
        assert "This call was interrupted" not in result_in(server.requests[-1])["content"]
    assert effects(ralph) == []


def test_p1_the_request_after_a_kill_is_the_one_before_to_the_byte_exits_0(ralph, serve) -> None:
    server = serve(
        Turn([THOUGHT, Text("I work."), APPEND]),
        Step(Turn("never"), Fault(stall_after_events=3)),
        Turn("Done."),
    )
    process = ralph.start("go", "--session-id", ID)
    assert server.wait_for_requests(2, PATIENCE_S)
    process.kill()
    ralph.finish(process)
    assert ralph("--resume", ID).code == 0
    assert server.requests[1].body == server.requests[2].body
    assert b'"signature":"c2lnbmF0dXJl"' in (server.requests[2].body or b"")
    assert effects(ralph) == ["done"]


def test_a_fork_leaves_the_old_journal_as_it_was_its_torn_end_too_exits_0(ralph, serve) -> None:
    torn = b'{"seq":9,"ki'
    server = serve(Turn([THOUGHT, READ]), Fault(status=529), Turn("Done."))
    assert ralph("go", "--session-id", ID, "--retry", "off").code == 75
    old = journal_of(ralph).read_bytes() + torn
    journal_of(ralph).write_bytes(old)
    ran = ralph("-r", ID, "--fork-session", "--session-id", OTHER_ID, "--output-format", "json")
    assert (ran.code, ran.result["session_id"]) == (0, OTHER_ID)
    assert journal_of(ralph).read_bytes() == old
    fork = journal_of(ralph, OTHER_ID).read_bytes()
    opening, _, copied = fork.partition(b"\n")
    assert json.loads(opening)["forked_from"] == ID
    assert copied.startswith(old.partition(b"\n")[2].removesuffix(torn)), "line for line, as they were"
    assert server.requests[1].body == server.requests[2].body


# Torn and damaged: P3


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Iterator[tuple[Ralph, bytes]]:
    """A whole run with a read-only call and a call with an effect, once for all tests: the `Ralph` that ran it, and
    its journal. Further requests get a final answer.
    """
    first = Turn([THOUGHT, ToolUse("Write", {"file_path": "a", "content": ""}), READ])
    ralph = ralph_in(tmp_path_factory.mktemp("whole"))
    with MockApi(
        script=lambda request, _: Turn("Done.") if len(request.json()["messages"]) > 1 else first
    ) as server:
        ralph.environment["ANTHROPIC_BASE_URL"] = server.base_url
        assert ralph("go", "--session-id", ID).code == 0
        yield ralph, journal_of(ralph).read_bytes()


def resumed(ralph: Ralph, place: Path, journals: Iterable[bytes], *words: str) -> list[tuple[Finished, Path]]:
    """Resumes each of the journals in a session directory of its own, a few at a time."""

    def resume(number: int, data: bytes) -> tuple[Finished, Path]:
        path = place / f"sessions-{number}" / "any" / f"{ID}.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        return ralph("--resume", ID, "--session-dir", str(path.parents[1]), *words), path

    with ThreadPoolExecutor(4) as pool:
        return [*pool.map(resume, *zip(*enumerate(journals), strict=True))]


@pytest.fixture
def resumed_here(ralph_here, whole_run, tmp_path) -> Callable[[bytes], tuple[Finished, Path]]:
    """Resumes a journal that must be refused, in the process of the test."""
    numbers = count()

    def resume(data: bytes) -> tuple[Finished, Path]:
        path = tmp_path / f"refused-{next(numbers)}" / "any" / f"{ID}.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        return ralph_here("--resume", ID, "--session-dir", str(path.parents[1]), of=whole_run[0]), path

    return resume


def test_p3_a_journal_cut_anywhere_continues_and_keeps_what_was_torn_exits_0_or_2(
    whole_run, tmp_path
) -> None:
    """The test makes a few cuts. tests/conversation/test_journal_lines.py shows that a cut at any byte keeps the
    complete lines before it.
    """
    ralph, journal = whole_run
    ends = [at + 1 for at, byte in enumerate(journal) if byte == ord("\n")]
    # The lines take turns: cut before its break, after it, in the middle of the next one, after its first byte.
    in_turn = [
        (end - 1, end, end + (then - end) // 2, end + 1)[number % 4]
        for number, (end, then) in enumerate(pairwise(ends))
    ]
    cuts = [0, ends[0] // 2, *in_turn[1::5], len(journal) - 1, len(journal)]
    for cut, (ran, path) in zip(cuts, resumed(ralph, tmp_path, [journal[:cut] for cut in cuts]), strict=True):
        whole = max((end for end in ends if end <= cut + 1), default=0)  # a line is whole without its break
        kinds = [record.kind for record in read_lines(journal[:whole]).records]
        assert ran.code == (0 if "user" in kinds and "delivery" not in kinds else 2), (cut, ran.stderr)
        torn = path.with_suffix(".torn")
        if "user" not in kinds:  # nothing continues, and nothing is touched
            assert (path.read_bytes(), torn.exists()) == (journal[:cut], False)
            continue
        assert path.read_bytes().startswith(journal[:whole])
        assert (torn.read_bytes() if torn.exists() else b"") == journal[whole:cut]


def test_p3_a_tail_of_nul_bytes_is_damage_and_no_command_runs_again_exits_74(
    ralph, serve, resumed_here, ralph_here, tmp_path
) -> None:
    """After a power failure or in a snapshot, a file may have its full length while its last blocks are empty."""
    serve(Turn([APPEND]), Turn("Done."))
    ralph("go", "--session-id", ID, code=0)
    journal, before = journal_of(ralph).read_bytes(), effects(ralph)
    intent = journal.index(b'{"seq":', journal.index(b'"kind":"assistant"'))
    half = journal.index(b'"kind":"tool_result"')
    tails = [
        journal + bytes(4096),
        journal[:half] + bytes(len(journal) - half),
        journal[:intent] + bytes(len(journal) - intent),
        journal[:intent] + bytes(100) + journal[intent + 100 :],
    ]
    [in_a_process, *_] = resumed(ralph, tmp_path, tails[:1])
    for data, (ran, path) in zip(tails, (in_a_process, *map(resumed_here, tails[1:])), strict=True):
        assert ran.code == 74
        where = (
            f"the journal {path} is damaged: line {data[: data.index(0)].count(10) + 1} contains NUL bytes"
        )
        assert where in ran.last_line
        assert f"`ralph sessions show {ID} --session-dir {path.parents[1]}` shows" in ran.last_line
        assert (path.read_bytes(), [*path.parent.iterdir()]) == (data, [path])
        shown = ralph_here("sessions", "show", ID, "--session-dir", str(path.parents[1]))
        assert (shown.code, "> go" in shown.stdout, "NUL bytes" in shown.stdout) == (74, True, True)
    assert effects(ralph) == before


def test_p3_a_session_with_nul_bytes_is_not_passed_over_for_an_older_one_exits_74(
    ralph, ralph_here, serve
) -> None:
    server = serve(Turn("Done."), Turn("Done."))
    assert ralph("older").code == 0
    assert ralph("go", "--session-id", ID).code == 0
    path = journal_of(ralph)
    whole = path.read_bytes()
    prompt = whole.index(b'"kind":"user"')
    for kept in (whole.rindex(b"\n", 0, prompt) + 1, prompt + 20):
        path.write_bytes(whole[:kept] + bytes(len(whole) - kept))
        ran = ralph_here("-c", "on", code=74)
        assert "contains NUL bytes" in ran.last_line
    assert len(server.requests) == 2


def test_p3_what_was_torn_before_is_never_overwritten_exits_0(ralph, serve) -> None:
    serve(Fault(status=529), Fault(status=529), Turn("Done."))
    assert ralph("go", "--session-id", ID, "--retry", "off").code == 75
    path = journal_of(ralph)
    tears = [b'{"seq":9,"ki', b'{"seq":99,"kin']
    for torn, code in zip(tears, (75, 0), strict=True):
        path.write_bytes(path.read_bytes() + torn)
        assert ralph("--resume", ID, "--retry", "off").code == code
    assert sorted(torn.read_bytes() for torn in path.parent.glob("*.torn")) == sorted(tears)


NONSENSE: dict[str, dict[str, Any]] = {
    "a prompt without a block": {"kind": "user", "content": []},
    "a result before any message": {
        "kind": "tool_result",
        "type": "tool_result",
        "tool_use_id": "c",
        "content": "x",
    },
    "an answer without a message": {"kind": "assistant"},
}


@every_row("record", NONSENSE.values())
def test_p3_a_record_that_no_run_writes_is_damage_with_a_valid_checksum_too_exits_74(
    whole_run, resumed_here, ralph_here, record
) -> None:
    _, journal = whole_run
    whole = journal.splitlines(keepends=True)
    prompt = {"content": [{"type": "text", "text": "go"}]}
    data = b"".join([*whole[:2], sealed({"seq": 2, **record}), sealed({"seq": 3, "kind": "user", **prompt})])
    ran, path = resumed_here(data)
    assert ran.code == 74
    assert "line 3 makes no sense: " in ran.last_line
    assert f"`ralph sessions show {ID} --session-dir {path.parents[1]}`" in ran.last_line
    assert path.read_bytes() == data
    exported = ralph_here("sessions", "export", ID, "--format", "json", "--session-dir", str(path.parents[1]))
    assert (exported.code, len(exported.stderr.splitlines())) == (74, 1)


# In use: P13


@pytest.fixture
def held(ralph, serve) -> MockApi:
    """A session whose first request fails. When it is resumed, it runs a command until a file `release` exists."""
    wait = ToolUse("Bash", {"command": "touch started; until [ -e release ]; do sleep 0.02; done"})

    def answer(request: RecordedRequest, index: int) -> Fault | Turn:
        if index == 0:
            return Fault(status=529)
        is_first = len(messages := messages_in(request)) == 1 and messages[0]["content"][0]["text"] == "go"
        return Turn([wait]) if is_first else Turn("Done.")

    server: MockApi = serve(script=answer)
    assert ralph("go", "--session-id", ID, "--retry", "off").code == 75
    return server


def test_p13_a_second_run_of_a_session_names_the_holder_exits_78(ralph, held) -> None:
    process = ralph.start("--resume", ID)
    wait_until((ralph.cwd / "started").exists)
    second = ralph("--resume", ID, code=78)
    assert f"session {ID} is in use by process {process.pid}, since 2" in second.last_line
    fork = ralph("--resume", ID, "--fork-session", "on", code=78)
    assert ": when that has ended, you can resume a copy: wait for it, or stop it" in fork.last_line
    assert ralph("other", "--session-id", OTHER_ID).code == 0, "other sessions of the directory run"
    (ralph.cwd / "release").touch()
    assert ralph.finish(process).code == 0


def test_p13_of_four_runs_that_start_at_once_one_runs_exits_0_or_78(ralph, held) -> None:
    processes = [ralph.start("--resume", ID) for _ in range(4)]
    wait_until(lambda: sum(process.poll() is not None for process in processes) == 3)
    (ralph.cwd / "release").touch()
    assert sorted(ralph.finish(process).code for process in processes) == [0, *[78] * 3]
    assert held.request_count == 3


def test_p13_a_run_that_has_ended_is_not_named_as_the_holder_exits_78(ralph, held) -> None:
    holder = FileJournal.open(journal_of(ralph))  # as a new run's process does before it has written anything
    try:
        ran = ralph("--resume", ID)
    finally:
        holder.close()
    assert ran.code == 78
    assert ran.last_line.endswith(f"session {ID} is in use by another process: wait for it, or stop it")


# Of another version: P14


def with_opening(journal: bytes, **fields: Any) -> bytes:
    opening, *rest = journal.splitlines(keepends=True)
    changed = {**json.loads(opening), **fields}
    del changed["crc"]
    return b"".join([sealed(changed), *rest])


@every_row("rest", [b"", b'{"seq":9,"ki', b"lines of another kind\n"])
def test_p14_a_journal_of_a_newer_format_says_who_made_it_and_is_left_as_it_is_exits_78(
    whole_run, resumed_here, rest
) -> None:
    _, journal = whole_run
    newer = with_opening(journal, format=FORMAT + 1, ralph="99.0.0") + rest
    ran, path = resumed_here(newer)
    assert ran.code == 78
    assert "made by ralph 99.0.0" in ran.last_line
    assert path.read_bytes() == newer
    assert [*path.parent.iterdir()] == [path]


def test_p14_a_journal_recorded_long_ago_continues_with_its_own_request_exits_0(
    ralph, serve, tmp_path
) -> None:
    """tests/test_journals.py tests the request that follows each recorded journal."""
    name = "stopped-in-a-command"
    server = serve(Turn("Done."))
    recorded = (JOURNALS / f"{name}.jsonl").read_bytes()
    opened_here = with_opening(recorded, id=ID, cwd=str(ralph.cwd))
    # The model of that time was told of no sandbox. Otherwise it would be told of the change.
    [(ran, _)] = resumed(ralph, tmp_path, [opened_here], "--sandbox", "off")
    assert ran.code == 0
    [request] = server.requests
    digest = hashlib.sha256(request.body or b"").hexdigest()
    assert digest == json.loads(EXPECTED.read_text())[name]["request_sha256"]
