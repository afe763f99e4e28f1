"""`ralph help` with the pages of this tree. `tests/test_distribution.py` asks an installed ralph."""

from __future__ import annotations

import ast
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.help_page import PAGE, page
from ralph.cli.command_line import HELP_LINES
from ralph.cli.help_pages import show_page
from ralph.values.outcome import UsageError
from tests.rows import every_row
from tests.services.outside_programs import program_or_skip

ROOT = Path(__file__).parents[2]
PAGES = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"README"}


def test_every_page_is_listed_with_its_title(capsys) -> None:
    assert show_page() == 0
    listed = re.findall(r"^  ralph help (\S+) +(\S.*)$", capsys.readouterr().out, re.MULTILINE)
    assert len(listed) == len(PAGES)
    assert {name for name, _ in listed} == PAGES
    assert ("retry", "Retry") in listed


def test_the_pages_come_in_the_order_of_the_map_first_what_a_new_user_needs(capsys) -> None:
    assert show_page() == 0
    shown = capsys.readouterr().out
    assert shown.startswith(
        "Pages of the documentation; a new user needs the first ones:\n\nThe first run\n  ralph help using "
    )
    assert sorted(names := ["using", "loop", "settings", "sessions", "turns"], key=shown.index) == names


@every_row("topic", ["retry", "Retry", "retry.md", "docs/retry.md"])
def test_a_page_is_shown_and_its_links_name_pages(topic, capsys) -> None:
    assert show_page(topic) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Retry\n")
    assert "](" not in shown
    assert "(ralph help targets)" in shown


@every_row("page", sorted(PAGES))
def test_no_page_names_a_file_that_only_a_clone_has(page, capsys) -> None:
    assert show_page(page) == 0
    assert re.findall(r"specs/(?!README)[\w-]+\.md", capsys.readouterr().out) == []


@every_row(
    ("topic", "advice"),
    [
        ("sandbx", "did you mean `ralph help sandbox`?"),
        ("zzz", "`ralph help` lists the pages"),
        ("nothing", "`ralph help`"),
    ],
)
def test_an_unknown_topic_is_refused_with_the_way_out(topic, advice) -> None:
    with pytest.raises(UsageError, match=re.escape(f"there is no page `{topic}`: {advice}")):
        show_page(topic)


def test_on_a_terminal_a_pager_shows_the_page_and_its_end_ends_ralph(tmp_path) -> None:
    program_or_skip("less")
    parent, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ralph", "help", "retry"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(terminal)
    shown = b""
    while b"# Retry" not in shown:
        shown += os.read(parent, 4096)
    os.write(parent, b"q")
    with suppress(OSError):  # the terminal's last process has ended
        while more := os.read(parent, 4096):
            shown += more
    assert process.wait() == 0
    os.close(parent)
    assert b"## Troubleshooting" not in shown


def test_a_page_is_printed_whatever_the_encoding_of_the_terminal_and_without_a_working_directory(
    tmp_path,
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); from ralph.cli.command_line import run_cli; sys.exit(run_cli(['help', 'retry']))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=gone, env=environment, capture_output=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert "—".encode() in ran.stdout


def test_no_message_names_a_page_that_an_installation_does_not_have() -> None:
    """Messages say `ralph help NAME`. Docstrings of modules and comments are for readers of the code."""
    named = []
    for file in (ROOT / "ralph").rglob("*.py"):
        tree = ast.parse(file.read_text())
        said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
                named += [(file.name, page) for page in re.findall(r"\bdocs/[\w-]+\.md", node.value)]
                pages = re.findall(r"`ralph help ([a-z][\w-]+)`", node.value)
                assert set(pages) <= PAGES, file
    assert named == []


# --- The help of ralph itself


REPOSITORY = PAGE.parents[2]


def test_the_page_is_the_one_that_the_list_of_commands_makes() -> None:
    assert PAGE.read_text() == page(), "make generated"


def test_it_is_shown_without_typer_and_without_msgspec() -> None:
    code = "import sys; from ralph.cli.command_line import run_cli; run_cli(['--help', 'x']); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    shown, _, modules = ran.stdout.rstrip().rpartition("\n")
    assert shown == PAGE.read_text().rstrip()
    assert not {"typer", "msgspec"} & {*modules.split()}
    assert all(f"\n  {name}" in shown for name in HELP_LINES)


def test_a_mistyped_subcommand_is_answered_with_the_right_one() -> None:
    """In a process of its own, because typer gets a stand-in for `difflib` only where it is not loaded yet."""
    command = [sys.executable, "-m", "ralph", "sessions", "lss"]
    ran = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "ralph: No such command 'lss'. Did you mean 'ls'? (see `ralph sessions --help`)\n"
