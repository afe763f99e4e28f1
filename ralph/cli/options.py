"""The options of `ralph run` that are no settings: spelling, help and type of each. The others stand in the table of settings."""

import enum
from typing import Annotated

import typer


class OutputFormat(enum.StrEnum):
    TEXT = "text"
    JSON = "json"
    STREAM_JSON = "stream-json"


class InputFormat(enum.StrEnum):
    TEXT = "text"
    STREAM_JSON = "stream-json"


class DemoScenario(enum.StrEnum):
    FIX = "fix"
    FALLBACK = "fallback"
    OUTAGE = "outage"
    LOOP = "loop"


Prompt = Annotated[
    str | None,
    typer.Argument(help="The task. `-`, or nothing: read it from standard input.", show_default=False),
]
PromptFile = Annotated[
    str | None, typer.Option("--prompt-file", "-f", metavar="PATH", help="Read the task from a file.")
]
PrintOption = Annotated[
    bool, typer.Option("--print", "-p", help="Accepted: ralph always prints the result and exits.")
]
JsonSchema = Annotated[
    str | None,
    typer.Option(
        "--json-schema",
        metavar="JSON|FILE",
        help="Require a final report whose payload fits this JSON Schema.",
    ),
]
RequireReport = Annotated[
    bool,
    typer.Option("--require-report", help="Require a final report: success or failure, and a summary."),
]
MetricsFile = Annotated[
    str | None,
    typer.Option(
        "--metrics-file", metavar="PATH", help="Keep metrics there in Prometheus' text format, each minute."
    ),
]
Otel = Annotated[
    bool, typer.Option("--otel", help="Export a trace over OTLP (pip install 'ralph-headless[otel]').")
]
InputFormatOption = Annotated[
    InputFormat,
    typer.Option(
        "--input-format", help="stream-json: JSON lines on standard input, messages and control requests."
    ),
]
OutputFormatOption = Annotated[
    OutputFormat, typer.Option("--output-format", help="What standard output gets.")
]
IncludePartialMessages = Annotated[
    bool, typer.Option("--include-partial-messages", help="stream-json: raw stream events too.")
]
ResultFile = Annotated[
    str | None, typer.Option("--result-file", metavar="PATH", help="Write the result object there too.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Standard error gets errors and the outcome only.")
]
SystemPrompt = Annotated[
    str | None, typer.Option("--system-prompt", metavar="TEXT", help="Replace ralph's own system prompt.")
]
SystemPromptFile = Annotated[
    str | None, typer.Option("--system-prompt-file", metavar="PATH", help="The same, from a file.")
]
AppendSystemPrompt = Annotated[
    str | None, typer.Option("--append-system-prompt", metavar="TEXT", help="Add to the system prompt.")
]
AppendSystemPromptFile = Annotated[
    str | None, typer.Option("--append-system-prompt-file", metavar="PATH", help="The same, from a file.")
]
Directory = Annotated[str | None, typer.Option("--cd", "-C", metavar="DIR", help="Work in this directory.")]
AddDir = Annotated[
    list[str] | None,
    typer.Option("--add-dir", metavar="DIR...", help="Let Write and Edit change files there too."),
]
Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="A settings file that is trusted as a flag is."),
]
Continue = Annotated[
    bool, typer.Option("--continue", "-c", help="Go on with the last session of this directory.")
]
Resume = Annotated[
    str | None,
    typer.Option("--resume", "-r", metavar="ID", help="Go on with this session; its first characters do."),
]
ForkSession = Annotated[
    bool,
    typer.Option("--fork-session", help="With -c or -r: leave that session as it is, go on with a copy."),
]
SessionDir = Annotated[str | None, typer.Option("--session-dir", metavar="DIR", help="Keep sessions there.")]
SessionId = Annotated[
    str | None, typer.Option("--session-id", metavar="UUID", help="The id of the new session.")
]
NoSessionPersistence = Annotated[
    bool,
    typer.Option("--no-session-persistence", help="Keep no session: a run that ends cannot be resumed."),
]
Iteration = Annotated[bool, typer.Option("--iteration", hidden=True, help="An outer loop starts this run.")]
SettingsDescriptor = Annotated[
    int | None,
    typer.Option("--settings-fd", hidden=True, help="An outer loop hands its settings files over there."),
]
DangerouslySkipPermissions = Annotated[
    bool,
    typer.Option("--dangerously-skip-permissions", help="Accepted without effect: ralph never asks."),
]
PermissionMode = Annotated[
    str | None,
    typer.Option(
        "--permission-mode",
        metavar="MODE",
        help="plan: read only, no command and no change. bypassPermissions, auto, acceptEdits, default: all tools of "
        "the run work, and nobody is asked.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Accepted without effect.")]
