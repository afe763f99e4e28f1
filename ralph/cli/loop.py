"""`ralph loop` in typer's terms: its own options, the help that teaches them, and what cannot be meant together.

Refuses options of `ralph run` that choose a session or a result: both are the loop's.
"""

# No `from __future__ import annotations` here: typer would evaluate each annotation's text again, twice.

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ralph.cli import options as opt
from ralph.cli.lists import prompt_not_in_list
from ralph.cli.loop_command import REFUSED, ForRun, LoopCommand, for_run
from ralph.cli.setting_options import names, setting_flags
from ralph.cli.values import (
    CannotError,
    absolute,
    check_partial_messages,
    check_settings,
    directories,
    duration,
    permission_mode,
    report_wish,
    text_or_file,
    whole,
    working_directory,
    writable_file,
)
from ralph.loop.defaults import DEFAULT_CHECK_TIMEOUT_S, DEFAULT_PLAN_FILE
from ralph.values.outcome import Outcome, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.loop.values import LoopLimits

INIT = "loop init"
"""One command to typer: `loop` takes a prompt where a group would take the name of a command."""

LOOP_EPILOG = """\b
Examples:
  ralph loop init
  ralph loop -f PROMPT_plan.md --max-iterations 3
  ralph loop -f PROMPT_build.md --until 'make test' --commit --model opus
  ralph loop --status

Exit codes: 0 done (the check passed, the file .ralph/stop is there or, without --until, all iterations were made),
3 iteration or budget limit, 4 no progress, 75 the API did not come back, 124 time limit, 128+n signal n;
else that of the iteration that stopped it: 2, 69, 70, 74, 77, 78."""

_WHAT_NEXT = """
Next: say in specs/ what you want and in AGENTS.md how to build and test it. Then
  ralph loop -f PROMPT_plan.md --max-iterations 3
  ralph loop -f PROMPT_build.md --until 'your tests' --commit --max-iterations 20
./loop.sh plan 3 and ./loop.sh build 20 are the same in short, without a check."""

_STATUS_TAKES = ("status", "json_", "directory")
_CONTINUE_TAKES = ("continue_", "directory", "max_iterations", "max_budget_usd", "max_time")


def loop(
    context: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="The task of each iteration. `-`, or nothing: read it from standard input, once.",
            show_default=False,
        ),
    ] = None,
    *,
    prompt_file: Annotated[
        str | None,
        typer.Option(
            "--prompt-file", "-f", metavar="PATH", help="The task, from a file: read anew for each iteration."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="CMD",
            help="Done when this shell command exits 0. It runs before the first iteration and after each; "
            "what it says when it fails opens the next prompt.",
        ),
    ] = None,
    until_timeout: Annotated[
        str | None,
        typer.Option(
            "--until-timeout", metavar="TIME", help="A check that takes longer failed. Default: 30m."
        ),
    ] = None,
    at_least_once: Annotated[
        bool, typer.Option("--at-least-once", help="Iterate although the check passes already.")
    ] = False,
    max_iterations: Annotated[
        int | None, typer.Option("--max-iterations", metavar="N", help="End after N iterations.")
    ] = None,
    max_budget_usd: Annotated[
        float | None,
        typer.Option("--max-budget-usd", metavar="USD", help="Never spend more, over all iterations."),
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option("--max-time", metavar="TIME", help="End the loop after 90s, 30m, 8h, waits included."),
    ] = None,
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit what an iteration left uncommitted.")
    ] = False,
    push: Annotated[
        bool, typer.Option("--push", help="Push after each iteration; a failure is told and tried again.")
    ] = False,
    plan_file: Annotated[
        str | None,
        typer.Option(
            "--plan-file",
            metavar="PATH",
            help=f"A change of this file is progress too. Default: {DEFAULT_PLAN_FILE}.",
        ),
    ] = None,
    directory: opt.Directory = None,
    continue_: Annotated[
        bool,
        typer.Option(
            "--continue",
            "-c",
            help="Go on with this directory's loop after a crash, a kill or a limit, as it was asked for; the "
            "--max options may be given anew.",
        ),
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show how this directory's loop is doing, and exit.")
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="With --status: the whole record, as one JSON object.")
    ] = False,
) -> int:
    """Do one task again and again, each time by a fresh `ralph run`, until a check says that it is done.

    What an iteration leaves in the directory (code, commits, a plan file) is what the next one begins with. Done is
    what --until says and progress what git sees, never what the model says; an API that is down is waited for.

    The options of `ralph run` go to each iteration. `ralph loop init` writes prompts to begin with.
    """
    from ralph.loop.command import loop_command  # noqa: PLC0415 - the same
    from ralph.loop.options import LoopOptions, RequestedPrompt  # noqa: PLC0415 - the same
    from ralph.loop.values import LoopPlan  # noqa: PLC0415 - not needed for --help

    to_run = for_run(context)
    if status:
        _refuse_all_but(_STATUS_TAKES, context, to_run, "--status shows the loop of a directory (--cd)")
        from ralph.loop.status import loop_status  # noqa: PLC0415 - not needed for a loop

        return loop_status(working_directory(directory), is_json=json_)
    if json_:
        raise UsageError("--json goes with --status; `ralph run` has --output-format json")
    limits = _limits(max_iterations, max_budget_usd, max_time)
    launch_directory, work_directory = working_directory(None), working_directory(directory)
    if continue_:
        _refuse_all_but(
            _CONTINUE_TAKES, context, to_run, "--continue takes all but limits from the loop's record"
        )
        unsaid = LoopPlan(str(work_directory), str(launch_directory))
        return loop_command(LoopOptions(unsaid, continues=True, limits_given=limits))
    _refuse_what_is_the_loops(to_run)
    with prompt_not_in_list(context, has_prompt=prompt is not None or prompt_file is not None):
        added_directories = _check_values(setting_flags(context), to_run.values, directory)
    check_timeout_s = _check_timeout_s(until, until_timeout, at_least_once=at_least_once)
    if plan_file is not None and not plan_file.strip():
        raise typer.BadParameter("is empty", param_hint="--plan-file")
    if prompt == "init":
        raise UsageError("`ralph loop init` takes its options after `init`")
    if prompt is not None and " " not in prompt:
        _refuse_command_word(prompt)
    plan = LoopPlan(
        directory=str(work_directory),
        launch_directory=str(launch_directory),
        run_arguments=to_run.arguments,
        config_file=absolute(to_run.values["config"]),
        metrics_file=absolute(to_run.values["metrics_file"]),
        added_directories=added_directories,
        pass_env=names(to_run.values["pass_env"] or []),
        is_quiet=to_run.values["quiet"],
        session_directory=absolute(to_run.values["session_dir"]),
        until=until,
        check_timeout_s=check_timeout_s,
        at_least_once=at_least_once,
        commits=commit,
        pushes=push,
        plan_file=plan_file or DEFAULT_PLAN_FILE,
        limits=limits,
    )
    return loop_command(LoopOptions(plan, requested_prompt=RequestedPrompt(prompt, absolute(prompt_file))))


def _refuse_all_but(allowed: tuple[str, ...], context: typer.Context, to_run: ForRun, says: str) -> None:
    assert isinstance(context.command, LoopCommand)  # noqa: S101 - `cli/app.py` says so
    own = context.command.given(context)
    spellings = [spelling for name, spelling in own.items() if name not in allowed]
    spellings += to_run.given.values()
    if spellings:
        raise UsageError(f"{says}: leave out {', '.join(spellings)}")


def _limits(max_iterations: int | None, max_budget_usd: float | None, max_time: str | None) -> "LoopLimits":
    from ralph.loop.values import LoopLimits  # noqa: PLC0415 - not needed for --help

    check_settings({"limits.max_budget_usd": max_budget_usd})  # by the rule for a run
    return LoopLimits(
        whole("--max-iterations", max_iterations),
        max_budget_usd,
        duration("--max-time", max_time),
    )


def _check_timeout_s(until: str | None, timeout: str | None, *, at_least_once: bool) -> float:
    if until is not None and not until.strip():
        raise typer.BadParameter(
            "is empty: give a command that exits 0 when all is done", param_hint="--until"
        )
    if until is None and timeout is not None:
        raise typer.BadParameter("needs --until", param_hint="--until-timeout")
    if until is None and at_least_once:
        raise typer.BadParameter(
            "needs --until, whose first check it overrules", param_hint="--at-least-once"
        )
    return duration("--until-timeout", timeout) or DEFAULT_CHECK_TIMEOUT_S


def _refuse_command_word(prompt: str) -> None:
    from ralph.cli.command_words import instead_of_in_loop  # noqa: PLC0415 - few prompts are one word

    instead = instead_of_in_loop(prompt)
    if instead is not None:
        raise UsageError(instead)


def _refuse_what_is_the_loops(to_run: ForRun) -> None:
    for name, spelling in to_run.given.items():
        if name in REFUSED:
            raise UsageError(f"{spelling} is not for a loop: {REFUSED[name]}")
    if to_run.values["input_format"] == opt.InputFormat.STREAM_JSON:
        raise UsageError("--input-format stream-json is not for a loop: nobody steers its iterations")


def _check_values(
    flags: "Mapping[str, object]", values: "Mapping[str, Any]", directory: str | None
) -> tuple[str, ...]:
    """As `ralph run` will, in an iteration: what it would refuse there is refused before anything is spent.

    `flags`: of settings. `directory`: that of `--cd`. Each iteration reads its files again, and a pipe can be read once.
    Gives the directories that an iteration may write to besides the working directory.
    """
    check_settings(flags)
    check_partial_messages(is_asked=values["include_partial_messages"], output_format=values["output_format"])
    for name in ("system", "append_system"):
        text, file = values[f"{name}_prompt"], values[f"{name}_prompt_file"]
        text_or_file(f"{name.replace('_', '-')}-prompt", text, file, directory, takes_pipe=False)
    permission_mode(values["permission_mode"])
    writable = directories("--add-dir", values["add_dir"])
    writable_file("--metrics-file", values["metrics_file"], directory)
    report_wish(values["json_schema"], directory, is_required=False, takes_pipe=False)
    return writable


def init(*, directory: opt.Directory = None) -> int:
    """Write files to begin a loop with: PROMPT_plan.md, PROMPT_build.md, AGENTS.md, specs/README.md and loop.sh.

    What is there already is left as it is.
    """
    from ralph.loop.starter_files import write_starters  # noqa: PLC0415 - not needed for --help

    where = working_directory(directory)
    try:
        for starter in write_starters(where):
            kept = starter.kept_because
            typer.echo(f"wrote {starter.name}" if kept is None else f"kept {starter.name}, {kept}")
    except OSError as error:
        if error.filename is None:  # standard output
            raise
        raise CannotError(
            Outcome.IO_ERROR, f"cannot write {where / error.filename}: {error.strerror}"
        ) from None
    typer.echo(_WHAT_NEXT)
    return 0
