"""The flags that are made from the table of settings: what they accept, and what value they give."""

from __future__ import annotations

from ralph.cli.doctor import COMMAND as DOCTOR
from ralph.cli.loop import COMMAND as LOOP
from ralph.cli.run import COMMAND as RUN
from ralph.cli.setting_options import split_names
from ralph.settings.keys import ALL_KEYS
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
    spellings = [word for slots in command.slots() for slot in slots for word in slot.parameter.opts]
    assert len(spellings) == len(set(spellings))
    # `ralph doctor --sandbox` is another option, and tries the sandbox of the settings files.
    others = () if command is not DOCTOR else ("sandbox.",)
    assert {key.spelling for key in ALL_KEYS if key.flag and not key.name.startswith(others)} <= set(
        spellings
    )
