"""The commands `ralph loop init`, which writes the files that a new loop needs, and `ralph loop ls` and `ralph loop show`,
which look at recorded loops. `ralph report` writes the page of a loop or a session.
"""

from typing import Annotated

import typer

from ralph.cli.typer_command import absolute, existing_directory, option, typer_command, working_directory
from ralph.loop.starter import write_starters
from ralph.loop.status import list_loops, show_loop
from ralph.pages.command import write_report
from ralph.values.outcome import CannotError, Outcome

_WHAT_NEXT = """
Next: describe in specs/ what you want, and in AGENTS.md how to build and test it. Commit these files (--commit needs git).
Then run
  ralph doctor --probe
  ralph loop -f PROMPT_plan.md --max-iterations 3
  ralph loop -f PROMPT_build.md --gate 'your tests' --plan IMPLEMENTATION_PLAN.md --commit --max-iterations 20 --max-budget-usd 10
./loop.sh plan 3 and ./loop.sh build 20 run these loops, without --gate, --plan and a budget."""


def init(
    *, directory: Annotated[str | None, option("Work in this directory.", "DIR", "--cd -C")] = None
) -> int:
    """Write starter files for a loop: PROMPT_plan.md, PROMPT_build.md, AGENTS.md, specs/README.md and loop.sh.

    Existing files are left unchanged.
    """
    where = working_directory(directory)
    try:
        for name, kept in write_starters(where):
            typer.echo(f"wrote {name}" if kept is None else f"kept {name}, {kept}")
    except OSError as error:
        if error.filename is None:  # only an error of standard output has no file name
            raise
        raise CannotError(
            f"cannot write {where / error.filename}: {error.strerror}", Outcome.IO_ERROR
        ) from None
    typer.echo(_WHAT_NEXT)
    return 0


INIT = typer_command("loop init", init)


Directory = Annotated[str | None, option("Look at the loops of this directory.", "DIR", "--cd -C")]


def ls(*, directory: Directory = None) -> int:
    """List the loops of this directory, the newest first: id, begin, outcome, iterations, cost, task.

    The outcome is running for a loop that runs, and stopped for a loop that was killed.
    """
    return list_loops(working_directory(directory))


def show(
    number: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The number of the loop. Default: the newest.")
    ] = None,
    *,
    directory: Directory = None,
) -> int:
    """Show the story of one loop of this directory: its state, iterations, checks, and where its log is."""
    return show_loop(working_directory(directory), number)


LIST = typer_command("loop ls", ls)
SHOW = typer_command("loop show", show)


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


REPORT = typer_command("report", report)
