"""Help pages are laid out in two columns, for terminals of all widths."""

from __future__ import annotations

from ralph.cli.command_page import command_page
from ralph.cli.help_page import help_page
from ralph.cli.line_command import LineCommand, Section
from tests.cli.lines import ExampleLine

PAGE = """\
Usage: ralph example [OPTIONS] [word]

  Do this.

  It takes words that are so many that a second line
  begins.

Arguments:
  word  A word.

Options:
  --tools, --Tools TOOLS...  Tools.
  --dir VALUE                Directories.
  --model VALUE              A model.
  -f, --file VALUE           A file.
  -n, --turns VALUE          A number.
  --price VALUE              A number.
  --form <text|json>         A form.  [default: text]
  -q, --quiet                Quiet.
  -h, --help                 Show this message and
                             exit.

Example:
  ralph example  --quiet"""


def example(_line: object, _typed: object) -> int:
    """Do this.

    It takes words that are so many
    that a second line begins.
    """
    return 0


def test_the_page_of_a_command_lists_its_parameters_with_their_values_and_defaults() -> None:
    command = LineCommand(
        "example",
        example,
        (Section(ExampleLine, unlisted=("plain",)),),
        epilog="\b\nExample:\n  ralph example  --quiet",
    )
    page = command_page(command, 55)
    assert page == PAGE.replace("\nExample", "\n  Example").replace("\n  ralph ex", "\n    ralph ex")


def test_a_long_name_has_a_line_of_its_own_and_no_option_is_cut() -> None:
    page = help_page(
        "x",
        "",
        {
            "None": [],
            "Options": [
                ("--a-name-of-more-than-thirty-letters", "--another-name-as-long-as-this-one: yes."),
                ("-q", "Quiet."),
            ],
        },
        columns=20,
    )
    assert page.splitlines()[2:] == [
        "Options:",
        "  --a-name-of-more-than-thirty-letters",
        *(" " * 6 + line for line in ("--another-name-as-long-as-this-one:", "yes.")),
        "  -q",
        "      Quiet.",
    ]


def test_at_forty_columns_a_meaning_stands_below_its_name_and_no_line_is_wider() -> None:
    rows = [
        ("--file PATH", "Read the task from a file, again for each iteration."),
        ("--a-rather-long-one VALUE", "A."),
    ]
    page = help_page("x", "Do this, and that, and then what is left to do.", {"Options": rows}, columns=40)
    assert "  --file PATH\n      Read the task " in page
    assert max(map(len, page.splitlines())) <= 40
