"""Options of Claude Code that ralph accepts without effect, or refuses with advice, and options of other agents. For
these, a suggestion of an option with a similar spelling would be misleading. No I/O happens here.
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

_NO_SUBAGENTS = "ralph has no subagents: put the instructions into the prompt or --append-system-prompt"
_NO_PLUGINS = (
    "ralph has no plugins: copy the plugin's commands and skills into .claude/commands and .claude/skills"
)
_NO_CLOUD = "ralph runs on this machine alone: `ralph loop` works unattended"
_ONE_MACHINE = "sessions stay on this machine: `ralph sessions ls` lists them, and --resume ID resumes one"
_NO_WINDOW = "ralph has no window of its own: `ralph loop --status` shows what a loop is doing"
_BACKGROUND = "start ralph in the background with the shell: nohup ralph ... </dev/null >out.json 2>log &"
_WORKTREE = "make the worktree with git, and name it: git worktree add DIR && ralph -C DIR ..."
_EFFORT = "--effort says how hard the model thinks, and `thinking` of a [[targets]] entry whether it does"
_RESUME = "a session is resumed at its end: --fork-session resumes a copy, and leaves the session as it is"

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
    "--chrome": "ralph drives no browser: let the model run a headless one by Bash",
    "--from-pr": "no session belongs to a pull request: gh pr diff N | ralph -p 'review this'",
    "--file": "no file is fetched: download it first, and name its path in the prompt",
    "--task-budget": "--max-budget-usd, --max-turns and --max-time limit a task",
    "--channels": "ralph has no channels: a driver sends messages on standard input",
    "--initialize-fields": "give settings and tools as options: --settings, --disallowedTools",
    "--managed-settings": "--settings FILE has rules and hooks that count beside all others",
    "--managed-settings-in-initialize": "--settings FILE has rules and hooks that count beside all others",
    "--project-config-root": "ralph reads the files of its working directory: -C DIR",
    "--session-mirror": "`ralph sessions export ID` prints a session's journal, also while it runs",
    "--await-initialize": "with --input-format stream-json ralph waits for the first message, initialized or not",
}
"""One line for each refused option. The line says what to use instead, or why there is no replacement."""


_NOBODY_ASKS = (
    "ralph never asks, and all tools of a run work: --tools, --permission-mode and --sandbox limit them"
)
_IMAGE = "name the file in the prompt: the model sees an image when it reads the file"
_SESSION = "--resume ID resumes a session, and --continue the last one of this directory"
_OF_PEERS = {
    **dict.fromkeys(
        ("--yolo", "-y", "--yes", "--yes-always", "--auto", "--force", "--full-auto", "--approval-mode"),
        _NOBODY_ASKS,
    ),
    **dict.fromkeys(("--ask-for-approval", "-a", "--allow-all-tools", "--trust-all-tools"), _NOBODY_ASKS),
    "--dangerously-bypass-approvals-and-sandbox": f"{_NOBODY_ASKS}; --sandbox off",
    **dict.fromkeys(("--image", "-i"), _IMAGE),
    "-m": "--model NAME names the model; the prompt needs no option",
    **dict.fromkeys(("--message", "--prompt", "--text", "--query"), "the prompt needs no option"),
    **dict.fromkeys(("--message-file", "--instructions"), "-f FILE reads the prompt from a file"),
    **dict.fromkeys(("--session", "-s", "--last"), _SESSION),
    **dict.fromkeys(("--no-session", "--ephemeral"), "--no-session-persistence keeps no session"),
    **dict.fromkeys(("--reasoning-effort", "--variant", "--thinking-budget"), _EFFORT),
    **dict.fromkeys(("--json", "--mode", "-o"), "--output-format json or stream-json prints for programs"),
    **dict.fromkeys(("--output-last-message", "--output"), "standard output has the final answer alone"),
    "--output-schema": "--json-schema requires a report that fits a schema",
    **dict.fromkeys(
        ("--include-directories", "--dir", "--cwd"), "-C DIR works there, --add-dir DIR beside it"
    ),
    **dict.fromkeys(("--provider", "--oss"), "--api and --base-url name another server"),
    "--api-key": "the environment has the key: ANTHROPIC_API_KEY",
    **dict.fromkeys(("--profile", "--config-file"), "--config FILE reads a settings file"),
    "--skip-git-repo-check": "ralph works in any directory",
    "--share": "no session leaves this machine: `ralph report` writes a page",
}


def instead_of(spelling: str) -> str | None:
    """The line about an option of Claude Code or another agent that a run of ralph does not have. None for any other
    option.
    """
    for owner, table in (("Claude Code", INSTEAD), ("other agents", _OF_PEERS)):
        if spelling in table:
            return f"{spelling} is an option of {owner} that ralph does not have: {table[spelling]}"
    return None
