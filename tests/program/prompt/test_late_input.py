"""Standard input that is a pipe: data that comes late or never, and what ralph does with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Turn
from tests.patience import PATIENCE_S, wait_until
from tests.program.conftest import first_prompt, loop_lines, loop_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.mock_api import MockApi, RecordedRequest

HELLO = Turn("Hello.")


def wait_for_line(process: subprocess.Popen[bytes], words: str) -> str:
    """Reads standard error up to the first line with these words, and returns this line."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line.decode())
        if words in lines[-1]:
            return lines[-1]
    pytest.fail(f"no {words!r} in {lines}")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reading end and the writing end of a pipe. Another process may hold the reading end too, as in a shell's
    loop.
    """
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):  # a test may have closed it
            os.close(end)


def set_input_s(ralph, seconds: float) -> None:
    (ralph.cwd / "ralph.toml").write_text(f"[clocks]\ninput_s = {seconds}\n")


def sent_text(server: MockApi) -> str:
    return first_prompt(server.requests[0])


def test_p11_data_that_comes_late_goes_below_the_prompt_exits_0(ralph, serve) -> None:
    """An example is `make test 2>&1 | ralph -p "fix these"`, because tests print nothing for a while."""
    server = serve(HELLO)
    process = ralph.start("-p", "fix these", stdin=subprocess.PIPE)
    line = wait_for_line(process, "</dev/null")
    assert "standard input" in line
    assert "60s" in line
    process.stdin.write(b"2 failed\n")
    process.stdin.flush()
    ran = ralph.finish(process).having(0)
    assert sent_text(server) == "fix these\n\n2 failed\n"
    assert "9 bytes from standard input" in ran.stderr


def test_p11_a_pipe_that_never_speaks_is_left_alone_which_quiet_runs_and_the_result_say_exits_0(
    ralph, serve, pipe
) -> None:
    """Data that comes after the first request belongs to the next reader of the pipe, down to the first byte."""
    set_input_s(ralph, 0.2)
    reading, writing = pipe

    def play(_request: RecordedRequest, _index: int) -> Turn:
        os.write(writing, b"next item\n")
        return HELLO

    serve(script=play)
    process = ralph.start("-q", "go", "--output-format", "json", stdin=reading)
    ran = ralph.finish(process).having(0)
    notice = next(line for line in ran.stderr.splitlines() if line.startswith("[notice]"))
    assert "no data arrived within 0.2s" in notice
    assert "ralph ignores it, and data that arrives later" in notice
    assert "</dev/null" in notice
    told, later = json.loads(ran.stdout)["notices"]
    assert told == notice.removeprefix("[notice] ")
    assert later == "10 bytes arrived on standard input later and were not read"
    assert os.read(reading, 100) == b"next item\n"


def test_p11_a_pipe_left_alone_is_in_the_result_of_a_misused_run_too_exits_2(ralph, serve, pipe) -> None:
    serve(HELLO)
    assert ralph("go").code == 0
    set_input_s(ralph, 0.2)
    process = ralph.start("--continue", "--output-format", "json", stdin=pipe[0])
    ran = ralph.finish(process)
    assert (ran.code, ran.result["terminal_reason"]) == (2, "usage")
    assert "is complete:" in ran.result["errors"][0]
    assert "no data arrived within 0.2s" in ran.result["notices"][0]


LATE = """
import os, sys
from ralph.values.events import RunStarted
from ralph.output.writer import OutputOptions
from ralph.run.command import run_command
from ralph.run.options import RunOptions

class Watcher:
    def emit(self, event):
        if isinstance(event, RunStarted):
            os.write(int(sys.argv[1]), b"x")

os._exit(run_command(RunOptions("go", output=OutputOptions("stream-json")), None, Watcher()))
"""


def test_p11_data_that_comes_before_the_first_request_all_the_same_ends_the_run_exits_2(
    ralph, serve, pipe
) -> None:
    """Runs the command in a program that writes into the pipe as soon as ralph has stopped waiting for it."""
    server = serve(HELLO)
    set_input_s(ralph, 0.2)
    reading, writing = pipe
    process = subprocess.Popen(
        [sys.executable, "-c", LATE, str(writing)],
        cwd=ralph.cwd,
        env=ralph.environment,
        stdin=reading,
        pass_fds=[writing],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    ran = ralph.finish(process)
    assert (ran.code, server.request_count) == (2, 0)
    assert (ran.result["terminal_reason"], ran.result["exit_code"]) == ("usage", 2)
    assert "usage (exit 2): data arrived on standard input" in ran.last_line
    assert "input_s" in ran.last_line
    assert os.read(reading, 100) == b"x"
    assert json.loads(ralph("sessions", "ls", "--format", "json").stdout) == []


def test_no_limit_for_the_first_byte_is_none(ralph, serve, pipe) -> None:
    """Heartbeats say what the run is waiting for."""
    server = serve(HELLO)
    reading, writing = pipe
    own = ralph.cwd.parent / "home" / ".config" / "ralph" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[clocks]\ninput_s = 0\nheartbeat_s = 0.2\n")
    process = ralph.start("go", stdin=reading)
    wait_for_line(process, "[wait]")
    assert "for the first byte of standard input" in wait_for_line(process, "[wait]")
    os.write(writing, b"late")
    os.close(writing)
    assert ralph.finish(process).code == 0
    assert sent_text(server) == "go\n\nlate"


def test_p11_a_pipe_that_is_the_prompt_and_never_speaks_exits_2(ralph, serve, pipe) -> None:
    server = serve(HELLO)
    set_input_s(ralph, 0.2)
    ran = ralph.finish(ralph.start("-", "--output-format", "json", stdin=pipe[0]))
    assert (ran.code, server.request_count) == (2, 0)
    assert "standard input stayed silent for 0.2s" in ran.stderr


def test_a_pipe_named_as_the_prompt_file_is_read_once_somebody_writes(ralph, serve) -> None:
    server = serve(HELLO)
    fifo = ralph.cwd / "fifo"
    os.mkfifo(fifo)
    process = ralph.start("-f", "fifo")
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            writing = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError:  # nobody reads it yet
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.3)  # the pipe is open but empty, which is not its end
    os.write(writing, b"from the pipe")
    os.close(writing)
    assert ralph.finish(process).code == 0
    assert sent_text(server) == "from the pipe"


# The outer loop


def test_p11_a_loop_begins_nothing_when_data_comes_late_beside_its_prompt_exits_2(ralph, serve, pipe) -> None:
    server = serve(HELLO)
    set_input_s(ralph, 0.2)
    reading, writing = pipe
    check = "touch checking; while ! test -e go; do sleep 0.02; done; false"
    process = ralph.start("loop", "do it", "-q", "--until", check, stdin=reading)
    wait_for_line(process, "data that arrives later")
    wait_until((ralph.cwd / "checking").exists)
    os.write(writing, b"late")
    (ralph.cwd / "go").touch()
    ran = ralph.finish(process)
    assert (ran.code, server.request_count, loop_record(ralph)["iterations"]) == (2, 0, [])
    assert "usage (exit 2): data arrived on standard input" in loop_lines(ran)[-1]


def test_a_loop_takes_a_prompt_that_comes_late(ralph, iterations) -> None:
    server = iterations()
    process = ralph.start("loop", "--max-iterations", "1", stdin=subprocess.PIPE)
    line = wait_for_line(process, "waiting for ")
    assert line.startswith("[loop] ")
    process.stdin.write(b"the late prompt")
    ralph.finish(process).having(0)
    assert "the late prompt" in sent_text(server)


def test_a_loop_says_in_the_end_that_a_pipe_was_left_alone(ralph, iterations, pipe) -> None:
    set_input_s(ralph, 0.2)
    iterations()
    reading, _ = pipe
    ran = ralph.finish(ralph.start("loop", "go", "-q", "--max-iterations", "1", stdin=reading)).having(0)
    left = [line for line in loop_lines(ran) if "data that arrives later" in line]
    assert len(left) == 2
    assert loop_lines(ran)[-2] == left[1]


def test_the_time_limit_of_a_loop_ends_the_wait_exits_124(ralph, serve, pipe) -> None:
    server = serve(HELLO)
    ran = ralph.finish(ralph.start("loop", "go", "--max-time", "0.5s", stdin=pipe[0]))
    assert (ran.code, server.request_count) == (124, 0)
    assert "timed_out (exit 124): the time limit (--max-time) is used up" in loop_lines(ran)[-1]


def test_settings_of_a_loop_are_looked_at_before_anybody_is_waited_for_exits_78(ralph, serve, pipe) -> None:
    serve(HELLO)
    (ralph.cwd / "ralph.toml").write_text("[clocks]\ninput_s = -1\n")
    ran = ralph.finish(ralph.start("loop", "go", stdin=pipe[0])).having(78)
    assert "clocks.input_s" in ran.stderr
