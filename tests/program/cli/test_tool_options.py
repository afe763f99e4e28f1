"""Tests which tools a command line leaves, in every form that scripts use, and which prompt is left beside the
options.
"""

from __future__ import annotations

import os
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ralph.cli.run import COMMAND
from tests.program.model_answers import DONE, bash, calls
from tests.rows import every_row
from tests.settings.settings_world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sandboxed

ALL = "Read Write Edit Bash BashOutput KillBash Glob Grep"

FORMS = {
    "nothing said": ("", ALL),
    "words": ("--allowedTools Write Read", "Read Write Glob Grep"),
    "commas": ("--allowed-tools Write,Edit", "Read Write Edit Glob Grep"),
    "one word with spaces": ("--allowedTools 'Write Edit'", "Read Write Edit Glob Grep"),
    "with =": ("--allowedTools=Write --quiet", "Read Write Glob Grep"),
    "repeated": ("--allowedTools Write --allowedTools Edit", "Read Write Edit Glob Grep"),
    "allowed, none": ("--allowed-tools ''", "Read Glob Grep"),
    "disallowed": ("--disallowedTools Bash Write", "Read Edit Glob Grep"),
    "disallowed, none": ("--disallowed-tools ''", ALL),
    "exactly": ("--tools Bash,Read", "Read Bash BashOutput KillBash"),
    "exactly, none": ("--tools ''", ""),
    "exactly, all": ("--tools default --allowedTools Write", "Read Write Glob Grep"),
    "exactly, tools of another program": ("--tools WebFetch Read", "Read"),
    "both": ("--tools Bash Write --disallowedTools Write", "Bash BashOutput KillBash"),
}


@pytest.mark.parametrize(("typed", "left"), FORMS.values(), ids=FORMS.keys())
def test_each_form_of_a_list_means_the_same(tmp_path, typed, left) -> None:
    read = COMMAND.read(["hi", *shlex.split(typed)])
    assert read is not None
    line: Any = read[0][0]
    assert line.prompt == "hi"
    assert World(tmp_path).load(line.flags).enabled_tools == tuple(left.split())


def test_the_doctor_says_where_the_tools_come_from_and_which_there_are_not(ralph_here) -> None:
    ran = ralph_here("doctor", "--tools", "Bash", "WebFetch", "--disallowedTools=TodoWrite,mcp__x__y")
    [row] = [line for line in ran.stdout.splitlines() if line.split()[:1] == ["tools"]]
    assert row.endswith("flag --tools, flag --disallowed-tools")
    assert "warn  settings: --tools names WebFetch: ralph has no such tool" in ran.stdout
    assert "settings: --disallowed-tools names TodoWrite, mcp__x__y: ralph has no such tool" in ran.stdout


def sent_prompt(server) -> str:
    text: str = server.requests[0].json()["messages"][0]["content"][0]["text"]
    return text


def tools_of(server) -> str:
    return " ".join(tool["name"] for tool in server.requests[0].json()["tools"])


def test_a_list_at_the_end_of_the_line_takes_its_words_and_the_pipe_gives_the_prompt(ralph, serve) -> None:
    server = serve(bash("touch ran"), DONE)
    ran = ralph("-p", "--disallowedTools", "Bash", "Write", "TodoWrite", stdin=b"do it\n", code=0)
    assert sent_prompt(server).strip() == "do it"
    assert tools_of(server) == "Read Edit Glob Grep"
    assert not (ralph.cwd / "ran").exists()
    said = ran.stderr.splitlines()
    assert said.count("[notice] tools of this run: Read, Edit, Glob, Grep (flag --disallowed-tools)") == 1
    assert said.count("[notice] --disallowed-tools names TodoWrite: ralph has no such tool") == 1


def test_the_notice_about_tools_shows_the_patterns_also_when_the_session_is_resumed(ralph, serve) -> None:
    serve(DONE, DONE)
    words = ("--allowed-tools", "Bash(git *)", "Bash(ls:*)", "--disallowed-tools", "Bash(git push *)")
    shown = "Read, Bash(git *), Bash(ls:*), Glob, Grep, but not Bash(git push *)"
    first = ralph("go", *words)
    assert (
        f"[notice] tools of this run: {shown} (flag --allowed-tools, flag --disallowed-tools)\n"
        in first.stderr
    )
    later = ralph("-c", "more")
    assert f"[notice] tools of this run: {shown} (as in the session so far; --tools" in later.stderr


PROMPTS = {
    "before the list": ("'fix it' --tools Read Bash", "fix it"),
    "behind --": ("--tools Read Bash -- 'fix it'", "fix it"),
    "behind another option": ("--tools Read Bash -p 'fix it'", "fix it"),
    "behind a list with =": ("--tools=Read,Bash 'fix it'", "fix it"),
    "in a file": ("-f PROMPT.md --tools Read Bash", "from the file"),
    "from a lone dash": ("--tools Read Bash -", "from the pipe"),
}


@pytest.mark.parametrize(("typed", "prompt"), PROMPTS.values(), ids=PROMPTS.keys())
def test_a_prompt_beside_a_list_stays_one(ralph, serve, typed, prompt) -> None:
    server = serve(DONE)
    (ralph.cwd / "PROMPT.md").write_text("from the file")
    ralph(*shlex.split(typed), stdin=b"from the pipe" if "pipe" in prompt else None, code=0)
    assert (sent_prompt(server), tools_of(server)) == (prompt, "Read Bash BashOutput KillBash")


def test_directories_are_a_list_too_and_may_have_commas_and_spaces(ralph, serve, tmp_path) -> None:
    for name in ("a", "b", "c d", "e,f"):
        (tmp_path / name).mkdir()
    turns = [f"../{name}/x" for name in ("a", "b", "c d", "e,f")]
    serve(calls(*(("Write", {"file_path": path, "content": "x"}) for path in turns)), DONE)
    assert ralph("go", "--add-dir", "../a,../b", "../c d", "../e,f").code == 0
    assert [(ralph.cwd / path).exists() for path in turns] == [True] * 4


ADVICE = "takes all words up to the next option: put the prompt before it, or after --"
MISUSES = {
    "no prompt is left": ("--allowedTools Read Bash", f"no prompt: --allowedTools {ADVICE}"),
    "a prompt was swallowed": ("--allowedTools Read 'fix the bug'", f"no prompt: --allowedTools {ADVICE}"),
    "by a list of directories": ("--add-dir . 'fix the bug'", f"no prompt: --add-dir {ADVICE}"),
    "lower case": ("x --disallowedTools bash", "no tool is called 'bash': did you mean Bash?"),
    "no word": ("x --tools", '--tools needs at least one value; --tools "" is an empty list'),
    "no directory": ("x --add-dir", "--add-dir needs at least one value; for none, leave it out"),
    "an empty directory": (
        "x --add-dir ''",
        "--add-dir: is empty: name a directory, or for none, leave it out",
    ),
    "empty servers": (
        "x --mcp-config ''",
        "--mcp-config is empty: name a file or give a JSON object,",
    ),
    "no word before an option": ("x --tools --model opus", "--tools needs at least one value"),
}


@contextmanager
def no_input() -> Iterator[None]:
    """Makes standard input /dev/null, whatever it is in the process of the tests."""
    kept, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(nothing)


@every_row("command", [(), ("loop",)])
@every_row(("typed", "says"), MISUSES.values())
def test_misuse_of_a_list_is_one_line_exits_2(ralph_here, serve, command, typed, says) -> None:
    server = serve(DONE)
    with no_input():
        ran = ralph_here(*command, *shlex.split(typed))
    assert (ran.code, ran.stdout, server.request_count, len(ran.stderr.splitlines())) == (2, "", 0, 1)
    assert says in ran.stderr


def test_with_a_pipe_the_words_are_all_tools_and_the_advice_says_where_a_prompt_goes(ralph, serve) -> None:
    server = serve(DONE)
    ran = ralph("--allowedTools", "Read", "fix it", stdin=b"more")
    assert (ran.code, server.request_count) == (2, 0)
    assert "no tool is called 'fix'" in ran.stderr
    assert f"(--allowedTools {ADVICE})" in ran.stderr


def test_a_session_that_continues_needs_no_prompt_beside_a_list(ralph, serve) -> None:
    server = serve(DONE)
    ran = ralph("-c", "--tools", "Read", "Bash")
    assert (ran.code, server.request_count) == (2, 0)
    assert "there is no session of" in ran.stderr


def test_an_iteration_has_the_tools_that_the_loops_list_leaves(ralph, iterations, tmp_path) -> None:
    server = iterations([])
    (tmp_path / "added").mkdir()
    words = ("--disallowedTools", "Bash", "Write", "--add-dir", "../added")
    ralph("loop", "--max-iterations", "1", *words, stdin=b"go", code=0)
    assert tools_of(server) == "Read Edit Glob Grep"
    assert sent_prompt(server).endswith("go")
