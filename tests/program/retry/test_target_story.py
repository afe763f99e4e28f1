"""Tests what users see of a run with several targets, afterwards and while it waits: sessions, exports and a
countdown.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, Step, Text, ToolUse, Turn
from tests.patience import PATIENCE_S
from tests.program.several import DOWN, at, run, settings

if TYPE_CHECKING:
    from pathlib import Path

PRICE = {"input": 1000, "output": 1000, "cache_write": 0, "cache_read": 0}


def priced(path: Path, name: str) -> None:
    """Adds a price to a target in the settings file."""
    price = ", ".join(f"{key} = {value}" for key, value in PRICE.items())
    path.write_text(path.read_text().replace(f'name = "{name}"', f'name = "{name}"\nprice = {{ {price} }}'))


USAGE = {"input_tokens": 10, "output_tokens": 5}
ECHO = Turn([Text("I look."), ToolUse("Bash", {"command": "echo found"})], usage=USAGE)
CUT = Step(Turn("never whole", usage={"input_tokens": 7, "output_tokens": 1}), Fault(cut_after_events=3))


@pytest.fixture
def session(ralph, serve) -> None:
    """In turn 1, main fails, spare breaks off, main fails again, and spare answers. In turn 2, main answers."""
    main = serve(Fault(status=529), Fault(status=503), Step(Turn("All done.", usage=USAGE)))
    spare = serve(CUT, ECHO)
    path = settings(
        ralph,
        at("main", main.base_url),
        at("spare", spare.base_url),
        policy="custom",
        base_delay_s=0.01,
        strategy="round_robin",
    )
    priced(path, "spare")
    run(ralph, path).having(0)
    assert [len(server.requests) for server in (main, spare)] == [3, 2]


def test_every_attempt_is_in_the_story_with_target_time_tokens_and_cost(ralph_here, session) -> None:
    shown = ralph_here("sessions", "show", code=0)
    lines = [re.sub(r"\d+\.\d+s", "#s", line) for line in shown.stdout.splitlines()]
    lines = [re.sub(r" \(request [^)]*\)", "", line) for line in lines]
    told = [line for line in lines if line.startswith(("[error]", "[turn", "[target]", "[retry]"))]
    assert told == [
        "[error] HTTP 529 overloaded_error: Overloaded (main, #s)",
        "[target] main -> spare (overloaded)",
        *[line for line in told if line.startswith("[error]") and "(spare, " in line],
        "[retry] Attempt 1/4: stream — waiting #s",
        "[target] spare -> main (stream)",
        *[line for line in told if line.startswith("[error] HTTP 503")],
        "[target] main -> spare (overloaded)",
        "[turn 1] spare answered in #s: 10 tokens in, 5 out, $0.0150",
        "[retry] Recovered after 1 retries",
        "[target] spare answers",
        "[turn 1] 4 attempts in #s",
        "[turn 2] main answered in #s: 10 tokens in, 5 out, ?",
        "[target] back on main",
    ]
    (broken,) = [line for line in told if "(spare, " in line]
    assert broken.endswith("(spare, #s: 7 tokens in, 6 out, $0.0130)"), "what broke off is billed too"


def test_every_attempt_is_in_the_export(ralph_here, session) -> None:
    exported = json.loads(ralph_here("sessions", "export", "--format", "json").stdout)
    attempts = [one for one in exported["events"] if one["subtype"] == "attempt"]
    fields = ("turn", "attempt", "target", "model", "status", "kind", "wait_s", "cost_usd")
    told = [
        (*(one[name] for name in fields), *map(one["tokens"].get, ("input", "output"))) for one in attempts
    ]
    assert told == [
        (1, 1, "main", "model-main", 529, "overloaded", 0, 0, 0, 0),
        (1, 2, "spare", "model-spare", None, "stream", 0.01, 0.013, 7, 6),
        (1, 3, "main", "model-main", 503, "overloaded", 0, 0, 0, 0),
        (1, 4, "spare", "model-spare", None, None, 0, 0.015, 10, 5),
        (2, 1, "main", "model-main", None, None, 0, None, 10, 5),
    ]
    assert all(one["latency_s"] >= 0 for one in attempts)
    assert [bool(one["error"]) for one in attempts] == [True, True, True, False, False]
    turns = [one for one in exported["events"] if one["subtype"] == "turn_asked"]
    assert [(one["turn"], one["attempts"]) for one in turns] == [(1, 4), (2, 1)]
    assert turns[0]["took_s"] >= sum(one["latency_s"] for one in attempts[:4]) - 0.01
    markdown = ralph_here("sessions", "export", "--format", "md").stdout
    assert markdown.count("answered in") == 2
    assert "4 attempts in" in markdown


# --- The countdown

CLEAR = "\r\x1b[K"
RETRY = "[retry] Attempt 1/4: 529 — waiting 2s"


def on_a_terminal(ralph, *arguments: str, stop_at: str) -> str:
    """The standard error of a run on a terminal. The run is stopped as soon as it has printed `stop_at`."""
    ours, theirs = pty.openpty()
    process = ralph.start(*arguments, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown, deadline_s = b"", time.monotonic() + PATIENCE_S
    is_stopped = False
    try:
        while time.monotonic() < deadline_s:
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            shown += os.read(ours, 65_536)
            if not is_stopped and stop_at.encode() in shown:
                process.send_signal(signal.SIGTERM)
                is_stopped = True
    except OSError:  # the other end was closed
        pass
    finally:
        os.close(ours)
        assert process.wait(timeout=PATIENCE_S) == 143
    return shown.decode()


def test_a_wait_is_counted_down_in_place_on_a_terminal(ralph, serve) -> None:
    serve(DOWN)
    ralph.environment["NO_COLOR"] = "1"
    shown = on_a_terminal(ralph, "hi", stop_at="retry 2 of 4").replace("\r\n", "\n")
    parts = shown.split(CLEAR)
    assert RETRY in parts[0].splitlines(), "the line of the log is what it is without a countdown"
    countdown = [part for part in parts if re.fullmatch(r"\[wait\] retry 1 of 4 in \ds", part)]
    assert countdown == [f"[wait] retry 1 of 4 in {left}s" for left in (2, 1)][-len(countdown) :]
    assert countdown, "in place: nothing else is on its line"
    assert not any("[wait]" in line for line in without_countdown(shown).splitlines())
    assert "[ralph] interrupted (exit 143)" in without_countdown(shown)


def without_countdown(shown: str) -> str:
    """The lines that a terminal shows at the end. Cleared lines are missing."""
    return "\n".join(line.rpartition(CLEAR)[2] for line in shown.split("\n"))


@pytest.mark.parametrize(
    ("flag", "terminal"), [("--quiet", "xterm"), ("--no-session-persistence", "dumb")], ids=["quiet", "dumb"]
)
def test_quiet_and_a_terminal_without_controls_count_nothing_down(ralph, serve, flag, terminal) -> None:
    ralph.environment |= {"TERM": terminal, "NO_COLOR": "1"}
    server = serve(Fault(status=529), DOWN)
    ours, theirs = pty.openpty()
    process = ralph.start("hi", flag, stderr=theirs)
    os.close(theirs)
    assert server.wait_for_requests(2, PATIENCE_S)  # a whole wait of two seconds lies between
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert "[error] HTTP 529" in shown
    assert "[wait]" not in shown
    assert "\x1b[K" not in shown
