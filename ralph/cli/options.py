"""The options of `ralph run` and `ralph doctor`. Each option is a field with a spelling, a help text and a type.
Flags of settings, such as `--model`, are not listed here. They are made from the tables of settings.
"""

# No `from __future__ import annotations` here: the options are read from the annotations.

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ralph.cli.parameters import Argument, FlagsOf, Option

if TYPE_CHECKING:
    from typing import Annotated
else:
    from ralph.values.setting import Declared as Annotated

Directory = Annotated[str | None, Option("--cd -C", "Work in this directory.", metavar="DIR")]
Config = Annotated[
    str | None,
    Option("--config", "Read this settings file too, trusted like flags.", metavar="FILE"),
]
SessionDir = Annotated[str | None, Option("--session-dir", "Keep sessions in this directory.", metavar="DIR")]


class RunLine(Struct, frozen=True, kw_only=True):
    prompt: Annotated[
        str | None,
        Argument("The task; `-` or none: read it from standard input."),
    ] = None
    prompt_file: Annotated[
        str | None, Option("--prompt-file -f", "Read the task from a file.", metavar="PATH")
    ] = None
    print_: Annotated[
        bool,
        Option("--print -p", "Accepted without effect: ralph always prints the result and exits."),
    ] = False
    settings: Annotated[dict[str, object], FlagsOf(but="tools")]
    input_format: Annotated[
        Literal["text", "stream-json"],
        Option(
            "--input-format", "stream-json: messages and control requests on standard input, as JSON lines."
        ),
    ] = "text"
    output_format: Annotated[
        Literal["text", "json", "stream-json"],
        Option("--output-format", "Format of standard output."),
    ] = "text"
    include_partial_messages: Annotated[
        bool, Option("--include-partial-messages", "With stream-json: also the raw stream events.")
    ] = False
    include_hook_events: Annotated[
        bool,
        Option(
            "--include-hook-events",
            "With stream-json: also the beginning and end of hooks that are commands.",
        ),
    ] = False
    replay_user_messages: Annotated[
        bool,
        Option(
            "--replay-user-messages",
            "With --input-format stream-json: each message is also printed when work on it begins.",
        ),
    ] = False
    result_file: Annotated[
        str | None,
        Option("--result-file", "Also write the result object to this file.", metavar="PATH"),
    ] = None
    metrics_file: Annotated[
        str | None,
        Option(
            "--metrics-file",
            "Write metrics to this file every minute, in Prometheus' text format.",
            metavar="PATH",
        ),
    ] = None
    otel: Annotated[bool, Option("--otel", "Export a trace over OTLP. Needs the extra otel.")] = False
    quiet: Annotated[bool, Option("--quiet -q", "Only errors and the outcome on standard error.")] = False
    system_prompt: Annotated[
        str | None, Option("--system-prompt", "Replace ralph's own system prompt.", metavar="TEXT")
    ] = None
    system_prompt_file: Annotated[
        str | None,
        Option("--system-prompt-file", "Like --system-prompt, from a file.", metavar="PATH"),
    ] = None
    append_system_prompt: Annotated[
        str | None, Option("--append-system-prompt", "Add to the system prompt.", metavar="TEXT")
    ] = None
    append_system_prompt_file: Annotated[
        str | None,
        Option("--append-system-prompt-file", "Like --append-system-prompt, from a file.", metavar="PATH"),
    ] = None
    json_schema: Annotated[
        str | None,
        Option(
            "--json-schema",
            "Require a final report whose payload fits this JSON Schema.",
            metavar="JSON|FILE",
        ),
    ] = None
    require_report: Annotated[
        bool,
        Option("--require-report", "Require a final report: success or failure, and a summary."),
    ] = False
    tools: Annotated[dict[str, object], FlagsOf("tools")]
    directory: Directory = None
    add_dir: Annotated[
        tuple[str, ...],
        Option("--add-dir", "Also let Write and Edit change files in these directories.", metavar="DIR..."),
    ] = ()
    config: Config = None
    continue_: Annotated[bool, Option("--continue -c", "Resume the last session of this directory.")] = False
    resume: Annotated[
        str | None,
        Option(
            "--resume -r", "Resume this session; the first characters of its id are enough.", metavar="ID"
        ),
    ] = None
    fork_session: Annotated[
        bool,
        Option("--fork-session", "With -c or -r: resume a copy, and leave the session itself unchanged."),
    ] = False
    moved: Annotated[
        bool,
        Option(
            "--moved",
            "With -r: resume the session here, although the directory that it belongs to still exists.",
        ),
    ] = False
    session_id: Annotated[
        str | None, Option("--session-id", "The id of the new session.", metavar="UUID")
    ] = None
    session_dir: SessionDir = None
    no_session_persistence: Annotated[
        bool,
        Option("--no-session-persistence", "Keep no session: the run cannot be resumed."),
    ] = False
    iteration: Annotated[bool, Option("--iteration", "An outer loop starts this run.", is_hidden=True)] = (
        False
    )
    loop_folder: Annotated[
        str | None, Option("--loop-folder", "The folder of the outer loop's log.", is_hidden=True)
    ] = None
    loop_number: Annotated[
        int, Option("--loop-number", "The number of the outer loop's iteration.", is_hidden=True)
    ] = 0
    task_chars: Annotated[
        int | None,
        Option("--task-chars", "The end of the prompt, which an outer loop did not write.", is_hidden=True),
    ] = None
    settings_fd: Annotated[
        int | None,
        Option("--settings-fd", "An outer loop hands its settings files over there.", is_hidden=True),
    ] = None
    dangerously_skip_permissions: Annotated[
        bool,
        Option(
            "--dangerously-skip-permissions",
            "Like --permission-mode bypassPermissions, which is the default unless a driver is asked.",
        ),
    ] = False
    claude_settings: Annotated[
        str | None,
        Option(
            "--settings",
            "Permission rules and hooks in the form of Claude Code's settings, beside those of its files.",
            metavar="FILE|JSON",
        ),
    ] = None
    setting_sources: Annotated[
        str | None,
        Option(
            "--setting-sources",
            "Read files made for Claude Code from these places: user, project, local. Empty: from none.",
            metavar="SOURCES",
        ),
    ] = None
    permission_mode: Annotated[
        str | None,
        Option(
            "--permission-mode",
            "plan: read only, without commands and changes. dontAsk: read, and what an allow rule names. "
            "bypassPermissions, auto, acceptEdits, default: all tools of the run work without asking.",
            metavar="MODE",
        ),
    ] = None
    permission_prompt_tool: Annotated[
        str | None,
        Option(
            "--permission-prompt-tool",
            "With --input-format stream-json: ask the driver about tool calls (can_use_tool).",
            metavar="stdio",
        ),
    ] = None
    permission_prompts: Annotated[
        Literal["host", "none"],
        Option("--permission-prompts", "none: nobody is asked; what would ask is denied at once."),
    ] = "host"
    name: Annotated[
        str | None,
        Option("--name -n", "A title for the session, which lists of sessions show.", metavar="TITLE"),
    ] = None
    debug: Annotated[
        bool,
        Option("--debug -d", "Write a line for each event to standard error.", may_have_value=True),
    ] = False
    debug_file: Annotated[
        str | None, Option("--debug-file", "Like --debug, appended to this file.", metavar="PATH")
    ] = None
    verbose: Annotated[bool, Option("--verbose", "Accepted without effect: standard error shows all.")] = (
        False
    )
    disable_slash_commands: Annotated[
        bool, Option("--disable-slash-commands", "A prompt such as `/fix` is text, and no skills are listed.")
    ] = False
    bare: Annotated[
        bool,
        Option("--bare --safe-mode", "Like --setting-sources '': no memory, commands or skills."),
    ] = False
    restricted: Annotated[bool, Option("--restricted", "Like --sandbox strict without Bash.")] = False
    allow_dangerously_skip_permissions: Annotated[
        bool, Option("--allow-dangerously-skip-permissions", "Accepted without effect: ralph never asks.")
    ] = False
    no_chrome: Annotated[bool, Option("--no-chrome", "Accepted without effect: ralph drives no browser.")] = (
        False
    )
    ide: Annotated[bool, Option("--ide", "Accepted without effect: nothing is connected to ralph.")] = False
    brief: Annotated[
        bool, Option("--brief", "Accepted without effect: standard output has the final answer alone.")
    ] = False
    ax_screen_reader: Annotated[
        bool, Option("--ax-screen-reader", "Accepted without effect: all output is plain lines.")
    ] = False
    forward_subagent_text: Annotated[
        bool, Option("--forward-subagent-text", "Accepted without effect: ralph has no subagents.")
    ] = False
    prompt_suggestions: Annotated[
        bool,
        Option(
            "--prompt-suggestions",
            "Accepted without effect: nobody is there to take a suggestion.",
            may_have_value=True,
        ),
    ] = False
    exclude_dynamic_system_prompt_sections: Annotated[
        bool,
        Option(
            "--exclude-dynamic-system-prompt-sections",
            "Accepted without effect: the system prompt has no such sections but the directory.",
        ),
    ] = False
    system_prompt_snapshot: Annotated[
        str | None,
        Option(
            "--system-prompt-snapshot",
            "Accepted without effect: a session always keeps its system prompt.",
            metavar="on|off",
        ),
    ] = None
    autocompact: Annotated[
        str | None,
        Option(
            "--autocompact",
            "Accepted without effect: ralph compacts when the context is nearly full.",
            metavar="auto|N",
        ),
    ] = None

    @property
    def flags(self) -> dict[str, object]:
        """The values of the flags of all settings, by the names of the settings. None means that the flag was not
        given.
        """
        given = _without_skills({**self.settings, **self.tools})
        return _restricted(given) if self.restricted else given


def _without_skills(flags: dict[str, object]) -> dict[str, object]:
    """Removes an `--allowed-tools` that names only skills from the flags. The Agent SDKs add such names for their
    option `skills`. These names must not limit the tools, because a skill is only a file.
    """
    allowed = flags.get("tools.allowed")
    names = allowed if isinstance(allowed, tuple) else ()
    is_about_skills = bool(names) and all(str(name).partition("(")[0] == "Skill" for name in names)
    return {**flags, "tools.allowed": None} if is_about_skills else flags


def _restricted(flags: dict[str, object]) -> dict[str, object]:
    """The flags together with the flags that `--restricted` stands for."""
    forbidden = flags.get("tools.disallowed")
    names = forbidden if isinstance(forbidden, tuple) else ()
    return {**flags, "sandbox.mode": "strict", "tools.disallowed": (*names, "Bash")}


class DoctorLine(Struct, frozen=True, kw_only=True):
    settings: Annotated[dict[str, object], FlagsOf(but="sandbox.mode")]
    sandbox: Annotated[
        bool,
        Option(
            "--sandbox",
            "Only try what commands could do in the sandbox, and show each result. With the network of --net and "
            "--allow-host or your settings, else off.",
        ),
    ] = False
    config: Config = None
    directory: Directory = None
    session_dir: SessionDir = None
    offline: Annotated[
        bool, Option("--offline", "Do not try to reach the endpoints, and start no MCP servers.")
    ] = False
    probe: Annotated[
        bool,
        Option(
            "--probe",
            "Send one small request to each target with each key, try out a push, and end with a verdict. Costs less "
            "than a cent for most models.",
        ),
    ] = False
    is_json: Annotated[bool, Option("--json", "Print one JSON object with all findings.")] = False
