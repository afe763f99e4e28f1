"""The status line in a real terminal: it shows seconds that grow, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from ralph.mock_api import Text, ToolUse, Turn
from ralph.values.screen_text import columns_of
from tests.patience import PATIENCE_S, wait_until
from tests.services.small_terminal import PtyReader

BLOCKS = "until test -e go_on; do sleep 0.05; done # 日本語の長いテキストがここにあります"
STATUS = re.compile(r"\[now\] turn 1, Bash: until .*, ([\d.]+)s, \$0\.000\d$")


def seconds_in(terminal: PtyReader) -> float:
    found = [STATUS.fullmatch(line) for line in terminal.lines()]
    return max((float(one[1]) for one in found if one), default=0.0)


@pytest.mark.parametrize(
    "words", [["run", "go"], ["loop", "go", "--max-iterations", "1"]], ids=["run", "loop"]
)
def test_a_long_command_shows_how_long_it_runs_and_the_last_screen_has_no_trace_of_it(
    ralph, iterations, serve, words
) -> None:
    story = [Turn([Text("I begin."), ToolUse("Bash", {"command": BLOCKS})]), Turn("All done.")]
    if words[0] == "loop":
        iterations(story)
    else:
        serve(*story)
    terminal = PtyReader(60)
    process = ralph.start(*words, stdout=terminal.theirs, stderr=terminal.theirs)
    wait_until(lambda: seconds_in(terminal) > 0)
    seen_s = seconds_in(terminal)
    wait_until(lambda: seconds_in(terminal) > seen_s)
    (ralph.cwd / "go_on").touch()
    assert process.wait(PATIENCE_S) == 0
    process.communicate()
    lines = terminal.close()
    assert "[now]" not in "\n".join(lines)
    begin = lines.index("I begin.")
    assert lines[begin + 1].startswith("[tool] Bash: until test -e go_on")
    assert "All done." in lines[begin + 2 : begin + 4]
    assert "" not in lines[:-1]
    drawn = re.findall(r"\[now\][^\x1b\r\n]*", terminal.raw)
    assert all(columns_of(line) < 60 for line in drawn)


@pytest.mark.parametrize(
    ("options", "columns", "variables"),
    [(["-q"], 60, {}), (["--output-format", "stream-json"], 60, {}), ([], 60, {"TERM": "dumb"})],
)
def test_where_the_line_would_be_in_the_way_there_is_none(ralph, serve, options, columns, variables) -> None:
    serve(Turn([ToolUse("Bash", {"command": "sleep 1.3"})]), Turn("All done."))
    ralph.environment.update(variables)
    terminal = PtyReader(columns)
    process = ralph.start("run", "go", *options, stdout=terminal.theirs, stderr=terminal.theirs)
    assert process.wait(PATIENCE_S) == 0
    process.communicate()
    terminal.close()
    assert "[now]" not in terminal.raw


@pytest.mark.parametrize("words", ["run go", "loop -p go --max-iterations 1"], ids=["run", "loop"])
def test_ctrl_z_leaves_the_line_to_the_shell_and_fg_continues(ralph, iterations, serve, words) -> None:
    story = [Turn([Text("I begin."), ToolUse("Bash", {"command": BLOCKS})]), Turn("All done.")]
    if words.startswith("loop"):
        iterations(story)
    else:
        serve(*story)
    terminal = PtyReader(200)
    # A leader of a session gets the first terminal that it opens as its controlling terminal.
    path = os.ttyname(terminal.theirs)
    command = f"exec bash --norc --noprofile --noediting -i <{path} >{path} 2>&1"
    environment = {**ralph.environment, "PS1": "$ ", "TERM": "xterm"}
    with subprocess.Popen(
        ["sh", "-c", command], cwd=ralph.cwd, env=environment, start_new_session=True
    ) as shell:
        try:
            terminal.type(f"{sys.executable} -m ralph {words} --sandbox off\n")
            wait_until(lambda: seconds_in(terminal) > 0)
            terminal.type("\x1a")
            wait_until(lambda: "Stopped" in terminal.raw)
            assert seconds_in(terminal) == 0
            drawn = terminal.raw.count("[now]")
            terminal.type("sleep 1.5; echo typ''ed\n")
            wait_until(lambda: "typed" in terminal.lines())
            assert terminal.raw.count("[now]") == drawn
            terminal.type("fg\n")
            wait_until(lambda: terminal.raw.count("[now]") > drawn)
            (ralph.cwd / "go_on").touch()
            wait_until(lambda: "completed" in terminal.raw.partition("fg")[2] and terminal.lines()[-1] == "$")
            terminal.type("exit\n")
            assert shell.wait(PATIENCE_S) == 0
        finally:
            shell.kill()
    lines = terminal.close()
    assert "[now]" not in "\n".join(lines)
    assert "All done." in lines
