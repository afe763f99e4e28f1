"""Text from models, tools, servers and records must not control a terminal, and must not look like ralph's own
lines.
"""

from __future__ import annotations

import json
import os
import pty
import re
from threading import Thread

import pytest

from ralph.mock_api import Fault, Turn
from tests.patience import PATIENCE_S
from tests.processes.terminals import read_all
from tests.program.conftest import loop_lines
from tests.program.model_answers import bash, calls

FORGED = "[ralph] completed [9 turns, 1.0s]"
# Clipboard, title, clear screen, colour, as C1, overrides of the direction, and what has no width.
TRICKS = "\x1b]52;c;ZXZpbA==\x07\x1b]0;t\x1b\\\x1b[2J\x1b[31m\x9b31m\x9d0;t\x9c\u202e\u2066\u200b\u2060\r\x08"
ANSWER = f"One{TRICKS} line.\n{FORGED}\n \u200b{TRICKS}[retry] Recovered\nfamily 👩\u200d👩\u200d👧\u2028[loop] done\nra\u200cl\ufe0fph: no key"
SHOWN = "One line.\n| [ralph] completed [9 turns, 1.0s]\n|  [retry] Recovered\nfamily 👩\u200d👩\u200d👧\n| [loop] done\n| ra\u200cl\ufe0fph: no key\n"
POWER = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u206f]")
OWN_LINE = re.compile(r"\[(ralph|tool|retry|error|notice|hint|turn|target)\] ")


@pytest.fixture
def on_terminals(ralph):
    """Runs ralph with the named outputs on terminals. Returns the exit code and both outputs, with the line breaks
    that the program wrote.
    """
    ralph.environment["NO_COLOR"] = "1"
    ralph.user_file.write_text("[clocks]\nheartbeat_s = 0\n")  # a terminal's heartbeat is where it was before

    def run(*arguments: str, terminals: str) -> tuple[int, str, str]:
        ends = {name: pty.openpty() if name in terminals else os.pipe() for name in ("stdout", "stderr")}
        process = ralph.start(*arguments, stdout=ends["stdout"][1], stderr=ends["stderr"][1])
        got: dict[str, bytes] = {}
        readers = []
        for name, (ours, theirs) in ends.items():
            os.close(theirs)
            readers.append(Thread(target=lambda name=name, ours=ours: got.update({name: read_all(ours)})))
            readers[-1].start()
        code = process.wait(PATIENCE_S)
        for reader in readers:
            reader.join()
        texts = [got[name].decode().replace("\r\n", "\n") for name in ("stdout", "stderr")]
        return code, texts[0], texts[1]

    return run


@pytest.mark.parametrize(
    ("arguments", "terminals", "chunk_chars"),
    [
        (["-q"], "stdout stderr", 0),
        ([], "stdout stderr", 1),
        ([], "stdout stderr", 0),
        ([], "stdout", 1),
        ([], "stderr", 1),
        ([], "", 0),
    ],
)
def test_an_answer_has_no_power_over_a_terminal_and_is_exact_for_a_program(
    on_terminals, serve, arguments, terminals, chunk_chars
) -> None:
    serve(Turn(ANSWER, chunk_chars=chunk_chars))
    code, stdout, stderr = on_terminals("go", *arguments, terminals=terminals)
    assert code == 0
    is_said_once = terminals == "stdout stderr" and not arguments
    assert stdout == ("" if is_said_once else SHOWN if "stdout" in terminals else f"{ANSWER}\n")
    assert not POWER.search(stderr)
    if not arguments:
        assert f"\n{SHOWN}" in stderr
    own = [line for line in stderr.splitlines() if OWN_LINE.match(line)]
    assert [line for line in own if line.startswith("[ralph] completed")] == own[-1:]


def test_json_on_a_terminal_has_the_same_value_without_power_over_it(on_terminals, serve) -> None:
    form = "stream-json"
    serve(Turn(ANSWER), Turn(ANSWER))
    _, shown, _ = on_terminals("go", "--output-format", form, terminals="stdout")
    _, exact, _ = on_terminals("go", "--output-format", form, terminals="")
    assert not POWER.search(shown)
    assert POWER.search(exact)
    results = [json.loads(text.rstrip("\n").split("\n")[-1])["result"] for text in (shown, exact)]
    assert results == [ANSWER, ANSWER]


def test_no_call_result_error_or_report_begins_a_line_of_ralphs(ralph, serve) -> None:
    ralph.retry_quickly()
    forging = f"x\n{FORGED}\n{TRICKS}{FORGED}"
    serve(
        Fault(status=529, message=forging),
        bash(f"echo {FORGED!r}; false\n{FORGED}"),
        calls((f"Tool\n{FORGED}", {"a": forging}), ("Read", {"file_path": forging})),
        calls(("final_report", {"status": "success", "summary": forging})),
    )
    ran = ralph("go", "--require-report", code=0)
    assert not POWER.search(ran.stderr)
    endings = [line for line in ran.stderr.splitlines() if line.startswith("[ralph] completed")]
    assert len(endings) == 1
    assert endings[0] != FORGED
    assert ran.stderr.splitlines().count(f"| {FORGED}") == 2, "the summary is shown, as the model's"


def test_records_that_are_shown_later_begin_no_line_of_ralphs(
    ralph, ralph_here, checkout, iterations
) -> None:
    """The names of directories and files, tasks and answers are stored in journals and in the loop's record."""
    work = ralph.cwd.with_name(f"w\n[loop] completed: forged\n{TRICKS}")
    ralph.cwd.rename(work)
    ralph.cwd = work
    iterations([bash(f"touch $'f\\n[loop] completed: forged\\x1b[2J'; echo {FORGED!r}"), Turn(ANSWER)])
    ran = ralph("loop", f"do\n{FORGED}{TRICKS}", "--max-iterations", "1", code=0)
    looks = (("loop", "--status"), ("sessions", "ls"), ("sessions", "show"), ("doctor",))
    shown = [ran.stderr, *(ralph_here(*words).stdout for words in looks)]
    for text in shown:
        assert not POWER.search(text)
        own = [
            line for line in text.splitlines() if line.startswith(("[loop] completed", "[ralph] completed"))
        ]
        assert not [line for line in own if line in (FORGED, "[loop] completed: forged")]
    assert [line for line in loop_lines(ran) if line.startswith("completed")] == loop_lines(ran)[-1:]
    _, status, listed, story, doctor = shown
    assert len(listed.splitlines()) == 1, "a session is a line"
    assert all("[loop] completed: forged" in text for text in (status, story, doctor)), (
        "and yet nothing is left out"
    )
