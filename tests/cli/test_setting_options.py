"""The flags that are made from the table of settings: what they accept, and what value they give."""

from __future__ import annotations

import re

from typer.core import TyperOption

from ralph.cli.doctor import COMMAND as DOCTOR
from ralph.cli.loop import COMMAND as LOOP
from ralph.cli.run import COMMAND as RUN
from ralph.cli.settings_command import split_names
from ralph.settings.tables import ALL_KEYS
from tests.rows import every_row


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
