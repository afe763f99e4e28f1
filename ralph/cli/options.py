"""The options of `ralph run` and `ralph doctor`. Each option is a field with a spelling, a help text and a type.

The flags of settings, such as `--model`, are not listed here. They are made from the tables of settings.
"""

# No `from __future__ import annotations` here: the options are read from the annotations.

from typing import Annotated, Literal

import typer
from msgspec import Struct

from ralph.cli.line_command import FlagsOf

Directory = Annotated[str | None, typer.Option("--cd", "-C", metavar="DIR", help="Work in this directory.")]
Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Read this settings file too, trusted like flags."),
]
SessionDir = Annotated[
    str | None, typer.Option("--session-dir", metavar="DIR", help="Keep sessions in this directory.")
]


class RunLine(Struct, frozen=True, kw_only=True):
    prompt: Annotated[
        str | None,
        typer.Argument(help="The task; `-` or none: read it from standard input.", show_default=False),
    ] = None
    prompt_file: Annotated[
        str | None, typer.Option("--prompt-file", "-f", metavar="PATH", help="Read the task from a file.")
    ] = None
    print_: Annotated[
        bool,
        typer.Option(
            "--print", "-p", help="Accepted without effect: ralph always prints the result and exits."
        ),
    ] = False
    settings: Annotated[dict[str, object], FlagsOf(but="tools")]
    input_format: Annotated[
        Literal["text", "stream-json"],
        typer.Option(
            "--input-format",
            help="stream-json: messages and control requests on standard input, as JSON lines.",
        ),
    ] = "text"
    output_format: Annotated[
        Literal["text", "json", "stream-json"],
        typer.Option("--output-format", help="Format of standard output."),
    ] = "text"
    include_partial_messages: Annotated[
        bool, typer.Option("--include-partial-messages", help="With stream-json: also the raw stream events.")
    ] = False
    result_file: Annotated[
        str | None,
        typer.Option("--result-file", metavar="PATH", help="Also write the result object to this file."),
    ] = None
    metrics_file: Annotated[
        str | None,
        typer.Option(
            "--metrics-file",
            metavar="PATH",
            help="Write metrics to this file every minute, in Prometheus' text format.",
        ),
    ] = None
    otel: Annotated[
        bool, typer.Option("--otel", help="Export a trace over OTLP (pip install 'ralph-headless[otel]').")
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only errors and the outcome on standard error.")
    ] = False
    system_prompt: Annotated[
        str | None, typer.Option("--system-prompt", metavar="TEXT", help="Replace ralph's own system prompt.")
    ] = None
    system_prompt_file: Annotated[
        str | None,
        typer.Option("--system-prompt-file", metavar="PATH", help="Like --system-prompt, from a file."),
    ] = None
    append_system_prompt: Annotated[
        str | None, typer.Option("--append-system-prompt", metavar="TEXT", help="Add to the system prompt.")
    ] = None
    append_system_prompt_file: Annotated[
        str | None,
        typer.Option(
            "--append-system-prompt-file", metavar="PATH", help="Like --append-system-prompt, from a file."
        ),
    ] = None
    json_schema: Annotated[
        str | None,
        typer.Option(
            "--json-schema",
            metavar="JSON|FILE",
            help="Require a final report whose payload fits this JSON Schema.",
        ),
    ] = None
    require_report: Annotated[
        bool,
        typer.Option("--require-report", help="Require a final report: success or failure, and a summary."),
    ] = False
    tools: Annotated[dict[str, object], FlagsOf("tools")]
    directory: Directory = None
    add_dir: Annotated[
        tuple[str, ...],
        typer.Option(
            "--add-dir", metavar="DIR...", help="Also let Write and Edit change files in these directories."
        ),
    ] = ()
    config: Config = None
    continue_: Annotated[
        bool, typer.Option("--continue", "-c", help="Resume the last session of this directory.")
    ] = False
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            "-r",
            metavar="ID",
            help="Resume this session; the first characters of its id are enough.",
        ),
    ] = None
    fork_session: Annotated[
        bool,
        typer.Option(
            "--fork-session", help="With -c or -r: resume a copy, and leave the session itself unchanged."
        ),
    ] = False
    session_id: Annotated[
        str | None, typer.Option("--session-id", metavar="UUID", help="The id of the new session.")
    ] = None
    session_dir: SessionDir = None
    no_session_persistence: Annotated[
        bool,
        typer.Option("--no-session-persistence", help="Keep no session: the run cannot be resumed."),
    ] = False
    iteration: Annotated[
        bool, typer.Option("--iteration", hidden=True, help="An outer loop starts this run.")
    ] = False
    settings_fd: Annotated[
        int | None,
        typer.Option("--settings-fd", hidden=True, help="An outer loop hands its settings files over there."),
    ] = None
    dangerously_skip_permissions: Annotated[
        bool,
        typer.Option("--dangerously-skip-permissions", help="Accepted without effect: ralph never asks."),
    ] = False
    claude_settings: Annotated[
        str | None,
        typer.Option(
            "--settings",
            metavar="FILE|JSON",
            help="Permission rules and hooks in the form of Claude Code's settings, beside those of its files.",
        ),
    ] = None
    setting_sources: Annotated[
        str | None,
        typer.Option(
            "--setting-sources",
            metavar="NAMES",
            help="Read files made for Claude Code from these places: user, project, local. Empty: from none.",
        ),
    ] = None
    permission_mode: Annotated[
        str | None,
        typer.Option(
            "--permission-mode",
            metavar="MODE",
            help="plan: read only, without commands and changes. dontAsk: read, and what an allow rule names. "
            "bypassPermissions, auto, acceptEdits, default: all tools of the run work without asking.",
        ),
    ] = None
    verbose: Annotated[bool, typer.Option("--verbose", help="Accepted without effect.")] = False

    @property
    def flags(self) -> dict[str, object]:
        """The values of all settings' flags, by setting name. A value of None means that the flag was not given."""
        return {**self.settings, **self.tools}


class DoctorLine(Struct, frozen=True, kw_only=True):
    settings: Annotated[dict[str, object], FlagsOf(but="sandbox")]
    sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox", help="Only try what commands could do in the sandbox, and show each result."
        ),
    ] = False
    config: Config = None
    directory: Directory = None
    session_dir: SessionDir = None
    offline: Annotated[bool, typer.Option("--offline", help="Do not try to reach the endpoints.")] = False
