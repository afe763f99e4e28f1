"""Tests what values the words of `ralph run` and `ralph loop` give, and what is said about words that do not fit."""

from __future__ import annotations

import gc
import re

import pytest
from typer.core import TyperOption

import ralph.cli.loop
from ralph.cli.command_line import run_cli
from ralph.cli.doctor import COMMAND as DOCTOR
from ralph.cli.loop import COMMAND as LOOP
from ralph.cli.loop import LoopLine
from ralph.cli.run import COMMAND, RunLine, refuse_contradictions
from ralph.cli.run import COMMAND as RUN
from ralph.cli.settings_command import split_names
from ralph.machine.loading import put_off_garbage_collection
from ralph.settings.tables import ALL_KEYS
from ralph.values.outcome import UsageError
from tests.rows import every_row


def values(*words: str) -> dict[str, object]:
    """The fields and settings that the words set."""
    (line,), _ = COMMAND.read(words)
    assert isinstance(line, RunLine)
    plain = RunLine()
    fields = {name: getattr(line, name) for name in line.__struct_fields__ if name != "settings"}
    given = {name: value for name, value in fields.items() if value != getattr(plain, name)}
    return given | {name: value for name, value in line.settings.items() if value is not None}


VALUES = {
    "value that begins with a dash": (["--max-turns", "-5"], {"limits.max_turns": -5}),
    "value that is an option": (["--name", "--quiet"], {"name": "--quiet"}),
    "value that is --": (["--name", "--", "x"], {"name": "--", "prompt": "x"}),
    "empty value": (["--model="], {"model.name": ""}),
    "value with =": (["--model=a=b"], {"model.name": "a=b"}),
    "short option with =": (["-f=x"], {"prompt_file": "=x"}),
    "cluster that ends with a value": (["-qpn7"], {"quiet": True, "print_": True, "name": "7"}),
    "letters of a value": (["-fqp"], {"prompt_file": "qp"}),
    "the last of several counts": (["--max-turns=1", "--max-turns", "3"], {"limits.max_turns": 3}),
    "a wrong value that another replaces": (["--max-turns=x", "--max-turns=2"], {"limits.max_turns": 2}),
    "a list in two spellings": (
        ["--allowedTools=A", "--allowed-tools", "B,C"],
        {"tools.allowed": ("A", "B", "C")},
    ),
    "an empty list": (["--tools", "", "-q"], {"tools.exact": (), "quiet": True}),
    "a list that is one text": (["--fallback-model=a", "--fallback-model=b,c"], {"model.fallback": "a,b,c"}),
    "JSON is not a path": (["--mcp-config", "/x", '{"a": "b, c"}'], {"mcp.config": ("/x", '{"a": "b, c"}')}),
    "number": (["--max-budget-usd=1e3"], {"limits.max_budget_usd": 1000.0}),
    "choice": (["--effort=high"], {"model.effort": "high"}),
    "switch": (["--strict-mcp-config"], {"mcp.strict": True}),
    "word between options": (["-q", "x", "-p"], {"quiet": True, "prompt": "x", "print_": True}),
    "an optional value": (["--debug", "api", "x"], {"debug": True, "prompt": "x"}),
    "standard input": (["-"], {"prompt": "-"}),
    "empty word": ([""], {"prompt": ""}),
    "behind --": (["--", "--tools"], {"prompt": "--tools"}),
}


@every_row(("words", "expected"), VALUES.values())
def test_values_have_the_types_of_their_options(words, expected) -> None:
    assert values(*words) == expected


def test_an_option_of_both_commands_is_the_loops_and_all_others_are_for_run() -> None:
    (line, to_run), typed = LOOP.read(["-qf", "x", "--max-time", "1h", "--max-turns=3", "--tools", "Read"])
    assert isinstance(to_run, RunLine)
    assert line == LoopLine(prompt_file="x", max_time=3600.0)
    assert (to_run.prompt_file, to_run.quiet, to_run.settings["limits.max_turns"]) == (None, True, 3)
    assert "limits.max_time_s" not in to_run.settings
    assert {one.name: one.spelling for one in typed.given} == {
        "prompt_file": "--prompt-file",
        "max_time": "--max-time",
        "max_turns": "--max-turns",
        "tools": "--tools",
        "quiet": "--quiet",
    }
    assert typed.last_list == "--tools"


REFUSED = {
    "unknown": (["--restrictd"], "No such option: --restrictd (Possible options: --restricted"),
    "unlike any": (["--zzz=1"], "No such option: --zzz ("),
    "abbreviated": (["--permission-mod", "plan"], "No such option: --permission-mod"),
    "unknown letter": (["-qz"], "No such option: -z"),
    "a dash too many": (["---quiet"], "No such option: ---quiet (Possible options: "),
    "an unknown option before the help": (["--zzz", "--help"], "No such option: --zzz"),
    "unprintable": (["-\x1b"], r"No such option: -\x1b"),
    "no value": (["--model"], "Option '--model' requires an argument"),
    "no value, short": (["-qf"], "Option '-f' requires an argument"),
    "a value too many": (["--quiet=yes"], "Option '--quiet' does not take a value"),
    "no whole number": (
        ["--max-turns", "1.5"],
        "Invalid value for '--max-turns': '1.5' is not a whole number",
    ),
    "no number": (
        ["--max-budget-usd", "x"],
        "Invalid value for '--max-budget-usd': 'x' is not a number",
    ),
    "no choice": (["--effort=huge"], "Invalid value for '--effort': 'huge' is not one of 'low', 'medium'"),
    "the first wrong value": (["--effort=x", "--max-turns=x", "y", "z"], "Invalid value for '--effort': 'x'"),
    "words too many": (["x", "y", "--", "-q"], 'put the prompt in quotes: ralph "x y -q"'),
    "no word of a list": (["--tools"], '--tools needs at least one value; --tools "" is an empty list'),
}


@every_row(("words", "says"), REFUSED.values())
def test_words_that_do_not_fit_are_one_line_with_exit_2(capfd, words, says) -> None:
    assert run_cli(["run", *words]) == 2
    said = capfd.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"ralph: {says}")
    assert said.err.endswith("(see `ralph run --help`)\n")


@every_row("words", [["--help"], ["-qh"], ["x", "--effort", "huge", "y", "-h"]])
def test_the_help_may_be_asked_for_in_any_place(capfd, words) -> None:
    assert run_cli(["run", *words]) == 0
    assert capfd.readouterr().out.startswith("Usage: ralph run [OPTIONS] [PROMPT]\n")
    with pytest.raises(UsageError):
        COMMAND.read(words)


def test_garbage_is_collected_from_the_beginning_of_a_command_on(monkeypatch) -> None:
    seen: list[tuple[int, int, int]] = []

    def status(*_arguments: object, **_options: object) -> int:
        seen.append(gc.get_threshold())
        return 7

    monkeypatch.setattr(ralph.cli.loop, "loop_status", status)
    usual = gc.get_threshold()
    put_off_garbage_collection()
    try:
        put_off = gc.get_threshold()
        assert run_cli(["loop", "--status"]) == 7
        assert seen < [put_off]
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


STREAM = "--input-format stream-json --output-format stream-json"
CONTRADICTIONS = {
    "partial messages": ("--include-partial-messages", "--include-partial-messages: needs --output-format"),
    "messages": (
        "--input-format stream-json",
        "--input-format: stream-json needs --output-format stream-json",
    ),
    "hook events": ("--include-hook-events", "--include-hook-events: needs --output-format stream-json"),
    "replayed": ("--replay-user-messages", "--replay-user-messages: needs --input-format stream-json"),
    "another asker": (f"{STREAM} --permission-prompt-tool x", "ralph asks only the driver: use stdio, not x"),
    "nobody asks": (
        "--permission-prompt-tool stdio",
        "nobody can be asked without --input-format stream-json",
    ),
    "two sessions": ("-c --resume 0a", "--continue, --resume: give one of them"),
    "no id": ("--resume=", "--resume: needs the title of a session, or the beginning of its id"),
    "no original": ("--fork-session", "--fork-session: needs --continue or --resume"),
    "not there": ("--moved -c", "--moved: needs --resume"),
    "a second id": (f"-c --session-id {'0' * 32}", "--session-id: a resumed session keeps its id"),
    "not kept": (
        "-c --no-session-persistence",
        "--no-session-persistence: a resumed session is always saved",
    ),
}


@every_row(("words", "says"), CONTRADICTIONS.values())
def test_options_that_contradict_each_other_are_exit_2(capfd, words, says) -> None:
    assert run_cli(["run", "go", *words.split()]) == 2
    said = capfd.readouterr()
    assert (said.out, said.err.count("\n"), says in said.err) == ("", 1, True), said.err


@every_row(
    "words", ["-c --fork-session", f"-c --fork-session --session-id {'0' * 32}", "--resume x --moved", STREAM]
)
def test_options_that_need_each_other_are_taken_together(words) -> None:
    (line,), _ = COMMAND.read(words.split())
    assert isinstance(line, RunLine)
    refuse_contradictions(line)


# --- The flags of settings


@every_row(
    ("text", "names"),
    [
        ("", []),
        (" , ", []),
        ("Read", ["Read"]),
        ("Read,Edit Bash,,Grep", ["Read", "Edit", "Bash", "Grep"]),
        ("Bash(git add:*),Read", ["Bash(git add:*)", "Read"]),
        ("Bash(git", ["Bash(git"]),
        ("Bash(a) Bash(b)", ["Bash(a)", "Bash(b)"]),
        (")(", [")("]),
    ],
)
def test_names_are_split_outside_of_parentheses(text: str, names: list[str]) -> None:
    assert split_names(text) == names


@every_row("command", [RUN, LOOP, DOCTOR])
def test_each_flag_stands_once_among_the_options_of_a_command(command) -> None:
    spellings = [word for one in command.params for word in one.opts]
    assert len(spellings) == len(set(spellings))
    # `ralph doctor --sandbox` is another option, and tries the sandbox of the settings files.
    others = () if command is not DOCTOR else ("sandbox.",)
    assert {key.spelling for key in ALL_KEYS if key.flag and not key.name.startswith(others)} <= set(
        spellings
    )


@every_row("command", [RUN, LOOP, DOCTOR])
def test_each_spelling_is_a_word_or_a_letter(command) -> None:
    options = [one for one in command.params if isinstance(one, TyperOption)]
    spellings = [word for one in options for word in (*one.opts, *one.secondary_opts)]
    assert [word for word in spellings if not re.fullmatch(r"--[a-zA-Z][a-zA-Z-]+|-[a-zA-Z]", word)] == []
