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

For people who have a program that drives Claude Code by `claude-agent-sdk` (Python) or `@anthropic-ai/claude-agent-sdk`
(TypeScript): point it at ralph, and it runs in ralph.

```python
from claude_agent_sdk import ClaudeAgentOptions, query

options = ClaudeAgentOptions(
    cli_path="/path/to/ralph",  # `command -v ralph`; without it the SDK starts the claude of its own wheel
    system_prompt={{"type": "preset", "preset": "claude_code"}},  # ralph's own; without it there is none
)
async for message in query(prompt="Write hello.py", options=options):
    print(message)
```

```typescript
import {{ query }} from "@anthropic-ai/claude-agent-sdk";

const options = {{
  pathToClaudeCodeExecutable: "/path/to/ralph",
  systemPrompt: {{ type: "preset", preset: "claude_code" }},
}};
for await (const message of query({{ prompt: "Write hello.py", options }})) console.log(message);
```

Set `ANTHROPIC_API_KEY`: Claude Code's own login is not used. Flags that the SDKs do not know go into `extra_args`
(`extraArgs`): `{{"max-time": "30m", "retry": "patient", "sandbox": "strict"}}`. The wire is on [the page about
control](control.md), and flags, files and variables are on [the page for people who come from
`claude -p`](from-claude.md).

## What differs on purpose

* **A hook that fails denies.** An exception in a hook, no answer in time and a program that has gone away deny the call.
  Claude Code runs on, unless `onFailure` is `"block"`. ralph takes every hook for one that blocks.
* **`continue: false`** ends the message as `error_during_execution`, `interrupted`, exit code 130, and the call of a
  PreToolUse hook does not run. So do a denial with `interrupt` and a task that a UserPromptSubmit hook refused. Claude
  Code reports success for the first and the last.
* **`allowed_tools`** limits: these tools and the reading ones are there, and nobody is asked about them.
* **Hooks for events that ralph does not have**: those that only observe (`SessionStart`, `PreCompact`, `Notification` ...)
  are named in a notice and never called. Any other is a guard that cannot be kept: nothing runs, exit code 78.
* **Nothing runs without what was asked for.** An option of the last table ends the run before its first request, with one
  sentence. Python's SDK raises `ProcessError` for exit code 2, whose sentence is on standard error (`stderr`), and
  `ResultError` or `Exception` for 78. TypeScript's throws `Error`.
* Every end has its own [exit code](output.md#exit-codes), `terminal_reason` says which, and a failure is never a success.

## Options

This page is made from the rows of a test (`python -m tests.agent_sdks.page > docs/agent-sdk.md`), which plays each with
the real SDKs against a scripted server: {PYTHON_SDK} {VERSIONS[PYTHON_SDK]}, {TYPESCRIPT_SDK} {VERSIONS[TYPESCRIPT_SDK]}.
"""

TITLES: dict[Verdict, str] = {
    "works": "In ralph",
    "no effect": "Accepted without effect, because",
    "error": "An error; use instead",
}


def page() -> str:
    return "\n".join([BEGIN, *("\n".join(_table(verdict)) + "\n" for verdict in TITLES)]).rstrip("\n") + "\n"


def _table(verdict: Verdict) -> Iterator[str]:
    yield f"| Python | TypeScript | {TITLES[verdict]} |"
    yield "| --- | --- | --- |"
    for row in ROWS:
        if row.verdict == verdict:
            names = (f"`{name}`" if name else "" for name in row.names)
            yield f"| {' | '.join(names)} | {row.says} |"


if __name__ == "__main__":
    sys.stdout.write(page())
