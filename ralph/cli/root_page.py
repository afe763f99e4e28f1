"""Makes the page that `ralph --help` shows. No I/O happens here."""

from __future__ import annotations

from ralph.cli.commands import HELP_LINES
from ralph.cli.help_page import HELP_ROW, help_page

_DESCRIPTION = """
Run a language-model agent in a directory, with nobody watching.

ralph "fix the failing test" is short for ralph run "fix the failing test". ralph run --help lists the options; ralph demo
shows how ralph works, without a key or a network.
"""
_EPILOG = """
Exit codes: 0 completed, 1 task failed by its report, 2 usage, 3 limit reached, 4 no progress, 69 API rejected, 70 bug, 74
input/output, 75 API unavailable (try later), 77 authentication, 78 configuration, 124 time limit, 128+n signal n.
"""


def root_page(columns: int) -> str:
    """The page for a terminal that is `columns` wide."""
    sections = {
        "Options": [("--version", "Print the version and exit."), HELP_ROW],
        "Commands": [*HELP_LINES.items()],
    }
    return help_page("ralph [OPTIONS] COMMAND [ARGS]...", _DESCRIPTION, sections, _EPILOG, columns=columns)
