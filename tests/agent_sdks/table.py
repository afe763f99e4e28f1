"""The options of both Agent SDKs. Each row has what ralph does with an option, and a trial that shows it. `page.py`
makes docs/agent-sdk.md from these rows, and `test_agent_sdks.py` runs their trials.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from ralph.mock_api import Fault, Step
from tests.agent_sdks.trials import Check, Options, Ran, Run, Trial
from tests.program.model_answers import DONE, bash, calls, report

if TYPE_CHECKING:
    from typing import Any

Verdict = Literal["works", "no effect", "error"]


class Row(Struct, frozen=True, kw_only=True):
    python: str | None = None
    """The option's name in Python's SDK, or None if it has none."""
    typescript: str | None = None
    verdict: Verdict = "works"
    says: str
    """The text about the option on the page: its effect, the reason why it needs none, or the error message."""
    trial: Trial
    check: Check
    """Returns True if the trial shows what the row says."""

    @property
    def names(self) -> tuple[str | None, str | None]:
        return self.python, self.typescript


def same(name: str, value: Any, typescript: str | None = None) -> Run:
    """A run with one option. `typescript` is its name in TypeScript's SDK, if that is not `name` in camel case."""
    return Run(python={name: value}, typescript={typescript or camel(name): value})


def with_shared(shared: Options, run: Run) -> Run:
    """The run with these options too, whose names TypeScript's SDK writes in camel case."""
    in_camel_case = {camel(name): value for name, value in shared.items()}
    return replace(run, python={**shared, **run.python}, typescript={**in_camel_case, **run.typescript})


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def row(name: str, says: str, trial: Trial, check: Check, *, typescript: str | None = "") -> Row:
    """A row for an option that works. `typescript` is its name in TypeScript's SDK, if that is not `name` in camel case.
    None means that TypeScript's SDK does not have it.
    """
    other = camel(name) if typescript == "" else typescript
    return Row(python=name, typescript=other, says=says, trial=trial, check=check)


SCHEMA = {"type": "object", "properties": {"files": {"type": "integer"}}, "required": ["files"]}
SESSION_ID = "11111111-2222-4333-8444-555555555555"

SHAPE = Trial(
    name="shape",
    answers=(bash("echo $MARK; pwd"), DONE),
    runs=(
        with_shared(
            {
                "system_prompt": "You are Ada.",
                "tools": ["Bash", "Read"],
                "include_partial_messages": True,
                "betas": ["context-1m-2025-08-07"],
                "session_id": SESSION_ID,
                "extra_args": {"append-system-prompt": "Be brief."},
                "verbatim_prompts": True,
            },
            Run(
                both={"model": "claude-opus-5-5", "effort": "low", "env": {"MARK": "kept"}},
                steps=({"say": "/fix this"},),
            ),
        ),
    ),
)


def system_text(ran: Ran, nth: int = 0) -> str:
    return "".join(block["text"] for block in ran.sent(nth).get("system", ()))


def journal(ran: Ran) -> str:
    """The journal of the only session."""
    (path,) = ran.cwd.parent.glob("home/.local/state/ralph/**/*.jsonl")
    return path.read_text()


def ended_well(ran: Ran) -> bool:
    return ran.result().get("subtype") == "success" and ran.runs[-1]["error"] is None


SHAPES = (
    row("model", "works, with aliases too", SHAPE, lambda ran: ran.sent()["model"] == "claude-opus-5-5"),
    row("effort", "works", SHAPE, lambda ran: ran.sent()["output_config"]["effort"] == "low"),
    row("env", "works; commands see it too, but never a credential", SHAPE, lambda ran: "kept" in ran.told()),
    row("cwd", "works", SHAPE, lambda ran: str(ran.cwd) in ran.told()),
    row(
        "tools",
        "works: exactly these, with `Bash` also `BashOutput` and `KillBash`; the preset: all",
        SHAPE,
        lambda ran: ran.tools == {"Bash", "BashOutput", "KillBash", "Read"},
    ),
    row("include_partial_messages", "works", SHAPE, lambda ran: bool(ran.messages("stream_event"))),
    row(
        "betas",
        "works: sent to the API",
        SHAPE,
        lambda ran: "context-1m-2025-08-07" in ran.requests[0].headers["anthropic-beta"],
    ),
    row("session_id", "works", SHAPE, lambda ran: ran.result()["session_id"] == SESSION_ID),
    row(
        "extra_args",
        "works, with every flag of `ralph run`, such as `max-time`",
        SHAPE,
        lambda ran: "Be brief." in system_text(ran),
    ),
)

UNUSED = Trial(
    name="unused",
    shows_errors=True,
    runs=(
        with_shared(
            {
                "forward_subagent_text": True,
                "enable_file_checkpointing": True,
                "load_timeout_ms": 5,
                "session_store_flush": "eager",
            },
            Run(
                both={"agents": {}},
                python={"client_app": "my-app/1"},
                typescript={
                    "allowDangerouslySkipPermissions": True,
                    "promptSuggestions": True,
                    "agentProgressSummaries": True,
                    "perTaskStopAffordance": True,
                    "supportedDialogKinds": [],
                    "onUserDialog": True,
                    "toolConfig": {"askUserQuestion": {"previewFormat": "html"}},
                    "executable": "node",
                    "pluginDelivery": "argv",
                },
            ),
        ),
    ),
)


def unused(says: str, *, python: str | None = None, typescript: str | None = None) -> Row:
    """A row whose option changes neither the request nor the result."""
    return Row(
        python=python,
        typescript=typescript,
        verdict="no effect",
        says=says,
        trial=UNUSED,
        check=lambda ran: ended_well(ran) and len(ran.requests) == 1 and len(ran.tools) == ALL_TOOLS,
    )


ALL_TOOLS = 8
NO_EFFECT = (
    unused("there are no subagents", python="forward_subagent_text", typescript="forwardSubagentText"),
    unused("ralph never asks unless you set a callback", typescript="allowDangerouslySkipPermissions"),
    unused("nobody is there to take a suggestion", typescript="promptSuggestions"),
    unused("there are no subagents", typescript="agentProgressSummaries"),
    unused("ralph has no button for it; `KillBash` is the model's", typescript="perTaskStopAffordance"),
    unused("ralph shows no dialogs", typescript="supportedDialogKinds"),
    unused("ralph has no `AskUserQuestion`", typescript="toolConfig"),
    unused("the SDK's own: ralph is not a Node script", typescript="executable"),
    unused("a label for Anthropic's statistics", python="client_app"),
    unused("only with a session store", python="session_store_flush", typescript="sessionStoreFlush"),
    unused("only with a session store", python="load_timeout_ms", typescript="loadTimeoutMs"),
    unused("only with plugins", typescript="pluginDelivery"),
    unused("ralph shows no dialogs", typescript="onUserDialog"),
    unused("the SDK itself does not read it any more", python="debug_stderr"),
    unused(
        "ralph keeps no copies: `rewind_files` is an error",
        python="enable_file_checkpointing",
        typescript="enableFileCheckpointing",
    ),
)

BESIDES = {
    # How servers are named to ralph, and what they may ask: docs/mcp.md.
    *("strict_mcp_config", "mcpServersDelivery", "strictMcpConfig", "onElicitation"),
}
"""Options that this table leaves out."""

LIMITED = Trial(name="turns", answers=(bash("true"), DONE), runs=(same("max_turns", 1),))
BUDGET = Trial(name="budget", runs=(same("max_budget_usd", 0.000001),))
FALLBACK = Trial(
    name="fallback",
    answers=(Step(fault=Fault(status=529)), DONE),
    runs=(
        Run(
            both={"model": "claude-opus-5-5"},
            python={"fallback_model": "claude-sonnet-5-5"},
            typescript={"fallbackModel": "claude-sonnet-5-5"},
        ),
    ),
)
REPORT = Trial(
    name="report",
    answers=(report(payload={"files": 3}),),
    runs=(same("output_format", {"type": "json_schema", "schema": SCHEMA}),),
)
ALLOWED = Trial(name="allowed", runs=(same("allowed_tools", ["Write"]),))
DISALLOWED = Trial(name="disallowed", runs=(same("disallowed_tools", ["Bash", "WebFetch"]),))
PLAN = Trial(
    name="plan",
    answers=(calls(("Write", {"file_path": "new.txt", "content": "x"})), DONE),
    runs=(same("permission_mode", "plan"),),
)
ELSEWHERE_TOO = Trial(
    name="elsewhere",
    files={"../elsewhere/old.txt": "old"},
    answers=(calls(("Write", {"file_path": "../elsewhere/new.txt", "content": "x"})), DONE),
    runs=(same("add_dirs", ["$HERE/../elsewhere"], "additionalDirectories"),),
)
RULES = Trial(
    name="rules",
    files={"kept.txt": "x"},
    answers=(bash("rm kept.txt"), DONE),
    runs=(same("settings", '{"permissions": {"deny": ["Bash(rm *)"]}}'),),
)
MEMORY = Trial(
    name="memory",
    files={"CLAUDE.md": "Use tabs."},
    answers=(DONE, DONE),
    runs=(same("setting_sources", ["project"]), same("setting_sources", [])),
)
SESSIONS = Trial(
    name="sessions",
    answers=(DONE, DONE, DONE),
    runs=(
        Run(),
        same("continue_conversation", value=True, typescript="continue"),
        Run(both={"resume": "$SESSION"}, python={"fork_session": True}, typescript={"forkSession": True}),
    ),
)
HOOKS = Trial(
    name="hooks",
    files={"kept.txt": "x"},
    answers=(bash("rm kept.txt"), DONE, bash("rm kept.txt"), DONE),
    runs=(
        Run(
            both={
                "hooks": {
                    "PreToolUse": [
                        {
                            "matcher": "Bash",
                            "answer": {
                                "hookSpecificOutput": {
                                    "hookEventName": "PreToolUse",
                                    "permissionDecision": "deny",
                                    "permissionDecisionReason": "not that file",
                                }
                            },
                        }
                    ],
                    "Stop": [{"answer": {}}],
                }
            }
        ),
        Run(both={"hooks": {"PreToolUse": [{"answer": {"throws": "a bug"}}]}}),
    ),
)
SERVERS = Trial(
    name="servers",
    answers=(calls(("mcp__calc__add", {"a": 2, "b": 3})), DONE),
    runs=(Run(python={"mcp_servers": {"calc": {}}}, typescript={"mcpServers": {"calc": {}}}),),
)
PRESET = {"type": "preset", "preset": "claude_code", "append": "Be kind."}
PROMPTS = Trial(
    name="prompts",
    files={"prompt.txt": "You are Grace."},
    answers=(DONE, DONE, DONE),
    runs=(
        same("system_prompt", PRESET),
        Run(),
        Run(
            python={"system_prompt": {"type": "file", "path": "$HERE/prompt.txt"}},
            typescript={"systemPrompt": ["You are", "Grace."]},
        ),
    ),
)
ASKED = Trial(
    name="asked",
    files={"kept.txt": "x"},
    answers=(bash("rm kept.txt"), DONE),
    runs=(same("can_use_tool", {"behavior": "deny", "message": "not that file"}),),
)
BEHAVIOUR = (
    row(
        "system_prompt",
        "works as text, list, file and preset, with `append`; ralph adds one line about the sandbox. If you set none, "
        "the SDKs ask for an empty one: set the preset `claude_code` for ralph's own",
        PROMPTS,
        lambda ran: (
            "Be kind." in system_text(ran)
            and len(system_text(ran)) > 3 * len(system_text(ran, 1))
            and "Grace." in system_text(ran, 2)[:30]
        ),
    ),
    row(
        "max_turns",
        "works; the last turn is for the closing answer",
        LIMITED,
        lambda ran: ran.result()["subtype"] == "error_max_turns",
    ),
    row(
        "max_budget_usd",
        "works, and is checked before it is exceeded",
        BUDGET,
        lambda ran: ran.result()["subtype"] == "error_max_budget_usd" and not ran.requests,
    ),
    row(
        "fallback_model",
        "works",
        FALLBACK,
        lambda ran: ran.sent(-1)["model"] == "claude-sonnet-5-5" and ended_well(ran),
    ),
    row(
        "output_format",
        "works: `structured_output` of the result",
        REPORT,
        lambda ran: ran.result()["structured_output"]["files"] == 3,
    ),
    row(
        "allowed_tools",
        "**differs**: exactly these and the reading ones; others are not there. They are never asked about",
        ALLOWED,
        lambda ran: ran.tools == {"Write", "Read", "Glob", "Grep"},
    ),
    row(
        "disallowed_tools",
        "works; a tool that ralph lacks is a notice",
        DISALLOWED,
        lambda ran: "Bash" not in ran.tools and ended_well(ran),
    ),
    row(
        "permission_mode",
        "works: [permissions](permissions.md)",
        PLAN,
        lambda ran: not (ran.cwd / "new.txt").exists() and ran.tools == {"Read", "Glob", "Grep"},
    ),
    row(
        "add_dirs",
        "works",
        ELSEWHERE_TOO,
        lambda ran: (ran.cwd / "../elsewhere/new.txt").read_text() == "x",
        typescript="additionalDirectories",
    ),
    row(
        "settings",
        "works for rules and command hooks: [permissions](permissions.md)",
        RULES,
        lambda ran: (ran.cwd / "kept.txt").exists() and bool(ran.result()["permission_denials"]),
    ),
    row(
        "setting_sources",
        "works; none: all of them, as in `claude -p`",
        MEMORY,
        lambda ran: ["Use tabs." in str(ran.sent(nth)) for nth in (0, 1)] == [True, False],
    ),
    row(
        "continue_conversation",
        "works",
        SESSIONS,
        lambda ran: (
            len(ran.sent(1)["messages"]) == len(ran.sent(0)["messages"]) + 2
            and ran.result(1)["session_id"] == ran.result(0)["session_id"]
        ),
        typescript="continue",
    ),
    row(
        "resume",
        "works",
        SESSIONS,
        lambda ran: len(ran.sent(2)["messages"]) == len(ran.sent(1)["messages"]) + 2,
    ),
    row(
        "fork_session",
        "works",
        SESSIONS,
        lambda ran: ran.result(2)["session_id"] != ran.result(1)["session_id"],
    ),
    row(
        "mcp_servers",
        "work: [MCP servers](mcp.md), also those in the program's own process",
        SERVERS,
        lambda ran: '"5"' in ran.told(1) and ran.runs[0]["called"] == [{"a": 2, "b": 3}],
    ),
    row(
        "hooks",
        "work: [hooks](control.md#hooks); one that throws denies",
        HOOKS,
        lambda ran: (
            (ran.cwd / "kept.txt").exists()
            and "not that file" in ran.told(1)
            and "hook error" in ran.told(3)
            and [event["hook_event_name"] for event in ran.runs[0]["called"]] == ["PreToolUse", "Stop"]
        ),
    ),
    row(
        "can_use_tool",
        "works: [permissions](control.md#permissions); a denial with `interrupt` ends as `interrupted`, 130",
        ASKED,
        lambda ran: (
            (ran.cwd / "kept.txt").exists()
            and ran.runs[0]["asked"] == [["Bash", {"command": "rm kept.txt"}]]
            and "not that file" in ran.told()
        ),
    ),
)


def refused(
    name: str,
    value: object,
    words: str,
    *,
    says: str,
    typescript: str | None = None,
    only: str | None = None,
) -> Row:
    """A row for an option that ends the run before its first request. `words` is a part of the error message."""
    camels = typescript or camel(name)
    run = Run(python={name: value}, typescript={camels: value})
    return Row(
        python=None if only == "typescript" else name,
        typescript=None if only == "python" else camels,
        verdict="error",
        says=says,
        trial=Trial(name=f"refused-{name}", runs=(run,)),
        check=lambda ran: words in ran.says and not ran.requests and not ended_well(ran),
    )


TS = "typescript"
SUBAGENT = {"ada": {"description": "d", "prompt": "p"}}
SERVER = {"type": "local", "path": "/nowhere"}
REFUSED = (
    refused("agents", SUBAGENT, "which ralph cannot honour", says="there are no subagents"),
    refused("agent", "ada", "ralph has no subagents", says="there are no subagents", only=TS),
    refused("plugins", [SERVER], "ralph has no plugins", says="copy its commands and skills into `.claude/`"),
    refused(
        "thinking",
        {"type": "adaptive"},
        "--effort sets how hard",
        says="`effort`, or `thinking` of a [target](targets.md)",
    ),
    refused("max_thinking_tokens", 4000, "--effort sets how hard", says="`effort`"),
    refused(
        "task_budget", {"total": 9000}, "--max-budget-usd, --max-turns", says="`max_budget_usd`, `max_turns`"
    ),
    refused("resume_session_at", "x", "--fork-session resumes a copy", says="`fork_session`"),
    refused("resume_drops_turn", "x", "--fork-session resumes a copy", says="`fork_session`"),
    refused("session_store", value=True, words="sessions export", says="`ralph sessions export ID`"),
    refused(
        "permission_prompt_tool_name",
        "mcp__ask__me",
        "--permission-prompt-tool",
        says="a callback, `can_use_tool`",
        typescript="permissionPromptToolName",
    ),
    refused(
        "tool_aliases",
        {"Bash": "mcp__a__b"},
        "does not offer toolAliases",
        says="ralph has its own tools",
        only=TS,
    ),
    refused(
        "plan_mode_instructions",
        "x",
        "does not offer planModeInstructions",
        says="put them into the system prompt",
        only=TS,
    ),
    refused("project_config_root", "/nowhere", "-C DIR", says="`cwd`", only=TS),
    refused(
        "managed_settings",
        {"permissions": {"deny": ["Bash"]}},
        "use --settings FILE",
        says="`settings`",
        only=TS,
    ),
)

LONE = Run(
    python={"max_buffer_size": 60}, typescript={"executableArgs": ["--append-system-prompt=Be brief."]}
)
OWN = Trial(name="own", runs=(LONE,))
SPAWNED = Trial(name="spawned", runs=(Run(typescript={"spawnClaudeCodeProcess": True}),))
ABORTED = Trial(
    name="aborted", answers=(bash("sleep 600"), DONE), runs=(Run(typescript={"abortController": True}),)
)
NOT_KEPT = Trial(
    name="not-kept",
    answers=(DONE, DONE),
    runs=(Run(typescript={"persistSession": False}), Run(typescript={"continue": True})),
)
NOBODY = Trial(
    name="nobody",
    files={"kept.txt": "x"},
    answers=(bash("rm kept.txt"), DONE),
    runs=(Run(typescript={"canUseTool": {"behavior": "allow"}, "permissionPrompts": "none"}),),
)
SKILLS = Trial(
    name="skills",
    files={".claude/skills/pdf/SKILL.md": "---\ndescription: Make PDFs\n---\n"},
    answers=(DONE, DONE),
    runs=(same("skills", "all"), same("skills", ["pdf"])),
)
BOXED = Trial(
    name="boxed",
    answers=(bash("touch ../outside.txt"), DONE),
    runs=(same("sandbox", {"enabled": True}),),
)

SOMEBODY = Trial(
    name="somebody", answers=(bash("echo uid `id -u`"), DONE), runs=(Run(python={"user": os.getuid()}),)
)
COMMAND = {".claude/commands/fix.md": "Expanded: $ARGUMENTS"}
VERBATIM = Trial(
    name="verbatim",
    files=COMMAND,
    answers=(DONE, DONE),
    runs=(
        Run(steps=({"say": "/fix this"},)),
        Run(
            python={"verbatim_prompts": True},
            typescript={"verbatimPrompts": True},
            steps=({"say": "/fix this"},),
        ),
    ),
)
HOOK_EVENTS = Trial(
    name="hook-events",
    answers=(bash("true"), DONE),
    runs=(
        Run(
            both={
                "settings": '{"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "echo seen"}]}]}}'
            },
            python={"include_hook_events": True},
            typescript={"includeHookEvents": True},
        ),
    ),
)
TITLED = Trial(name="titled", runs=(Run(typescript={"title": "My own title"}),))
DEBUGGED = Trial(
    name="debugged",
    answers=(DONE, DONE),
    runs=(Run(typescript={"debugFile": "debug.log"}), Run(typescript={"debug": True})),
)

OWN_ROWS = (
    row(
        "cli_path",
        "the path of ralph",
        UNUSED,
        lambda ran: ended_well(ran) and bool(ran.requests),
        typescript="pathToClaudeCodeExecutable",
    ),
    row("stderr", "works: ralph's lines for people", UNUSED, lambda ran: "[ralph] claude" in ran.stderr),
    row(
        "skills",
        "all skills are listed for the model, whichever are named",
        SKILLS,
        lambda ran: (
            len(ran.requests) == 2
            and all("Make PDFs" in system_text(ran, nth) and "Bash" in ran.tools for nth in (0, 1))
        ),
    ),
    row(
        "sandbox",
        "ralph's [own](sandbox.md) is always on. `failIfUnavailable`, which TypeScript's SDK adds, is `--sandbox strict`. `network`, `filesystem` and `credentials` are errors: use `net`, `allow-host` in `extra_args`",
        BOXED,
        lambda ran: ended_well(ran) and not (ran.cwd.parent / "outside.txt").exists(),
    ),
    row(
        "max_buffer_size",
        "the SDK's own: the longest line that it reads",
        OWN,
        lambda ran: "maximum buffer size" in ran.says,
        typescript=None,
    ),
    row(
        "user",
        "the SDK's own: ralph runs as this user",
        SOMEBODY,
        lambda ran: f"uid {os.getuid()}" in ran.told(),
        typescript=None,
    ),
    Row(
        typescript="executableArgs",
        says="become ralph's first words: use `extraArgs`",
        trial=OWN,
        check=lambda ran: "Be brief." in system_text(ran),
    ),
    Row(
        typescript="spawnClaudeCodeProcess",
        says="works",
        trial=SPAWNED,
        check=lambda ran: ended_well(ran) and ran.runs[0]["called"] == ["spawned"],
    ),
    Row(
        typescript="abortController",
        says="works: ralph and its commands end",
        trial=ABORTED,
        check=lambda ran: "abort" in ran.runs[0]["error"].lower() and not ran.result(),
    ),
    Row(
        typescript="persistSession",
        says="works",
        trial=NOT_KEPT,
        check=lambda ran: len(ran.sent(1)["messages"]) == len(ran.sent(0)["messages"]),
    ),
    row(
        "verbatim_prompts",
        "works: `/name` and what follows are text",
        VERBATIM,
        lambda ran: ["Expanded: this" in str(ran.sent(nth)) for nth in (0, 1)] == [True, False],
    ),
    row(
        "include_hook_events",
        "works for hooks that are commands",
        HOOK_EVENTS,
        lambda ran: (
            len(ran.messages("hook_started")) == 1
            and [one["stdout"].strip() for one in ran.messages("hook_response")] == ["seen"]
        ),
    ),
    Row(
        typescript="title",
        says="works: `ralph sessions ls` shows it",
        trial=TITLED,
        check=lambda ran: (
            '"title": "My own title"' in journal(ran) or '"title":"My own title"' in journal(ran)
        ),
    ),
    Row(
        typescript="debug",
        says="works: diagnostics on standard error (`stderr`)",
        trial=DEBUGGED,
        check=lambda ran: "[debug]" in ran.stderr,
    ),
    Row(
        typescript="debugFile",
        says="works",
        trial=DEBUGGED,
        check=lambda ran: (ran.cwd / "debug.log").stat().st_size > 0,
    ),
    Row(
        typescript="permissionPrompts",
        says="works: with `none`, what would ask is denied",
        trial=NOBODY,
        check=lambda ran: (ran.cwd / "kept.txt").exists() and not ran.runs[0]["asked"],
    ),
)

ROWS = (*OWN_ROWS, *SHAPES, *BEHAVIOUR, *NO_EFFECT, *REFUSED)
