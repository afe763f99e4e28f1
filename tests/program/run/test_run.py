"""`ralph run` from start to end: prompts, tools, formats, and the files that it writes."""

from __future__ import annotations

import json
import subprocess
import sys

from ralph.mock_api import Fault, Text, ToolUse, Turn
from tests.patience import PATIENCE_S
from tests.rows import every_row

HELLO = Turn(content="Hello there.")


def sent(server, index=-1):
    return json.loads(server.requests[index].body)


def test_a_prompt_is_answered_and_standard_output_holds_the_answer_alone(ralph, serve) -> None:
    ralph.starts_afresh = True
    server = serve(HELLO)
    ran = ralph("say hello")
    assert (ran.code, ran.stdout) == (0, "Hello there.\n")
    assert ran.last_line.startswith("[ralph] completed [1 turn, ")
    assert sent(server)["messages"][0]["content"][0]["text"] == "say hello"


def test_a_run_sends_one_request_of_under_4700_bytes_tools_included(ralph, serve) -> None:
    """tests/recorded/kept/hello-text.txt has the request."""
    server = serve(HELLO)
    ralph("hi")
    assert len(server.requests[0].body) < 4700
    assert len(sent(server)["tools"]) == 8
    assert ([request.method for request in server.requests], server.lookups) == (["POST"], ())


def test_the_classic_loop_line_works_as_it_stands(ralph, serve) -> None:
    server = serve(HELLO)
    options = "-p --dangerously-skip-permissions --output-format=stream-json --model opus --verbose"
    ran = ralph(*options.split(), stdin=b"the prompt", code=0)
    assert ran.objects[0]["model"] == "claude-opus-5-5"
    assert sent(server)["messages"][0]["content"][0]["text"] == "the prompt"
    assert ran.result["subtype"] == "success"


def test_a_prompt_file_is_read_from_where_ralph_was_called(ralph, serve) -> None:
    server = serve(HELLO)
    (ralph.cwd / "PROMPT.md").write_text("from the file")
    (ralph.cwd / "sub").mkdir()
    ran = ralph("-f", "PROMPT.md", "-C", "sub", "--output-format", "stream-json")
    assert sent(server)["messages"][0]["content"][0]["text"] == "from the file"
    assert ran.objects[0]["cwd"] == str(ralph.cwd / "sub")


def test_the_rest_of_a_list_that_a_shell_goes_through_is_left_alone(ralph, serve) -> None:
    server = serve(HELLO)
    (ralph.cwd / "list").write_text("one\ntwo\n")
    with (ralph.cwd / "list").open("rb", buffering=0) as file:
        file.read(len("one\n"))  # as the shell's `read` does, which has the file open for both
        assert ralph.finish(ralph.start("-q", "do one", stdin=file)).stdout == "Hello there.\n"
        assert file.read() == b"two\n"
    assert sent(server)["messages"][0]["content"][0]["text"] == "do one"


def test_a_redirected_file_stands_below_the_prompt(ralph, serve) -> None:
    server = serve(HELLO)
    (ralph.cwd / "diff").write_text("+ line")
    with (ralph.cwd / "diff").open() as file:
        ran = ralph.finish(ralph.start("review", stdin=file))
    assert sent(server)["messages"][0]["content"][0]["text"] == "review\n\n+ line"
    assert "6 bytes from standard input" in ran.stderr


def test_stream_json_tells_the_story_in_order(ralph, serve) -> None:
    ralph.retry_quickly()
    serve(
        Fault(status=529),
        Turn(content=[Text("Look."), ToolUse("Bash", {"command": "echo hi"})]),
        HELLO,
    )
    ran = ralph("go", "--max-time", "1h", "--output-format", "stream-json", "--include-partial-messages")
    kinds = [f"{o['type']}/{o.get('subtype', '')}" for o in ran.objects if o["type"] != "stream_event"]
    assert kinds == [
        "system/init",
        "system/api_retry",
        "system/retry_recovered",
        "assistant/",
        "assistant/",
        "user/",
        "assistant/",
        "result/success",
    ]
    assert all({"type", "uuid", "session_id"} <= entry.keys() for entry in ran.objects)
    assert len({entry["session_id"] for entry in ran.objects}) == 1
    assert any(o["type"] == "stream_event" for o in ran.objects)
    assert ran.result["retries"] == 1
    assert "[retry]" in ran.stderr
    assert "\x1b" not in ran.stderr, "colour is for terminals"


def test_system_prompt_reach_the_system_prompt_nearest_last(ralph, serve) -> None:
    server = serve(HELLO)
    (ralph.cwd / ".git").mkdir()
    (ralph.cwd / "AGENTS.md").write_text("outer rule")
    (ralph.cwd / "sub").mkdir()
    (ralph.cwd / "sub" / "CLAUDE.md").write_text("inner rule " + "x" * 40_000)
    (ralph.cwd / "sub" / "AGENTS.md").write_text("not this one")
    ran = ralph("hi", "-C", "sub")
    system = sent(server)["system"][0]["text"]
    assert "inner rule" in system
    assert "not this one" not in system
    assert "[cut after 32 KB]" in system
    assert "32 KB" in ran.stderr


def test_a_module_in_the_working_directory_is_not_imported(ralph, serve) -> None:
    """`python -m` searches this directory first. A module there would receive the key."""
    ralph.starts_afresh = True
    serve(HELLO)
    for name in ("httpx", "typer", "json"):
        (ralph.cwd / f"{name}.py").write_text("raise SystemExit('stolen')")
    assert ralph("hi").code == 0


def with_streams(ralph, line: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of a shell in which RALPH stands for the program."""
    return subprocess.run(
        ["sh", "-c", line.replace("RALPH", f"{sys.executable} -m ralph")],
        cwd=ralph.cwd,
        env=ralph.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@every_row("words", ["run hi", "loop -p hi --max-iterations 1", "--help", "--version", "doctor"])
def test_p9_with_closed_standard_output_nothing_is_spent_or_said_to_be_done_exits_74(
    ralph, serve, words
) -> None:
    server = serve(HELLO)
    ran = with_streams(ralph, f"RALPH {words} >&-")
    assert (ran.returncode, server.request_count) == (74, 0)
    [line] = ran.stderr.splitlines()
    assert line.startswith("ralph: ")
    assert "standard output" in line


def test_p9_closed_streams_do_not_matter_to_a_run_with_a_result_file_exits_0(ralph, serve) -> None:
    serve(HELLO)
    assert with_streams(ralph, "RALPH run hi --result-file result >&- 2>&- <&-").returncode == 0
    assert json.loads((ralph.cwd / "result").read_text())["result"] == "Hello there."


WATCHED = """
import gc, os
from ralph.machine.loading import put_off_garbage_collection
from ralph.run.command import run_command
from ralph.run.options import RunOptions
from ralph.values.events import SessionOpened

usual = gc.get_threshold()
put_off_garbage_collection()

class Watcher:
    def emit(self, event):
        if isinstance(event, SessionOpened):
            os.write(2, f"{gc.get_threshold() == usual} {gc.get_freeze_count() > 0}".encode())

os._exit(run_command(RunOptions("go", reads_stdin=False), None, Watcher()))
"""


def test_garbage_is_collected_from_the_opening_of_the_session_on(ralph, serve) -> None:
    serve(HELLO)
    ran = subprocess.run(
        [sys.executable, "-c", WATCHED],
        cwd=ralph.cwd,
        env=ralph.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "True True" in ran.stderr
