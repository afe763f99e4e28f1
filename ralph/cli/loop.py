"""The command `ralph loop`: its options, its help, and the combinations that it refuses.

It also takes most options of `ralph run`. Options that choose a session or a result file are refused, because the
loop itself chooses the session and the result file of each iteration.
"""

# No `from __future__ import annotations` here: the options are read from the annotations.

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from ralph.cli.command_line import IN_LOOP, NO_EFFECT, instead_of_in_loop, refuse_lone_word, wrong_value
from ralph.cli.run import (
    Directory,
    RunLine,
    check_output_is_open,
    refuse_contradictions,
    requested_report,
    text_or_file,
    writable_file,
)
from ralph.cli.settings_command import SettingsCommand, TypedLine, check_settings
from ralph.cli.typer_command import (
    COUNT,
    absolute,
    directories,
    json_or_path,
    option,
    prompt_not_in_list,
    refuse_file_as_prompt,
    run_directories,
    working_directory,
)
from ralph.loop import DEFAULT_CHECK_TIMEOUT_S, DEFAULT_PLAN_FILE
from ralph.loop.agents import KEPT_BY_THE_LOOP, agent_line, option_for_agent
from ralph.loop.command import loop_command
from ralph.loop.status import loop_status
from ralph.loop.values import LoopLimits, LoopOptions, LoopPlan, RequestedPrompt
from ralph.machine.process_start import is_piped
from ralph.places.gather import why_protected
from ralph.prompt.commands import find_commands
from ralph.prompt.judged_file import user_folder
from ralph.values.outcome import UsageError
from ralph.values.screen_text import time_limit
from ralph.values.setting import DURATION, POSITIVE_DOLLARS

_EPILOG = """\b
Examples:
  ralph loop init
  ralph loop -f PROMPT_plan.md --max-iterations 3
  ralph loop -f PROMPT_build.md --gate 'make test' --plan PLAN.md --commit
  ralph loop "make it fast" --until './benchmark.sh' --commit --model opus
  ralph loop --status --watch
  ralph loop ls
  ralph loop show

Exit codes: 0 done (gate, check and plan hold, as far as given; without check and
plan, the file .ralph/stop exists or all iterations have run),
3 iteration or budget limit, 4 no progress, 75 the API stayed unavailable, 124 time limit, 128+n signal n;
otherwise that of the iteration that stopped the loop: 2, 69, 70, 74, 77, 78."""

_STATUS_TAKES = "status json_ watch directory".split()
_CONTINUE_TAKES = "continue_ directory max_iterations max_budget_usd max_time base_url moved".split()
_CHOOSE_SERVER = "model.name model.base_url model.api model.fallback".split()

REFUSED = {
    "resume": "each iteration starts a new session; `ralph loop --continue` resumes a loop",
    "fork_session": "each iteration starts a new session; `ralph loop --continue` resumes a loop",
    "session_id": "each iteration has its own session and id",
    "no_session_persistence": "the loop resumes an iteration after an outage, so it needs the session",
    "iteration": "the loop sets it itself",
    "result_file": "the loop reads the results itself; `ralph loop --status --json` shows them",
}
"""The options of `ralph run` that `ralph loop` refuses, by parameter name. Each value is the reason for the refusal."""


class LoopLine(Struct, frozen=True, kw_only=True):
    prompt: Annotated[
        str | None,
        typer.Argument(
            None,
            metavar="PROMPT",
            help="The task of each iteration; `-` or none: read it once, from standard input.",
        ),
    ] = None
    prompt_file: Annotated[
        str | None, option("Read the task from a file, again for each iteration.", "PATH", "-f")
    ] = None
    agent: Annotated[
        str | None,
        option(
            "Another agent does each iteration: 'claude -p', 'codex exec', 'opencode run', 'pi -p', or any command that "
            "reads its task from standard input.",
            "CMD",
        ),
    ] = None
    until: Annotated[
        str | None,
        option(
            "The check: the loop is done when this shell command exits 0. It runs before the first iteration and "
            "after each one; if it fails, the next prompt begins with its output.",
            "CMD",
        ),
    ] = None
    gate: Annotated[
        str | None,
        option(
            "The gate: an iteration was good if this shell command exits 0. If it fails, the work is neither committed "
            "nor pushed, and the next prompt begins with its output.",
            "CMD",
        ),
    ] = None
    plan: Annotated[
        str | None,
        option("The loop is done when no task in this file is open (`- [ ]`) and the gate passes.", "FILE"),
    ] = None
    until_timeout: Annotated[
        float | None,
        option(
            f"Let a check or gate that takes longer fail. Default: {time_limit(DEFAULT_CHECK_TIMEOUT_S)}.",
            "TIME",
            reads=DURATION.decoded,
        ),
    ] = None
    at_least_once: Annotated[bool, option("Run an iteration even if everything is done already.")] = False
    max_iterations: Annotated[int | None, option("End after N iterations.", "N", reads=COUNT)] = None
    max_budget_usd: Annotated[
        float | None,
        option(
            "Spend at most this much over all iterations.",
            "USD",
            reads=partial(POSITIVE_DOLLARS.decoded, is_text=True),
        ),
    ] = None
    max_time: Annotated[
        float | None,
        option("End the loop after this time, waits included: 90s, 30m, 8h.", "TIME", reads=DURATION.decoded),
    ] = None
    commit: Annotated[bool, option("Commit the changes that an iteration left uncommitted.")] = False
    commit_red: Annotated[bool, option("With --gate and --commit: also commit work that fails the gate.")] = (
        False
    )
    push: Annotated[bool, option("Push after each iteration; a failed push is reported and tried again.")] = (
        False
    )
    plan_file: Annotated[
        str | None,
        option(f"A change to this file also counts as progress. Default: {DEFAULT_PLAN_FILE}.", "PATH"),
    ] = None
    report: Annotated[
        str | None,
        option(
            "Rewrite an HTML page about the loop after each iteration, as `ralph report` makes it.", "FILE"
        ),
    ] = None
    no_outage_waits: Annotated[
        bool,
        option(
            "If the API is unavailable, end with exit 75 at once; the caller tries again, with --continue."
        ),
    ] = False
    directory: Directory = None
    continue_: Annotated[
        bool,
        option(
            "Resume this directory's loop after a crash, a kill or a limit, with the same options; only the "
            "--max options and --base-url can be given again.",
            spelled="-c",
        ),
    ] = False
    moved: Annotated[
        bool,
        option("With --continue: resume the only loop of the state directory here, wherever it ran before."),
    ] = False
    status: Annotated[bool, option("Show the state of this directory's loop, and exit.")] = False
    json_: Annotated[bool, option("With --status: print the loop's whole record as one JSON object.")] = False
    watch: Annotated[bool, option("With --status: keep showing it until the loop ends.")] = False


_OWN = frozenset(LoopLine.__struct_fields__)


def loop(line: LoopLine, to_run: RunLine, typed: TypedLine) -> int:
    """Repeat one task, each time in a fresh `ralph run`, until a plan or a check says that all is done.

    Each iteration begins with what the last one left in the directory: code, commits, a plan file. The command of
    --gate says whether an iteration was good; the file of --plan or the command of --until says whether all is done.
    Git shows whether there was progress. The model decides none of it. If the API is down, the loop waits.

    Options of `ralph run` are passed to each iteration. `ralph loop init` writes starter files.
    """
    if line.status:
        _refuse_all_but(_STATUS_TAKES, typed, "--status takes only --cd, --json and --watch")
        return loop_status(working_directory(line.directory), is_json=line.json_, watches=line.watch)
    if line.watch:
        raise UsageError("--watch needs --status")
    if line.moved and not line.continue_:
        raise UsageError("--moved needs --continue")
    if line.json_:
        raise UsageError("--json needs --status; for results in JSON, use `ralph run --output-format json`")
    limits = LoopLimits(line.max_iterations, line.max_budget_usd, line.max_time)
    launch_directory, work_directory = working_directory(None), working_directory(line.directory)
    if line.continue_:
        says = "--continue uses the options that the loop began with, except limits and --base-url"
        _refuse_all_but(_CONTINUE_TAKES, typed, says)
        check_output_is_open()
        unsaid = LoopPlan(str(work_directory), str(launch_directory))
        base_url = to_run.flags["model.base_url"]
        check_settings({"model.base_url": base_url})
        given = None if base_url is None else str(base_url)
        return loop_command(
            LoopOptions(
                unsaid, continues=True, has_moved=line.moved, limits_given=limits, base_url_given=given
            )
        )
    plan = _plan(line, to_run, typed, LoopPlan(str(work_directory), str(launch_directory), limits=limits))
    check_output_is_open()
    return loop_command(
        LoopOptions(plan, requested_prompt=RequestedPrompt(line.prompt, absolute(line.prompt_file)))
    )


def _plan(line: LoopLine, to_run: RunLine, typed: TypedLine, bare: "LoopPlan") -> "LoopPlan":
    for one in typed.given:
        if one.name in REFUSED:
            raise UsageError(f"{one.spelling} cannot be used with `ralph loop`: {REFUSED[one.name]}")
    if to_run.input_format == "stream-json":
        raise UsageError(
            "--input-format stream-json cannot be used with `ralph loop`: no driver controls its iterations"
        )
    names_prompt = line.prompt is not None or line.prompt_file is not None
    with prompt_not_in_list(typed.last_list, has_prompt=names_prompt):
        added_directories = directories("--add-dir", to_run.add_dir)
        untrusted = run_directories(line.directory, added_directories)
        _check_values(to_run, untrusted)
    _check_conditions(line)
    if not to_run.print_:
        # The commands of a loop have none of its options but --cd, so a word beside one is not a mistyped command.
        is_alone = {one.name for one in typed.given} <= {"prompt", "directory"}
        _refuse_command_word(line.prompt, is_alone=is_alone)
    refuse_file_as_prompt(line.prompt, "ralph loop")
    _refuse_unknown_command(line.prompt, to_run, bare.directory)
    flags = to_run.flags
    mcp = flags["mcp.config"]
    return replace(
        bare,
        run_arguments=() if line.agent is not None else words_for_run(typed),
        agent=line.agent,
        agent_options=() if line.agent is None else _agent_options(line.agent, typed),
        server_flags={name: str(flags[name]) for name in _CHOOSE_SERVER if flags[name] is not None},
        config_file=absolute(to_run.config),
        mcp_files=tuple(word for word in mcp if word.startswith("/")) if isinstance(mcp, tuple) else (),
        claude_settings=json_or_path(to_run.claude_settings),
        setting_sources=tuple(sorted(to_run.sources)),
        report_file=_report_file(line.report, untrusted),
        metrics_file=absolute(to_run.metrics_file),
        added_directories=added_directories,
        pass_env=to_run.settings["tools.pass_env"] or (),
        sandbox={
            name: value
            for name, value in flags.items()
            if name.startswith(("sandbox.",) if line.agent else ("sandbox.", "tools.disallowed"))
            and isinstance(value, str | tuple)
        },
        notify=to_run.settings["notify.command"],
        is_quiet=to_run.quiet,
        session_directory=absolute(to_run.session_dir),
        gate=line.gate,
        until=line.until,
        plan=line.plan,
        check_timeout_s=line.until_timeout or DEFAULT_CHECK_TIMEOUT_S,
        at_least_once=line.at_least_once,
        commits=line.commit,
        commits_red=line.commit_red,
        pushes=line.push,
        waits_in_outages=not line.no_outage_waits,
        plan_file=line.plan_file or line.plan or DEFAULT_PLAN_FILE,
    )


def _report_file(report: str | None, untrusted: tuple[str, ...]) -> str | None:
    if report == "-":
        raise wrong_value("--report", "must be a file: it is rewritten after each iteration")
    path = writable_file("--report", report, untrusted)
    if path is None:
        return None
    problem = why_protected(path, untrusted, os.environ)
    if problem is not None:
        raise wrong_value("--report", problem)
    return path


def _agent_options(agent: str, typed: TypedLine) -> tuple[str, ...]:
    row = agent_line(agent).row
    words: list[str] = []
    for one in typed.given:
        is_kept = one.name in KEPT_BY_THE_LOOP and one.name not in row.options
        if one.name in _OWN or one.spelling in NO_EFFECT or is_kept:
            continue
        for word in one.words:
            _, has_value, value = word.partition("=")
            words += option_for_agent(row, one.name, one.spelling, value if has_value else None)
    return tuple(words)


def words_for_run(typed: TypedLine) -> tuple[str, ...]:
    """The options that the loop passes to `ralph run` in each iteration."""
    return tuple(word for one in typed.given if one.name not in _OWN for word in one.words)


def _refuse_all_but(allowed: list[str], typed: TypedLine, says: str) -> None:
    spellings = [one.spelling for one in typed.given if one.name not in allowed]
    if spellings:
        raise UsageError(f"{says}: leave out {', '.join(spellings)}")


def _check_conditions(line: LoopLine) -> None:
    if line.until is not None and not line.until.strip():
        raise wrong_value("--until", "is empty: give a command that exits 0 when all is done")
    if line.gate is not None and not line.gate.strip():
        raise wrong_value("--gate", "is empty: give a command that exits 0 if an iteration was good")
    has_command = line.until is not None or line.gate is not None
    if not has_command and line.until_timeout is not None:
        raise wrong_value("--until-timeout", "needs --until or --gate")
    if line.until is None and line.plan is None and line.at_least_once:
        raise wrong_value("--at-least-once", "needs --until or --plan")
    if line.commit_red and not (line.commit and line.gate is not None):
        raise wrong_value("--commit-red", "needs --gate and --commit")
    if None not in (line.plan, line.plan_file) and line.plan != line.plan_file:
        raise UsageError("--plan and --plan-file name different files: leave out --plan-file")


def _refuse_command_word(prompt: str | None, *, is_alone: bool) -> None:
    if prompt in IN_LOOP:
        raise UsageError(f"`ralph loop {prompt}` takes its options after `{prompt}`")
    if prompt is None or " " in prompt:
        return
    instead = instead_of_in_loop(prompt)
    if instead is not None:
        raise UsageError(instead)
    if is_alone and not is_piped():
        refuse_lone_word(prompt, "`ralph loop`", "ralph loop -p")


def _refuse_unknown_command(prompt: str | None, to_run: RunLine, directory: str) -> None:
    if prompt is None or not prompt.startswith("/") or to_run.disable_slash_commands:
        return
    cwd = Path(directory)
    why = find_commands(cwd, user_folder(os.environ, cwd), to_run.sources).why_unknown(prompt)
    if why is not None:
        raise UsageError(why)


def _check_values(to_run: RunLine, untrusted: tuple[str, ...]) -> None:
    check_settings(to_run.flags)
    refuse_contradictions(to_run)
    for name, text, file in (
        ("system-prompt", to_run.system_prompt, to_run.system_prompt_file),
        ("append-system-prompt", to_run.append_system_prompt, to_run.append_system_prompt_file),
    ):
        text_or_file(name, text, file, untrusted, takes_pipe=False)
    writable_file("--metrics-file", to_run.metrics_file, untrusted)
    writable_file("--debug-file", to_run.debug_file, untrusted)
    requested_report(to_run.json_schema, untrusted, is_required=False, takes_pipe=False)


_FIRST = """
prompt_file gate plan until max_iterations max_budget_usd max_time commit push agent model sandbox directory continue_ status watch
""".split()

COMMAND = SettingsCommand(
    "loop", loop, LoopLine, RunLine, epilog=_EPILOG, unlisted=REFUSED, first=_FIRST, ignored=NO_EFFECT
)
