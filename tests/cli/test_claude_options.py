"""Every option of Claude Code works, is accepted without effect, or is refused with what to use instead.

The rows are those of `docs/from-claude.md`, so that the page and the command line cannot differ.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.core import TyperOption

from ralph.cli.command_line import INSTEAD, run_cli
from ralph.cli.run import COMMAND
from ralph.values.outcome import UsageError
from tests.rows import every_row

PAGE = Path(__file__).parents[2] / "docs/from-claude.md"

# The words of a command line, by what ralph does with them. `-p hi` follows each.
WORKS = """
-p|--print|--output-format json|--input-format stream-json|--include-partial-messages|--model opus
--fallback-model a,b|--effort high|--max-turns 3|--max-budget-usd 1|-c|--continue|-r abc|--resume abc|--resume=abc
--session-id 0a1b2c3d-0000-4000-8000-000000000000|--fork-session|--no-session-persistence|--system-prompt x|--system-prompt-file x
--append-system-prompt x|--append-system-prompt-file x|--json-schema {}|--add-dir A B|--allowedTools Read Edit
--allowed-tools Read|--disallowedTools Read Edit|--disallowed-tools Read|--tools Read Edit|--tools=|--tools default
--betas A B|--permission-mode plan|--setting-sources user,project|--setting-sources=|--disable-slash-commands
--mcp-config A B|--strict-mcp-config|--bare|--safe-mode|--restricted|-n x|--name x|-d|--debug|--debug=api|--debug-file x
--settings {}|--permission-prompt-tool stdio|--permission-prompts none|--permission-prompts host|--dangerously-skip-permissions
--replay-user-messages|--include-hook-events
"""
NO_EFFECT = """
-p|--allow-dangerously-skip-permissions|--verbose|--no-chrome|--ide|--brief
--ax-screen-reader|--forward-subagent-text|--prompt-suggestions|--prompt-suggestions=false
--exclude-dynamic-system-prompt-sections|--system-prompt-snapshot on|--autocompact auto
"""
REFUSED = """
-w|--worktree x|--from-pr 1|--bg|--background|--tmux|--tmux=classic|--chrome|--cloud|--remote-control|--teleport
--desktop|--agent x|--agents {}|--plugin-dir x|--plugin-url x|--file a:b|--environment x|--thinking-display full
--thinking adaptive|--max-thinking-tokens 5|--task-budget 5|--resume-session-at x|--resume-drops-turn x
--session-mirror|--await-initialize|--remote-control-session-name-prefix x|--plugin-dir-no-mcp x
--channels x|--initialize-fields settings|--managed-settings {}|--managed-settings-in-initialize
--project-config-root x
"""


def rows(text: str) -> list[str]:
    return [row for line in text.split("\n") for row in line.split("|") if row]


def parse(row: str) -> None:
    COMMAND.read([*row.split(" "), "-p", "hi"])


@every_row("row", [*rows(WORKS), *rows(NO_EFFECT)])
def test_a_line_of_claude_code_is_read(row: str) -> None:
    parse(row)


@every_row("row", rows(NO_EFFECT))
def test_what_has_no_effect_is_one_line_of_the_help(row: str, capsys) -> None:
    spelling = re.split("[ =]", row)[0]
    (option,) = [one for one in COMMAND.params if spelling in one.opts]
    assert isinstance(option, TyperOption)
    assert option.hidden
    assert run_cli(["run", "--help-all"]) == 0
    _, line = " ".join(capsys.readouterr().out.split()).split("Accepted without effect, for scripts: ")
    assert spelling in line


@every_row("row", rows(REFUSED))
def test_what_ralph_does_not_have_says_what_to_use_instead(row: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(row)
    spelling = re.split("[ =]", row)[0]
    assert str(refused.value) == (
        f"{spelling} is an option of Claude Code that ralph does not have: {INSTEAD[spelling]}"
    )


@every_row(
    ("words", "says"),
    [
        (
            "run --until x",
            "--until is an option of `ralph loop`, not of `ralph run` (see `ralph loop --help`)",
        ),
        ("doctor --max-iterations 3", "--max-iterations is an option of `ralph loop`, not of `ralph doctor`"),
        ("loop --probe", "--probe is an option of `ralph doctor`, not of `ralph loop`"),
        (
            "sessions show --format md",
            "--format is an option of `ralph sessions ls` and `ralph sessions export`, not",
        ),
        (
            "run --all",
            "--all is an option of `ralph sessions ls` and `ralph sessions search`, not of `ralph run`",
        ),
        (
            "sessions ls --model x",
            "--model is an option of `ralph run` and `ralph loop`, not of `ralph sessions ls`",
        ),
        (
            "run --yolo",
            "--yolo is an option of other agents that ralph does not have: ralph never asks for permission and allows all tools",
        ),
        (
            "run -m x",
            "-m is an option of other agents that ralph does not have: --model NAME sets the model",
        ),
        (
            "run --full-auto",
            "--full-auto is an option of other agents that ralph does not have: ralph never asks",
        ),
        (
            "run -s abc",
            "-s is an option of other agents that ralph does not have: --resume ID resumes a",
        ),
        (
            "run --json",
            "--json is an option of other agents that ralph does not have: use --output-format json or",
        ),
        ("report --json", "--json is an option of `ralph loop` and `ralph doctor`, not of `ralph report`"),
        (
            "loop --image x.png",
            "--image is an option of other agents that ralph does not have: name the file in",
        ),
        (
            "doctor --agents {}",
            "--agents is an option of Claude Code that ralph does not have: ralph has no subagents",
        ),
    ],
)
def test_an_option_that_stands_elsewhere_is_exit_2_with_advice(capfd, words, says) -> None:
    assert run_cli(words.split()) == 2
    said = capfd.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"ralph: {says}")


def test_every_refusal_is_tried() -> None:
    assert {re.split("[ =]", row)[0] for row in rows(REFUSED)} == {*INSTEAD}


def spellings(cell: str) -> set[str]:
    return {
        word
        for code in re.findall(r"`([^`]+)`", cell)
        for word in re.findall(r"(?<!\S)--?[A-Za-z][\w-]*", code)
    }


def test_the_page_has_a_row_for_every_option() -> None:
    on_page = {
        spelling
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `-")
        for spelling in spellings(line.split("|")[1])
    }
    tried = {re.split("[ =]", row)[0] for text in (WORKS, NO_EFFECT, REFUSED) for row in rows(text)}
    assert tried - on_page == set()
    assert on_page - tried == {"--version", "-v"}
