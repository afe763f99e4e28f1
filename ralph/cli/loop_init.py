"""The command `ralph loop init`, which writes the files that a new loop needs."""

# No `from __future__ import annotations` here: typer reads the annotations.

from typing import Annotated

import typer

from ralph.cli.typer_command import option, typer_command
from ralph.cli.values import working_directory
from ralph.values.outcome import CannotError, Outcome

_WHAT_NEXT = """
Next: say in specs/ what you want and in AGENTS.md how to build and test it. Then
  ralph loop -f PROMPT_plan.md --max-iterations 3
  ralph loop -f PROMPT_build.md --gate 'your tests' --plan IMPLEMENTATION_PLAN.md --commit --max-iterations 20
./loop.sh plan 3 and ./loop.sh build 20 are the same in short, without a gate and a plan that ends it."""


def init(
    *, directory: Annotated[str | None, option("Work in this directory.", "DIR", "--cd -C")] = None
) -> int:
    """Write files to begin a loop with: PROMPT_plan.md, PROMPT_build.md, AGENTS.md, specs/README.md and loop.sh.

    Existing files are left unchanged.
    """
    from ralph.loop.starter import write_starters  # noqa: PLC0415 - not needed for --help

    where = working_directory(directory)
    try:
        for starter in write_starters(where):
            kept = starter.kept_because
            typer.echo(f"wrote {starter.name}" if kept is None else f"kept {starter.name}, {kept}")
    except OSError as error:
        if error.filename is None:  # only an error of standard output has no file name
            raise
        raise CannotError(
            f"cannot write {where / error.filename}: {error.strerror}", Outcome.IO_ERROR
        ) from None
    typer.echo(_WHAT_NEXT)
    return 0


COMMAND = typer_command("loop init", init)
