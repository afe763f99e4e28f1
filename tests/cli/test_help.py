"""The help of ralph itself is made ahead, and names every command."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.help_page import PAGE, page
from ralph.cli.command_words import HELP_LINES

ROOT = PAGE.parents[2]


def test_the_page_is_the_one_that_the_list_of_commands_makes() -> None:
    assert PAGE.read_text() == page(), "make generated"


def test_it_is_shown_without_typer_and_without_msgspec() -> None:
    code = "import sys; from ralph.cli.app import run_cli; run_cli(['--help', 'x']); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    shown, _, modules = ran.stdout.rstrip().rpartition("\n")
    assert shown == PAGE.read_text().rstrip()
    assert not {"typer", "msgspec"} & {*modules.split()}
    assert all(f"\n  {name}" in shown for name in HELP_LINES)


def test_a_mistyped_subcommand_is_answered_with_the_right_one() -> None:
    """In a process of its own, because typer gets a stand-in for `difflib` only where it is not loaded yet."""
    command = [sys.executable, "-m", "ralph", "sessions", "lss"]
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "ralph: No such command 'lss'. Did you mean 'ls'? (see `ralph sessions --help`)\n"
