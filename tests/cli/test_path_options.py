"""An empty path, as of a variable that is not set, is refused by every option of every command: it would mean the
current directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.cli.command_line import run_cli
from ralph.cli.typer_command import command_names, named_command
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator


def path_options() -> Iterator[tuple[str, str]]:
    for name in command_names():
        command: Any = named_command(name)
        subcommands = getattr(command, "commands", {"": command})
        for sub, one in subcommands.items():
            for option in one.params:
                kinds = set((option.metavar or "").removesuffix("...").split("|"))
                if option.opts[0].startswith("-") and kinds & {"PATH", "FILE", "DIR"}:
                    yield f"{name} {sub}".strip(), option.opts[0]


OPTIONS = [*path_options()]


@every_row(("command", "option"), OPTIONS)
def test_an_empty_path_is_exit_2_with_the_option(capfd, command: str, option: str) -> None:
    words = ["loop", command.removeprefix("loop ")] if command.startswith("loop ") else command.split()
    assert run_cli([*words, f"{option}=", *(["x"] if command in {"run", "loop"} else [])]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert option in said.err
    assert "is empty: " in said.err


def test_the_options_of_all_commands_are_looked_at() -> None:
    assert {
        ("run", "--session-dir"),
        ("loop", "--report"),
        ("doctor", "--cd"),
        ("loop ls", "--cd"),
        ("sessions export", "--session-dir"),
        ("fleet job", "--dir"),
        ("mock-api", "--record"),
    } <= {*OPTIONS}


@every_row("words", [("sessions", "ls"), ("sessions", "show"), ("sessions", "export"), ("report",)])
def test_a_command_that_looks_into_a_directory_that_is_not_there_is_exit_2_with_its_name(
    capfd, tmp_path, words: tuple[str, ...]
) -> None:
    assert run_cli([*words, "--session-dir", f"{tmp_path}/nowhere"]) == 2
    assert capfd.readouterr().err == f"ralph: --session-dir {tmp_path}/nowhere does not exist\n"
