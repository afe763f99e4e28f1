"""`ralph run`: its options and those of `ralph doctor`, each a field with spelling, help and type, the options of a run that come of
them, and the start of the run. Flags of settings are made from the tables of settings.
"""

# No `from __future__ import annotations` here: the options are read from the annotations.

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from uuid import UUID

import typer
from msgspec import Struct

from ralph.cli.command_line import NO_EFFECT, refuse_command_word, refuse_lone_word, wrong_value
from ralph.cli.settings_command import SettingsCommand, TypedLine, check_settings
from ralph.cli.typer_command import (
    absolute,
    directories,
    json_or_path,
    option,
    prompt_not_in_list,
    refuse_file_as_prompt,
    run_directories,
)
from ralph.machine.process_start import is_piped
from ralph.output.result_file import result_file_problem
from ralph.output.standard_streams import has_closed_output
from ralph.output.writer import OutputOptions
from ralph.prompt.judged_file import ALL_SOURCES, argument_text, prompt_text, read_named_file
from ralph.run.options import RequestedReport, RunOptions, SessionOptions
from ralph.values.controls import LONGEST_TITLE, PermissionMode
from ralph.values.controls import permission_mode as mode_named
from ralph.values.outcome import CannotError, Outcome, ShortageError, shortage_of

if TYPE_CHECKING:
    from ralph.settings.handover import LoopHandover


def sources_named(text: str) -> frozenset[str]:
    """The sources that `--setting-sources` names, separated by commas. Raises ValueError if one is unknown."""
    names = frozenset(name.strip() for name in text.split(",")) - {""}
    unknown = sorted(names - ALL_SOURCES)
    if unknown:
        known = ", ".join(sorted(ALL_SOURCES))
        raise ValueError(f"takes {known}, separated by commas, not {unknown[0]!r}")
    return names


def title(text: str) -> str:
    """The title of a session in one line. Raises ValueError if it is empty or too long."""
    words = " ".join(text.split())
    if not 0 < len(words) <= LONGEST_TITLE:
        raise ValueError(f"must have 1 to {LONGEST_TITLE} characters")
    return words


Directory = Annotated[str | None, option("Work in this directory.", "DIR", "--cd -C")]
Config = Annotated[str | None, option("Read this settings file too, trusted like flags.", "FILE", "--config")]
SessionDir = Annotated[str | None, option("Keep sessions in this directory.", "DIR", "--session-dir")]


class RunLine(Struct, frozen=True, kw_only=True):
    prompt: Annotated[
        str | None,
        typer.Argument(None, metavar="PROMPT", help="The task; `-` or none: read it from standard input."),
    ] = None
    prompt_file: Annotated[str | None, option("Read the task from a file.", "PATH", "-f")] = None
    print_: Annotated[bool, option("Accepted without effect.", spelled="-p", hidden=True)] = False
    settings: dict[str, object] = {}
    input_format: Annotated[
        Literal["text", "stream-json"],
        option("stream-json: messages and control requests on standard input, as JSON lines."),
    ] = "text"
    output_format: Annotated[Literal["text", "json", "stream-json"], option("Format of standard output.")] = (
        "text"
    )
    include_partial_messages: Annotated[
        bool, option("With stream-json: also print the raw stream events.")
    ] = False
    include_hook_events: Annotated[
        bool, option("With stream-json: also report when command hooks start and end.")
    ] = False
    replay_user_messages: Annotated[
        bool, option("With --input-format stream-json: also print each message when work on it begins.")
    ] = False
    result_file: Annotated[str | None, option("Also write the result object to this file.", "PATH")] = None
    metrics_file: Annotated[
        str | None, option("Write metrics to this file every minute, in Prometheus' text format.", "PATH")
    ] = None
    otel: Annotated[bool, option("Export a trace over OTLP. Needs the extra otel.")] = False
    quiet: Annotated[bool, option("Print only errors and the outcome to standard error.", spelled="-q")] = (
        False
    )
    system_prompt: Annotated[str | None, option("Replace ralph's own system prompt.", "TEXT")] = None
    system_prompt_file: Annotated[str | None, option("Like --system-prompt, from a file.", "PATH")] = None
    append_system_prompt: Annotated[str | None, option("Add to the system prompt.", "TEXT")] = None
    append_system_prompt_file: Annotated[
        str | None, option("Like --append-system-prompt, from a file.", "PATH")
    ] = None
    json_schema: Annotated[
        str | None, option("Require a final report whose payload matches this JSON Schema.", "JSON|FILE")
    ] = None
    require_report: Annotated[bool, option("Require a final report: success or failure, and a summary.")] = (
        False
    )
    directory: Directory = None
    add_dir: Annotated[
        tuple[str, ...], option("Also let Write and Edit change files in these directories.", "DIR...")
    ] = ()
    config: Config = None
    continue_: Annotated[bool, option("Resume the last session of this directory.", spelled="-c")] = False
    resume: Annotated[
        str | None, option("Resume this session: the first characters of its id, or its title.", "ID", "-r")
    ] = None
    fork_session: Annotated[
        bool, option("With -c or -r: resume a copy, and leave the session itself unchanged.")
    ] = False
    moved: Annotated[
        bool,
        option("With -r: resume the session here, even if its own directory still exists."),
    ] = False
    session_id: Annotated[UUID | None, option("The id of the new session.", "UUID")] = None
    session_dir: SessionDir = None
    no_session_persistence: Annotated[bool, option("Save no session: the run cannot be resumed.")] = False
    iteration: Annotated[int | None, option("An outer loop hands its values over there.", hidden=True)] = None
    dangerously_skip_permissions: Annotated[
        bool,
        option("Same as --permission-mode bypassPermissions, the default unless a driver is asked."),
    ] = False
    claude_settings: Annotated[
        str | None,
        option(
            "Permission rules and hooks in the form of Claude Code's settings, in addition to those of its files.",
            "FILE|JSON",
            "--settings",
        ),
    ] = None
    setting_sources: Annotated[
        frozenset[str] | None,
        option(
            "Read files made for Claude Code from these places: user, project, local. Empty: from none.",
            "SOURCES",
            reads=sources_named,
        ),
    ] = None
    permission_mode: Annotated[
        PermissionMode | None,
        option(
            "plan: read-only, no commands and no changes. dontAsk: only reading, and what an allow rule names. "
            "bypassPermissions, auto, acceptEdits, default: all tools, without asking.",
            "MODE",
            reads=mode_named,
        ),
    ] = None
    permission_prompt_tool: Annotated[
        str | None,
        option("With --input-format stream-json: ask the driver about tool calls (can_use_tool).", "stdio"),
    ] = None
    permission_prompts: Annotated[
        Literal["host", "none"], option("none: ask nobody, and deny at once each call that would need it.")
    ] = "host"
    name: Annotated[
        str | None,
        option("A title for the session, shown in lists of sessions.", "TITLE", "-n", reads=title),
    ] = None
    debug: Annotated[bool, option("Write a line for each event to standard error.", spelled="-d")] = False
    debug_file: Annotated[str | None, option("Like --debug, appended to this file.", "PATH")] = None
    disable_slash_commands: Annotated[
        bool, option("Treat a prompt such as `/fix` as text, and list no skills.")
    ] = False
    bare: Annotated[
        bool,
        option("Like --setting-sources '': no memory, commands or skills.", spelled="--bare --safe-mode"),
    ] = False
    restricted: Annotated[bool, option("Like --sandbox strict without Bash.")] = False

    @property
    def sources(self) -> frozenset[str]:
        """The places from which files made for Claude Code are read."""
        if self.bare:
            return frozenset()
        return ALL_SOURCES if self.setting_sources is None else self.setting_sources

    @property
    def flags(self) -> dict[str, object]:
        """The flags of all settings, by the settings' names. None is a flag that was not given."""
        given = dict(self.settings)
        allowed, forbidden = given.get("tools.allowed"), given.get("tools.disallowed")
        names = allowed if isinstance(allowed, tuple) else ()
        if names and all(str(name).partition("(")[0] == "Skill" for name in names):
            given["tools.allowed"] = None  # a list that names only skills says nothing about tools
        if self.restricted:
            names = forbidden if isinstance(forbidden, tuple) else ()
            given |= {"sandbox.mode": "strict", "tools.disallowed": (*names, "Bash")}
        return given


def run(line: RunLine, typed: TypedLine) -> int:
    """Do one task: ask the model, run its tools, and repeat until the task ends."""
    if typed.is_command_inserted and line.prompt and not line.print_:
        # The parser has only now found out which word is the prompt, because options precede it.
        names_session = line.continue_ or line.resume is not None
        refuse_command_word([line.prompt, *(["--continue"] if names_session else [])])
        if not (names_session or is_piped()):
            refuse_lone_word(line.prompt, "ralph", "ralph run")
    refuse_file_as_prompt(line.prompt)
    try:
        from ralph.run.command import run_command  # noqa: PLC0415 - the lack of memory for a run's modules is a result too
    except (OSError, MemoryError, ImportError) as error:
        shortage = shortage_of(error)
        if shortage is not None:
            _write_result(shortage, line.output_format)
        raise
    refuse_contradictions(line)
    if line.session_dir and (line.continue_ or line.resume) and not Path(line.session_dir).exists():
        raise wrong_value(
            "--session-dir", f"{line.session_dir} does not exist, so it has no session to resume"
        )
    names_prompt = (line.prompt, line.prompt_file, line.resume) != (None, None, None)
    has_prompt = names_prompt or line.continue_ or line.input_format == "stream-json"
    with prompt_not_in_list(typed.last_list, has_prompt=has_prompt):
        writable = directories("--add-dir", line.add_dir)
        check_settings({name: value for name, value in line.settings.items() if name.startswith("tools.")})
    options = run_options(line, writable)
    check_output_is_open(options.output.result_file)
    if not options.takes_messages:
        return run_command(options)
    from ralph.driven.driver import MessageDriver  # noqa: PLC0415 - few runs are driven

    return run_command(options, make_driver=MessageDriver)


def _write_result(shortage: ShortageError, output_format: str) -> None:
    """Writes the result of a run that could not begin, because its modules could not be loaded."""
    if output_format == "text":
        return
    outcome = Outcome.API_UNAVAILABLE
    line = (
        '{"type":"result","subtype":"error_during_execution","is_error":true,"num_turns":0,'
        f'"terminal_reason":"{outcome.value}","exit_code":{outcome.exit_code()},"errors":["{shortage}"]}}\n'
    )
    with suppress(OSError):
        os.write(1, line.encode())


def refuse_contradictions(line: RunLine) -> None:
    """Raises LineError if options contradict each other, or if one has no effect without another one."""
    is_stream, takes_messages = line.output_format == "stream-json", line.input_format == "stream-json"
    is_old = line.continue_ or line.resume is not None
    driver, stream = line.permission_prompt_tool, "needs --output-format stream-json"
    for is_wrong, option_name, problem in (
        (line.include_partial_messages and not is_stream, "--include-partial-messages", stream),
        (takes_messages and not is_stream, "--input-format", f"stream-json {stream}"),
        (line.include_hook_events and not is_stream, "--include-hook-events", stream),
        (
            line.replay_user_messages and not takes_messages,
            "--replay-user-messages",
            "needs --input-format stream-json",
        ),
        (
            driver not in {None, "stdio"},
            "--permission-prompt-tool",
            f"ralph asks only the driver: use stdio, not {driver}",
        ),
        (
            driver is not None and not takes_messages,
            "--permission-prompt-tool",
            "nobody can be asked without --input-format stream-json",
        ),
        (line.continue_ and line.resume is not None, "--continue, --resume", "give one of them"),
        (
            line.resume is not None and not line.resume.strip(),
            "--resume",
            "needs the title of a session, or the beginning of its id",
        ),
        (line.fork_session and not is_old, "--fork-session", "needs --continue or --resume"),
        (line.moved and line.resume is None, "--moved", "needs --resume"),
        (
            line.session_id is not None and is_old and not line.fork_session,
            "--session-id",
            "a resumed session keeps its id; with --fork-session it sets the id of the copy",
        ),
        (
            is_old and line.no_session_persistence,
            "--no-session-persistence",
            "a resumed session is always saved",
        ),
    ):
        if is_wrong:
            raise wrong_value(option_name, problem)


class DoctorLine(Struct, frozen=True, kw_only=True):
    settings: dict[str, object] = {}
    sandbox: Annotated[
        bool,
        option(
            "Only try what commands could do in the sandbox, and show each result. The network is that of --net, "
            "--allow-host or your settings; by default it is off."
        ),
    ] = False
    config: Config = None
    directory: Directory = None
    session_dir: SessionDir = None
    probe: Annotated[
        bool,
        option(
            "Send one small request to each target with each key, try a push (--dry-run), and print a verdict. Costs "
            "less than a cent for most models."
        ),
    ] = False
    is_json: Annotated[bool, option("Print one JSON object with all findings.", spelled="--json")] = False


# --- Words to values, for the commands that do a task: system prompts, files, and reports

_MOST_TEXT_BYTES = 16 * 1024 * 1024
"""The maximum size of a file with a system prompt. A text of this size exceeds any model's context window."""


def text_or_file(
    option: str, text: str | None, path: str | None, directories: Sequence[str], *, takes_pipe: bool = True
) -> str | None:
    """The text of `--OPTION`, or of the file of `--OPTION-file`, or None. `directories` are those of `run_directories`.
    Without `takes_pipe`, a pipe is refused, because the file will be read again.
    """
    if text is not None and path is not None:
        raise wrong_value(f"--{option}", f"give either --{option} or --{option}-file")
    if text is None and path is None:
        return None
    try:
        if path is None:
            return argument_text(text or "")
        where = str(absolute(path))
        return prompt_text(read_named_file(where, directories, _MOST_TEXT_BYTES, takes_pipe=takes_pipe))
    except ValueError as error:
        hint, subject = (f"--{option}", "the text") if path is None else (f"--{option}-file", path)
        raise wrong_value(hint, f"{subject} {error}") from None
    except OSError as error:
        raise wrong_value(f"--{option}-file", f"cannot read {path}: {error.strerror}") from None


def writable_file(option: str, path: str | None, directories: Sequence[str]) -> str | None:
    if path is None:
        return None
    if path == "-":
        raise wrong_value(option, "must be a file: standard output belongs to the result")
    where = str(absolute(path))
    problem = result_file_problem(where, directories)
    if problem is not None:
        raise wrong_value(option, problem)
    return where


def check_output_is_open(result_file: str | None = None) -> None:
    """Raises CannotError if standard output is closed (`>&-`) and there is no result file: the answer would be lost."""
    if result_file is None and has_closed_output():
        raise CannotError(
            "standard output is closed: if you do not need the answer, use >/dev/null", Outcome.IO_ERROR
        )


def requested_report(
    schema: str | None, directories: Sequence[str], *, is_required: bool, takes_pipe: bool = True
) -> RequestedReport | None:
    """None if the user requires none. `directories` and `takes_pipe` are as in `text_or_file`."""
    if schema is None:
        return RequestedReport() if is_required else None
    from ralph.run.report_schema import read_schema  # noqa: PLC0415 - a schema library is slow to load

    try:
        return RequestedReport(read_schema(schema, Path.cwd(), directories, takes_pipe=takes_pipe))
    except FileNotFoundError:
        raise wrong_value("--json-schema", "the working directory is gone") from None
    except ValueError as error:
        raise wrong_value("--json-schema", str(error)) from None


def run_options(line: RunLine, writable: tuple[str, ...]) -> RunOptions:
    """The options of a run. `writable` are the directories of `--add-dir`."""
    bypasses = line.permission_mode is None and line.dangerously_skip_permissions
    session_dir, of_loop = absolute(line.session_dir), _of_loop(line.iteration)
    files = [line.system_prompt_file, line.append_system_prompt_file, line.json_schema]
    if of_loop is None:  # else the loop has read them
        servers = line.flags["mcp.config"]
        files += [line.config, line.claude_settings, *(servers if isinstance(servers, tuple) else ())]
    reach = writable if of_loop is None else (*writable, *of_loop.directories)
    directories = run_directories(line.directory, reach)
    return RunOptions(
        prompt=line.prompt,
        prompt_file=absolute(line.prompt_file),
        takes_messages=line.input_format == "stream-json",
        directory=line.directory,
        writable=writable,
        config_file=absolute(line.config),
        claude_settings=json_or_path(line.claude_settings),
        setting_sources=line.sources,
        names_sources=line.setting_sources is not None,
        takes_commands=not line.disable_slash_commands,
        permission_mode=PermissionMode.BYPASS if bypasses else line.permission_mode,
        permissions="nobody"
        if line.permission_prompts == "none"
        else None
        if line.permission_prompt_tool is None
        else "driver",
        session=SessionOptions(
            session_id=None if line.session_id is None else str(line.session_id),
            continues=line.continue_,
            resume=line.resume,
            forks=line.fork_session,
            has_moved=line.moved,
            directory=Path(session_dir) if session_dir else None,
            is_kept=not line.no_session_persistence,
        ),
        system_prompt=text_or_file("system-prompt", line.system_prompt, line.system_prompt_file, directories),
        append_system_prompt=text_or_file(
            "append-system-prompt", line.append_system_prompt, line.append_system_prompt_file, directories
        ),
        files_read=tuple(one for one in map(json_or_path, files) if one and one.startswith("/")),
        report=requested_report(line.json_schema, directories, is_required=line.require_report),
        of_loop=of_loop,
        metrics_file=writable_file("--metrics-file", line.metrics_file, directories),
        exports_traces=line.otel,
        has_diagnostics=line.debug or line.debug_file is not None,
        debug_file=writable_file("--debug-file", line.debug_file, directories),
        replays_messages=line.replay_user_messages,
        includes_hook_events=line.include_hook_events,
        title=line.name,
        output=OutputOptions(
            output_format=line.output_format,
            include_partial=line.include_partial_messages,
            is_quiet=line.quiet,
            result_file=writable_file("--result-file", line.result_file, directories),
            directories=directories,
        ),
        settings=line.flags,
        is_restricted=line.restricted,
    )


def _of_loop(descriptor: int | None) -> "LoopHandover | None":
    if descriptor is None:
        return None
    from ralph.settings.handover import taken_over  # noqa: PLC0415 - for iterations alone

    try:
        return taken_over(descriptor)
    except ValueError as error:
        raise wrong_value("--iteration", str(error)) from None


_FIRST = """
prompt_file model fallback_model max_turns max_budget_usd max_time sandbox output_format directory add_dir continue_ resume
""".split()

COMMAND = SettingsCommand("run", run, RunLine, first=_FIRST, ignored=NO_EFFECT)
