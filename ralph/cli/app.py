"""The command line: what can be asked for, in typer's terms. It parses, hands over, and turns errors into one
line and an exit code. What a command does lives elsewhere.
"""

# No `from __future__ import annotations` here: typer would evaluate each annotation's text again, twice.

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from ralph.cli import options as opt
from ralph.cli.lists import prompt_not_in_list
from ralph.cli.loop import INIT, LOOP_EPILOG, init, loop
from ralph.cli.loop_command import LoopCommand
from ralph.cli.sessions import sessions
from ralph.cli.setting_options import SettingCommand, list_flags, setting_flags
from ralph.cli.values import (
    CannotError,
    absolute,
    check_partial_messages,
    check_settings,
    directories,
    report_wish,
    run_directories,
    session_options,
    text_or_file,
    uuid_text,
    writable_file,
)
from ralph.cli.values import permission_mode as permission_mode_of
from ralph.values.outcome import Outcome, UsageError
from ralph.values.shortage import ShortageError, line_with_advice, shortage_of

COMMANDS = ("run", "loop", "sessions", "doctor", "demo", "mock-api")

app = typer.Typer(
    name="ralph",
    help=(
        "Run a language-model agent in a directory, with nobody watching.\n\n"
        'ralph "fix the failing test" is short for ralph run "fix the failing test". '
        "ralph run --help lists the options; ralph demo shows it all without a key and without a network."
    ),
    epilog=(
        "Exit codes: 0 completed, 1 task failed by its report, 2 usage, 3 limit reached, 4 no progress, 69 API rejected, 70 bug, "
        "74 input/output, 75 API unavailable (try later), 77 authentication, 78 configuration, 124 time limit, "
        "128+n signal n."
    ),
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def run_cli(arguments: list[str]) -> int:
    """Parse and run; the exit code."""
    try:
        given, arguments = arguments, _with_command(arguments)
        is_command_inserted = len(arguments) > len(given)
        code = get_command(app).main(
            args=arguments, prog_name="ralph", standalone_mode=False, obj=is_command_inserted
        )
    except UsageError as error:
        return _complain(str(error), Outcome.USAGE.exit_code())
    except TyperException as error:
        command = arguments[0]
        hint = "see `ralph --help`" if command.startswith("-") else f"see `ralph {command} --help`"
        return _complain(f"{error.format_message().rstrip('.')} ({hint})", Outcome.USAGE.exit_code())
    except CannotError as error:
        return _complain(str(error), error.outcome.exit_code())
    except SystemExit:
        return 0  # typer's way to say that the reader of its help has left
    except (OSError, MemoryError, ImportError, RuntimeError) as error:
        shortage = shortage_of(error)
        if shortage is not None:
            return _complain_of(shortage)
        if not isinstance(error, OSError):
            raise
        return _complain(f"cannot write: {error.strerror}", Outcome.IO_ERROR.exit_code())
    return code if isinstance(code, int) else 0


def _with_command(arguments: list[str]) -> list[str]:
    """The command first: `run` where the first argument names none. Raises UsageError where it was meant to."""
    if arguments[:2] == INIT.split():
        return [INIT, *arguments[2:]]
    if arguments and arguments[0] in (*COMMANDS, "-h", "--help", "--version"):
        return arguments
    if arguments and not arguments[0].startswith("-"):
        _refuse_command_word(arguments)
    return ["run", *arguments]


def _refuse_command_word(arguments: list[str]) -> None:
    """Raises UsageError where the first of them was meant as a command."""
    if " " in arguments[0]:
        return
    from ralph.cli.command_words import instead_of  # noqa: PLC0415 - most prompts are sentences

    instead = instead_of(arguments, COMMANDS)
    if instead is not None:
        raise UsageError(instead)


def _complain(message: str, code: int) -> int:
    """One line. Somebody may have put a key where it does not belong: it is not repeated."""
    from ralph.values.credentials import known_secrets  # noqa: PLC0415 - not needed when all is well
    from ralph.values.redaction import Redactor  # noqa: PLC0415 - the same
    from ralph.values.screen_text import in_one_line  # noqa: PLC0415 - the same

    line = " ".join(in_one_line(message).split())
    with suppress(BrokenPipeError):  # a reader that left does not want to know
        sys.stderr.write(f"ralph: {Redactor(known_secrets(os.environ)).redact_all(line)}\n")
    return code


def _complain_of(shortage: ShortageError) -> int:
    """One line, for which nothing is loaded any more: that may be what cannot be done."""
    with suppress(OSError):
        os.write(2, f"ralph: {line_with_advice(shortage)}\n".encode())
    return Outcome.API_UNAVAILABLE.exit_code()


def _result_of(shortage: ShortageError, output_format: opt.OutputFormat) -> None:
    """The result of a run that could not even be loaded, as far as it has one. What it holds needs no escapes."""
    if output_format is opt.OutputFormat.TEXT:
        return
    outcome = Outcome.API_UNAVAILABLE
    line = (
        '{"type":"result","subtype":"error_during_execution","is_error":true,"num_turns":0,'
        f'"terminal_reason":"{outcome.value}","exit_code":{outcome.exit_code()},"errors":["{shortage}"]}}\n'
    )
    with suppress(OSError):
        os.write(1, line.encode())


@app.callback()
def _root(
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from ralph import __version__  # noqa: PLC0415

        typer.echo(f"ralph {__version__}")
        raise typer.Exit


@app.command(cls=SettingCommand, short_help="Do one task, from a prompt to an outcome (the default).")
def run(
    context: typer.Context,
    prompt: opt.Prompt = None,
    *,
    prompt_file: opt.PromptFile = None,
    print_: opt.PrintOption = False,
    input_format: opt.InputFormatOption = opt.InputFormat.TEXT,
    output_format: opt.OutputFormatOption = opt.OutputFormat.TEXT,
    include_partial_messages: opt.IncludePartialMessages = False,
    result_file: opt.ResultFile = None,
    metrics_file: opt.MetricsFile = None,
    otel: opt.Otel = False,
    quiet: opt.Quiet = False,
    system_prompt: opt.SystemPrompt = None,
    system_prompt_file: opt.SystemPromptFile = None,
    append_system_prompt: opt.AppendSystemPrompt = None,
    append_system_prompt_file: opt.AppendSystemPromptFile = None,
    json_schema: opt.JsonSchema = None,
    require_report: opt.RequireReport = False,
    directory: opt.Directory = None,
    add_dir: opt.AddDir = None,
    config: opt.Config = None,
    continue_: opt.Continue = False,
    resume: opt.Resume = None,
    fork_session: opt.ForkSession = False,
    session_id: opt.SessionId = None,
    session_dir: opt.SessionDir = None,
    no_session_persistence: opt.NoSessionPersistence = False,
    iteration: opt.Iteration = False,
    settings_fd: opt.SettingsDescriptor = None,
    dangerously_skip_permissions: opt.DangerouslySkipPermissions = False,
    permission_mode: opt.PermissionMode = None,
    verbose: opt.Verbose = False,
) -> int:
    """Do one task: ask the model, run its tools, repeat, until an outcome."""
    del dangerously_skip_permissions, verbose
    if context.obj and prompt and not print_:
        # Behind options it is known only now which word is the prompt.
        _refuse_command_word([prompt, *(["--continue"] if continue_ or resume else [])])
    try:
        from ralph.output.writer import OutputOptions  # noqa: PLC0415 - not needed for --help
        from ralph.run.command import run_command  # noqa: PLC0415 - the same
        from ralph.run.options import RunOptions  # noqa: PLC0415 - the same
    except (OSError, MemoryError, ImportError) as error:
        shortage = shortage_of(error)
        if shortage is not None:
            _result_of(shortage, output_format)
        raise

    check_partial_messages(is_asked=include_partial_messages, output_format=output_format)
    takes_messages = input_format is opt.InputFormat.STREAM_JSON
    if takes_messages and output_format is not opt.OutputFormat.STREAM_JSON:
        raise typer.BadParameter("stream-json needs --output-format stream-json", param_hint="--input-format")
    flags = setting_flags(context)
    has_prompt = (prompt, prompt_file, resume) != (None, None, None) or continue_ or takes_messages
    with prompt_not_in_list(context, has_prompt=has_prompt):
        writable = directories("--add-dir", add_dir)
        check_settings({name: flags[name] for name in list_flags()})
    return run_command(
        RunOptions(
            prompt=prompt,
            prompt_file=absolute(prompt_file),
            takes_messages=takes_messages,
            directory=directory,
            writable=writable,
            config_file=absolute(config),
            settings_descriptor=settings_fd,
            permission_mode=permission_mode_of(permission_mode),
            session=session_options(
                goes_on=continue_,
                resume=resume,
                forks=fork_session,
                session_id=uuid_text(session_id),
                directory=absolute(session_dir),
                is_kept=not no_session_persistence,
            ),
            system_prompt=text_or_file("system-prompt", system_prompt, system_prompt_file, directory),
            append_system_prompt=text_or_file(
                "append-system-prompt", append_system_prompt, append_system_prompt_file, directory
            ),
            report=report_wish(json_schema, directory, is_required=require_report),
            is_iteration=iteration,
            metrics_file=writable_file("--metrics-file", metrics_file, directory),
            exports_traces=otel,
            output=OutputOptions(
                output_format=output_format.value,
                include_partial=include_partial_messages,
                is_quiet=quiet,
                result_file=writable_file("--result-file", result_file, directory),
                directories=run_directories(directory),
            ),
            settings=flags,
        )
    )


app.command(
    "loop",
    cls=LoopCommand,
    short_help="The outer loop: fresh runs until a check passes.",
    epilog=LOOP_EPILOG,
)(loop)
app.command(INIT, hidden=True)(init)


@app.command(cls=SettingCommand, short_help="What is set, where that comes from, and what works.")
def doctor(
    context: typer.Context,
    *,
    config: opt.Config = None,
    directory: opt.Directory = None,
    session_dir: opt.SessionDir = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not try to reach the endpoints.")] = False,
) -> int:
    """Show the merged settings, each with where it comes from, then what works and what to do about the rest.

    The options that `ralph run` would be given count here too.

    No key is shown, and nothing is sent: an endpoint is only connected to. Exit 78 when a check says FAIL.
    """
    from ralph.cli.doctor import DoctorOptions, doctor_command  # noqa: PLC0415 - not needed for --help

    named = absolute(session_dir)
    flags = setting_flags(context)
    return doctor_command(
        DoctorOptions(
            settings=flags,
            directory=directory,
            config_file=absolute(config),
            session_directory=Path(named) if named else None,
            is_offline=offline,
        )
    )


app.add_typer(sessions, name="sessions", short_help="Look at what earlier runs did.")


@app.command(short_help="Watch it work: no key, no network, a scripted model.")
def demo(
    *,
    scenario: Annotated[
        opt.DemoScenario,
        typer.Option(
            "--scenario",
            help="fix: a rate limit, an overload and a broken stream on the way (6 s). fallback: an overloaded "
            "model, a spare one with two keys, and back (4 s). outage: a server that is away for a while, under "
            "--retry patient, a second for a minute (10 s). loop: `ralph loop` over three iterations, with an outage "
            "in the second, a second for a minute (7 s).",
        ),
    ] = opt.DemoScenario.FIX,
    speed: Annotated[
        float, typer.Option("--speed", metavar="FACTOR", help="Divide the waits for the API by this.")
    ] = 1.0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the demo's directory and say where it is.")
    ] = False,
) -> int:
    """The main job with no key and no network: real loop, HTTP and tools; the model is scripted."""
    from ralph.demo import run_demo  # noqa: PLC0415 - not needed for --help

    if not speed > 0:
        raise typer.BadParameter("must be greater than 0", param_hint="--speed")
    try:
        return run_demo(scenario=scenario, speed=speed, keep=keep, say=_say)
    except BlockingIOError as error:  # of the git that prepares the project
        raise ShortageError("process") from error


def _say(text: str) -> None:
    with suppress(BrokenPipeError):  # a reader that left does not stop the demo
        typer.echo(text)


def _examples() -> str:
    """Their names, from the directory: importing the server to ask it would slow every start down."""
    names = sorted(
        file.stem for file in (Path(__file__).parent.parent / "mock_api" / "scenarios").glob("*.toml")
    )
    quirks = [name.removeprefix("quirk-") for name in names if name.startswith("quirk-")]
    plain = [name for name in names if not name.startswith("quirk-")]
    return f"{', '.join(plain)}, or quirk-* (what other servers do: {', '.join(quirks)})"


@app.command("mock-api", short_help="Serve a scripted Messages API on 127.0.0.1.")
def mock_api(
    scenario: Annotated[
        str,
        typer.Argument(
            help="Scenario file (.toml or .json; docs/mock-api.md describes it), or the name of an example: "
            f"{_examples()}."
        ),
    ],
    *,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free port.")] = 0,
    record: Annotated[
        str | None,
        typer.Option("--record", metavar="PATH", help="Append each request to this file, as JSON lines."),
    ] = None,
) -> int:
    """A scripted Messages API server on 127.0.0.1, for tests and CI: answers and faults from a file."""
    from ralph import mock_api as server  # noqa: PLC0415 - not needed for --help

    is_example = scenario in server.example_names() and not Path(scenario).exists()
    try:
        script = server.load_example(scenario) if is_example else server.load_scenario(Path(scenario))
        server.run_forever(
            script,
            port=port,
            record=Path(record) if record else None,
            ready=lambda listening: typer.echo(f"listening on {listening.base_url}"),
        )
    except server.ScenarioError as error:
        raise typer.BadParameter(str(error), param_hint="SCENARIO") from None
    except OSError as error:
        what = (
            f"{error.filename}: {error.strerror}"
            if error.filename
            else f"port {port}: {error.strerror or error}"
        )
        return _complain(f"cannot serve: {what}", Outcome.IO_ERROR.exit_code())
    return 0
