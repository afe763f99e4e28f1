"""Tools for tests of a model's answers: turns with given content, and what the model was sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.mock_api import ToolUse, Turn

if TYPE_CHECKING:
    from ralph.mock_api import MockApi

DONE = Turn("All done.")
WITH_BASH = ("Bash", "BashOutput", "KillBash")
"""The tools that a run has if it has Bash."""
SCHEMA = json.dumps({"type": "object", "properties": {"files": {"type": "integer"}}, "required": ["files"]})


def calls(*uses: tuple[str, dict[str, Any]], **changes: Any) -> Turn:
    return Turn([ToolUse(name, arguments) for name, arguments in uses], **changes)


def bash(command: str, **changes: Any) -> Turn:
    return calls(("Bash", {"command": command}), **changes)


def write(path: str, content: str = "") -> Turn:
    """A turn that writes a file, which needs no process. The first command of a run takes as long as a run without."""
    return calls(("Write", {"file_path": path, "content": content}))


def look(offset: int = 1, **changes: Any) -> Turn:
    """A turn with a call that needs no process. Each offset makes a different call."""
    return calls(("Read", {"file_path": ".", "offset": offset}), **changes)


def report(status: str = "success", summary: str = "Counted them.", **fields: Any) -> Turn:
    return calls(("final_report", {"status": status, "summary": summary, **fields}))


def told(server: MockApi, nth: int = -1) -> list[dict[str, Any]]:
    """The blocks of the last message of the nth request."""
    blocks: list[dict[str, Any]] = server.requests[nth].json()["messages"][-1]["content"]
    return blocks


def tools_of(server: MockApi, nth: int = -1) -> list[str]:
    """The names of the tools that the nth request offers."""
    return [tool["name"] for tool in server.requests[nth].json()["tools"]]


def told_texts(server: MockApi, nth: int = -1) -> list[str]:
    return [block["text"] for block in told(server, nth) if block["type"] == "text"]


def results(server: MockApi, nth: int = -1) -> list[tuple[str, bool]]:
    """The tool results in the last message of the nth request: the content of each, and whether it is an error."""
    return [
        (block["content"], block.get("is_error", False))
        for block in told(server, nth)
        if block["type"] == "tool_result"
    ]
