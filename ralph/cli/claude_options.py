"""Options of Claude Code that ralph accepts without effect or refuses with advice, and options of other agents, for
which a suggestion by spelling would mislead.
"""

from __future__ import annotations

NO_EFFECT = {
    "--verbose": "",
    "--allow-dangerously-skip-permissions": "",
    "--no-chrome": "",
    "--ide": "",
    "--brief": "",
    "--ax-screen-reader": "",
    "--forward-subagent-text": "",
    "--prompt-suggestions": "",
    "--exclude-dynamic-system-prompt-sections": "",
    "--system-prompt-snapshot": "on|off",
    "--autocompact": "auto|N",
}
"""The options without effect, each with the name of its value. docs/from-claude.md has the reasons."""

_NO_SUBAGENTS = "ralph has no subagents: put the instructions in the prompt or in --append-system-prompt"
_NO_PLUGINS = (
    "ralph has no plugins: copy the plugin's commands and skills into .claude/commands and .claude/skills"
)
_NO_CLOUD = "ralph runs only on this machine: `ralph loop` works unattended"
_ONE_MACHINE = "sessions stay on this machine: `ralph sessions ls` lists them, --resume ID resumes one"
_NO_WINDOW = "ralph has no remote control: `ralph loop --status` shows what a loop is doing"
_BACKGROUND = "let the shell start ralph in the background: nohup ralph ... </dev/null >out.json 2>log &"
_WORKTREE = "create the worktree with git, then run ralph in it: git worktree add DIR && ralph -C DIR ..."
_EFFORT = (
    "--effort sets how hard the model thinks, `thinking` in a [[targets]] entry whether it thinks at all"
)
_RESUME = (
    "ralph resumes a session only at its end: --fork-session resumes a copy and leaves the original as it is"
)

INSTEAD = {
    **dict.fromkeys(("--agent", "--agents"), _NO_SUBAGENTS),
    **dict.fromkeys(("--plugin-dir", "--plugin-dir-no-mcp", "--plugin-url"), _NO_PLUGINS),
    **dict.fromkeys(("--cloud", "--environment"), _NO_CLOUD),
    **dict.fromkeys(("--remote-control", "--remote-control-session-name-prefix"), _NO_WINDOW),
    **dict.fromkeys(("--teleport", "--desktop"), _ONE_MACHINE),
    **dict.fromkeys(("--bg", "--background"), _BACKGROUND),
    **dict.fromkeys(("--worktree", "-w"), _WORKTREE),
    **dict.fromkeys(("--thinking", "--thinking-display", "--max-thinking-tokens"), _EFFORT),
    **dict.fromkeys(("--resume-session-at", "--resume-drops-turn"), _RESUME),
    "--tmux": "start ralph in tmux: tmux new-session -d 'ralph ...'",
    "--chrome": "ralph does not control a browser: the model can run a headless one with Bash",
    "--from-pr": "ralph does not link sessions to pull requests: gh pr diff N | ralph -p 'review this'",
    "--file": "ralph downloads no files: download it yourself, and name its path in the prompt",
    "--task-budget": "--max-budget-usd, --max-turns and --max-time limit a task",
    "--channels": "ralph has no channels: a driver sends messages over standard input",
    "--initialize-fields": "use the options for settings and tools: --settings, --disallowedTools",
    "--managed-settings": "use --settings FILE, whose rules and hooks apply in addition to all others",
    "--managed-settings-in-initialize": "use --settings FILE, whose rules and hooks apply in addition to all others",
    "--project-config-root": "ralph reads the project files of its working directory: set it with -C DIR",
    "--session-mirror": "`ralph sessions export ID` prints a session, even while it is running",
    "--await-initialize": "not needed: with --input-format stream-json, ralph waits for the first message anyway",
}
"""One line for each refused option. The line says what to use instead, or why there is no replacement."""


_NOBODY_ASKS = "ralph never asks for permission and allows all tools: --tools, --permission-mode and --sandbox restrict them"
_IMAGE = "name the file in the prompt: the model sees the image when it reads the file"
_SESSION = "--resume ID resumes a session, and --continue the last one of this directory"
_OF_PEERS = {
    **dict.fromkeys(
        ("--yolo", "-y", "--yes", "--yes-always", "--auto", "--force", "--full-auto", "--approval-mode"),
        _NOBODY_ASKS,
    ),
    **dict.fromkeys(("--ask-for-approval", "-a", "--allow-all-tools", "--trust-all-tools"), _NOBODY_ASKS),
    "--dangerously-bypass-approvals-and-sandbox": f"{_NOBODY_ASKS}; --sandbox off",
    **dict.fromkeys(("--image", "-i"), _IMAGE),
    "-m": "--model NAME sets the model; the prompt needs no option",
    **dict.fromkeys(("--message", "--prompt", "--text", "--query"), "the prompt needs no option"),
    **dict.fromkeys(("--message-file", "--instructions"), "-f FILE reads the prompt from a file"),
    **dict.fromkeys(("--session", "-s", "--last"), _SESSION),
    **dict.fromkeys(
        ("--no-session", "--ephemeral"), "--no-session-persistence runs without saving a session"
    ),
    **dict.fromkeys(("--reasoning-effort", "--variant", "--thinking-budget"), _EFFORT),
    **dict.fromkeys(
        ("--json", "--mode", "-o"), "use --output-format json or stream-json for output that programs read"
    ),
    **dict.fromkeys(("--output-last-message", "--output"), "standard output contains only the final answer"),
    "--output-schema": "--json-schema requires a final report that matches a schema",
    **dict.fromkeys(
        ("--include-directories", "--dir", "--cwd"),
        "-C DIR sets the working directory, --add-dir DIR adds another",
    ),
    **dict.fromkeys(("--provider", "--oss"), "--api and --base-url select another server"),
    "--api-key": "set the key in the environment: ANTHROPIC_API_KEY",
    **dict.fromkeys(("--profile", "--config-file"), "--config FILE reads a settings file"),
    "--skip-git-repo-check": "ralph works in any directory",
    "--share": "ralph does not upload sessions: `ralph report` writes a page",
}


def instead_of(spelling: str) -> str | None:
    """The line about an option of Claude Code or another agent that a run of ralph lacks. None for any other option."""
    for owner, table in (("Claude Code", INSTEAD), ("other agents", _OF_PEERS)):
        if spelling in table:
            return f"{spelling} is an option of {owner} that ralph does not have: {table[spelling]}"
    return None
