"""Makes `ralph/cli/help.txt`, which `ralph --help` prints. `make generated` writes the file; `tests/cli/test_help.py`
compares it. It is made ahead, because the import of typer takes longer than all the rest of `ralph --help`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from ralph.cli.command_line import HELP_LINES
from ralph.cli.typer_command import HELP_OPTIONS

PAGE = Path(__file__).parent.parent / "ralph" / "cli" / "help.txt"
_COLUMNS = 80
_EPILOG = """
Exit codes: 0 completed, 1 task failed by its report, 2 usage, 3 limit reached, 4 no progress, 69 API rejected, 70 bug, 74
input/output, 75 API unavailable (try later), 77 authentication, 78 configuration, 124 time limit, 128+n signal n.
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, epilog=_EPILOG)


@app.callback()
def ralph(
    *, version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False
) -> None:
    """Run a language-model agent in a directory, with nobody watching.

    ralph "fix the failing test" is short for ralph run "fix the failing test". ralph run --help lists the options;
    ralph demo shows how ralph works, without a key or a network.
    """


for _name, _line in HELP_LINES.items():
    app.command(_name, short_help=_line)(lambda: None)


def page() -> str:
    """The help page of ralph itself, for a terminal of 80 columns."""
    group: Any = get_command(app)
    context = group.context_class(
        group, info_name="ralph", help_option_names=HELP_OPTIONS, terminal_width=_COLUMNS - 2
    )
    return f"{group.get_help(context)}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
