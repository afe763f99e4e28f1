"""The options of `ralph run` and `ralph doctor`: a field for each, with spelling, help and type.

Flags of settings stand in the table of settings.
"""

# No `from __future__ import annotations` here: the options are read from the annotations.

from typing import Annotated, Literal

import typer
from msgspec import Struct

from ralph.cli.line_command import FlagsOf

Directory = Annotated[str | None, typer.Option("--cd", "-C", metavar="DIR", help="Work in this directory.")]
Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="A settings file that is trusted as a flag is."),
]
SessionDir = Annotated[str | None, typer.Option("--session-dir", metavar="DIR", help="Keep sessions there.")]


class RunLine(Struct, frozen=True, kw_only=True):
    prompt: Annotated[
        str | None,
        typer.Argument(help="The task. `-`, or nothing: read it from standard input.", show_default=False),
    ] = None
    prompt_file: Annotated[
        str | None, typer.Option("--prompt-file", "-f", metavar="PATH", help="Read the task from a file.")
    ] = None
    print_: Annotated[
        bool, typer.Option("--print", "-p", help="Accepted: ralph always prints the result and exits.")
    ] = False
    settings: Annotated[dict[str, object], FlagsOf(but="tools")]
    input_format: Annotated[
        Literal["text", "stream-json"],
        typer.Option(
            "--input-format", help="stream-json: JSON lines on standard input, messages and control requests."
        ),
    ] = "text"
    output_format: Annotated[
        Literal["text", "json", "stream-json"],
        typer.Option("--output-format", help="What standard output gets."),
    ] = "text"
    include_partial_messages: Annotated[
        bool, typer.Option("--include-partial-messages", help="stream-json: raw stream events too.")
    ] = False
    result_file: Annotated[
        str | None, typer.Option("--result-file", metavar="PATH", help="Write the result object there too.")
    ] = None
    metrics_file: Annotated[
        str | None,
        typer.Option(
            "--metrics-file",
            metavar="PATH",
            help="Keep metrics there in Prometheus' text format, each minute.",
        ),
    ] = None
    otel: Annotated[
        bool, typer.Option("--otel", help="Export a trace over OTLP (pip install 'ralph-headless[otel]').")
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Standard error gets errors and the outcome only.")
    ] = False
    system_prompt: Annotated[
        str | None, typer.Option("--system-prompt", metavar="TEXT", help="Replace ralph's own system prompt.")
    ] = None
    system_prompt_file: Annotated[
        str | None, typer.Option("--system-prompt-file", metavar="PATH", help="The same, from a file.")
    ] = None
    append_system_prompt: Annotated[
        str | None, typer.Option("--append-system-prompt", metavar="TEXT", help="Add to the system prompt.")
    ] = None
    append_system_prompt_file: Annotated[
        str | None, typer.Option("--append-system-prompt-file", metavar="PATH", help="The same, from a file.")
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
        typer.Option("--add-dir", metavar="DIR...", help="Let Write and Edit change files there too."),
    ] = ()
    config: Config = None
    continue_: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the last session of this directory.")
    ] = False
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", "-r", metavar="ID", help="Go on with this session; its first characters do."
        ),
    ] = None
    fork_session: Annotated[
        bool,
        typer.Option("--fork-session", help="With -c or -r: leave that session as it is, go on with a copy."),
    ] = False
    session_id: Annotated[
        str | None, typer.Option("--session-id", metavar="UUID", help="The id of the new session.")
    ] = None
    session_dir: SessionDir = None
    no_session_persistence: Annotated[
        bool,
        typer.Option("--no-session-persistence", help="Keep no session: a run that ends cannot be resumed."),
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
    permission_mode: Annotated[
        str | None,
        typer.Option(
            "--permission-mode",
            metavar="MODE",
            help="plan: read only, no command and no change. bypassPermissions, auto, acceptEdits, default: all tools of "
            "the run work, and nobody is asked.",
        ),
    ] = None
    verbose: Annotated[bool, typer.Option("--verbose", help="Accepted without effect.")] = False

    @property
    def flags(self) -> dict[str, object]:
        """The values of all settings' flags, by the settings' names; None: not given."""
        return {**self.settings, **self.tools}


class DoctorLine(Struct, frozen=True, kw_only=True):
    settings: Annotated[dict[str, object], FlagsOf()]
    config: Config = None
    directory: Directory = None
    session_dir: SessionDir = None
    offline: Annotated[bool, typer.Option("--offline", help="Do not try to reach the endpoints.")] = False
