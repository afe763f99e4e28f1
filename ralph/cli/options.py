"""The options of `ralph run` and `ralph doctor`, each a field with spelling, help and type. Flags of settings are made
from the tables of settings.
"""

# No `from __future__ import annotations` here: the options are read from the annotations.

from typing import Annotated, Literal
from uuid import UUID

import typer
from msgspec import Struct

from ralph.cli.command_words import wrong_value
from ralph.cli.typer_command import option
from ralph.prompt.judged_file import ALL_SOURCES
from ralph.values.controls import LONGEST_TITLE, PermissionMode
from ralph.values.controls import permission_mode as mode_named


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
