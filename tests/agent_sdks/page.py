"""Writes docs/agent-sdk.md. Its tables are made from the rows that the tests try:

python -m tests.agent_sdks.page > docs/agent-sdk.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.agent_sdks.table import ROWS
from tests.services.outside_programs import PYTHON_SDK, TYPESCRIPT_SDK, VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent_sdks.table import Verdict

PAGE = Path(__file__).parents[2] / "docs" / "agent-sdk.md"

BEGIN = f"""# Claude's Agent SDKs

Point a program that drives Claude Code by `claude-agent-sdk` (Python) or `@anthropic-ai/claude-agent-sdk` (TypeScript)
at ralph:

```python
from claude_agent_sdk import ClaudeAgentOptions, query

options = ClaudeAgentOptions(
    cli_path="/path/to/ralph",  # `command -v ralph`; without it the SDK starts the claude of its own wheel
    system_prompt={{"type": "preset", "preset": "claude_code"}},  # ralph's own; without it there is none
)
async for message in query(prompt="Write hello.py", options=options):
    print(message)
```

In TypeScript the two options are `pathToClaudeCodeExecutable` and `systemPrompt`.
Set `ANTHROPIC_API_KEY`: Claude Code's own login is not used. Flags that the SDKs do not know go into `extra_args`
(`extraArgs`): `{{"max-time": "30m", "retry": "patient", "sandbox": "strict"}}`. The protocol is on the page about
[control](control.md); flags, files and variables are on [From `claude -p`](from-claude.md). What differs on purpose:

* **A hook that fails denies**, also one that raises or does not answer in time. Claude Code runs the call, unless
  `onFailure` is `"block"`.
* **`continue: false`**, a denial with `interrupt` and a task that a UserPromptSubmit hook refused end the message as
  `error_during_execution`, `interrupted`, exit code 130. Claude Code reports success for the first and the last.
* **An option that ralph cannot keep stops the run.** An option of the last table ends the run before its first request,
  with one sentence. Python's SDK raises `ProcessError` for exit code 2, whose sentence is on standard error (`stderr`),
  and `ResultError` or `Exception` for 78. TypeScript's throws `Error`.

A test plays each option with the real SDKs against a scripted server and makes this page from them
(`python -m tests.agent_sdks.page > docs/agent-sdk.md`): {PYTHON_SDK} {VERSIONS[PYTHON_SDK]},
{TYPESCRIPT_SDK} {VERSIONS[TYPESCRIPT_SDK]}.
"""

TITLES: dict[Verdict, str] = {
    "works": "In ralph",
    "no effect": "Accepted without effect, because",
    "error": "An error; use instead",
}


def page() -> str:
    return "\n".join([BEGIN, *("\n".join(_table(verdict)) + "\n" for verdict in TITLES)]).rstrip("\n") + "\n"


def _table(verdict: Verdict) -> Iterator[str]:
    """A table. Options about which there is the same to say share a row."""
    yield f"| Python | TypeScript | {TITLES[verdict]} |"
    yield "| --- | --- | --- |"
    said: dict[str, tuple[list[str], list[str]]] = {}
    for row in ROWS:
        if row.verdict == verdict:
            for name, names in zip(row.names, said.setdefault(row.says, ([], [])), strict=True):
                names.extend([f"`{name}`"] if name else [])
    for says, columns in said.items():
        yield f"| {' | '.join(', '.join(names) for names in columns)} | {says} |"


if __name__ == "__main__":
    sys.stdout.write(page())
