"""The command `ralph report`, with its options and its help."""

# No `from __future__ import annotations` here: typer reads the annotations.

from typing import Annotated

import typer

from ralph.cli.typer_command import option, typer_command
from ralph.cli.values import absolute, existing_directory, working_directory
from ralph.pages.command import write_report

PageFile = Annotated[
    str | None,
    option(
        "Write the page to this file; `-` is standard output. Default: ralph-report.html in this directory.",
        "FILE",
        "--output -o",
    ),
]
OpenFlag = Annotated[bool, option("Show the page in your browser.", spelled="--open")]


def report(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[SESSION|LOOP|DIR]",
            help="The id of a session or its first characters; `loop` or the number of a loop, such as 3; or a "
            "directory, for all its loops and sessions. Default: the newest loop of this directory, else its newest "
            "session.",
        ),
    ] = None,
    *,
    output: PageFile = None,
    open_: OpenFlag = False,
    session_dir: Annotated[
        str | None,
        option("Look in this directory instead of your state directory.", "DIR", reads=existing_directory),
    ] = None,
    directory: Annotated[
        str | None, option("Look at the loops and sessions of this directory.", "DIR", "--cd -C")
    ] = None,
) -> int:
    """Write one HTML page that shows what a loop or a session did.

    The page says how the work ended, what it cost, and what went wrong. It has the timeline, the checks, the commits
    with their diffs, the changed files and the transcript. It needs no network and runs only its own script.

    Works during a run, and after a crash. `ralph loop --report FILE` rewrites the page after each iteration.

    Exit codes: 0 written, 2 no such loop or session, 74 a journal cannot be read (the page shows what can be), 78 a
    newer ralph wrote it.
    """
    return write_report(
        what,
        working_directory(directory),
        absolute(output),
        is_opened=open_,
        session_directory=absolute(session_dir),
    )


COMMAND = typer_command("report", report)
