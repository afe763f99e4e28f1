"""The flags of the table of settings: what they take, and what they give."""

from __future__ import annotations

from ralph.cli.setting_options import split_names
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
